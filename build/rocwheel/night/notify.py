"""Sends how a night differs from the one before, or that none came: JSON, Markdown; file or URL.

A POST is signed (HMAC-SHA256 of the body) and retried on 5xx, throttling and broken connections; it
ends with its cell's limit. What changed is what the two summaries say of the same cell.
"""

import hashlib
import hmac
import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Final
from urllib.parse import quote, urljoin

from rocwheel.base.console import count, duration
from rocwheel.base.download import proxies, reason, session, without_secrets
from rocwheel.base.errors import ConfigError, FetchError
from rocwheel.base.store import Store, glance
from rocwheel.base.values import Plain, replace
from rocwheel.base.versions import moment
from rocwheel.night import night_feed, night_summary, standing, summing
from rocwheel.release.ledger.nights import AS_JSON, NightPlan, Nights

AGAIN: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
TRIES: Final = 6
SILENCE: Final = 10.0  # seconds without a byte
LISTED: Final = 40  # changes in a message
STALE: Final = "status/stale.json"  # the last message of a night that is too old


class Message(Plain, frozen=True, kw_only=True):
    """A message about a night, as JSON and as Markdown."""

    json: str
    markdown: str


def message(
    nights: Nights, night: str, page: str, warn: Callable[[str], None], *, now: datetime
) -> Message | None:
    """Make what to tell of a night; None when nothing changed, or its page is still to come.

    `page` is the URL of the page, beside which the logs lie.
    """
    names = nights.names()
    earlier = names[: names.index(night)] if night in names else names
    before = next(reversed(summing.known(nights, earlier[-summing.PAST :], warn)), None)
    standings = standing.stand(nights.book(night), now)
    cells = summing.cells(standings)  # as they are now: the page may have failed
    here = summing.read(nights, night)
    if before and not here and any(cell.kind == "page" for cell in cells):
        here = replace(before, night=night)
    if not here:
        return None
    here = replace(here, cells=cells, nothing_built=standing.nothing_built(standings))
    loud = night_feed.loud([before, here] if before else [here])
    old = {item.family: item.green for item in before.families} if before else {}
    green = {f.family: f.green for f in here.families if f.green and old.get(f.family) != f.green}
    nothing = here.nothing_built and not (before and before.nothing_built)
    if not (loud or green or nothing):
        return None
    causes = night_summary.causes(here)
    listed = [
        {
            "cell": item.cell.name,
            "change": item.change.value,
            "state": item.cell.word,
            "reason": item.cell.reason,
            "since": item.since,
            "log": urljoin(page, f"../{quote(item.cell.log)}") if item.cell.log else "",
        }
        for item in loud
    ]
    document = {
        "night": night,
        "page": page,
        "headline": night_feed.headline(here),
        "nothing_built": here.nothing_built,
        "changes": listed,
        "causes": [
            {"reason": c.first.reason, "first": c.first.name, "cells": len(c.cells), "held": c.held}
            for c in causes
        ],
        "green": green,
        "blocked": {item.family: item.blocked for item in here.families if item.blocked},
    }
    lines = [f"# Night {night}: {night_feed.headline(here)}", "", f"<{page}>", ""]
    lines += [
        f"- {count(len(c.cells), 'cell')} {c.first.word}: {c.first.reason} (`{c.first.name}`)"
        for c in causes
    ]
    lines += [
        "- `{cell}`: {change}: {state} {reason} {log}".format(**item).rstrip()
        for item in listed[:LISTED]
    ]
    if len(loud) > LISTED:
        lines.append(f"- and {len(loud) - LISTED} more")
    lines += [f"- {name}: green set is now `{new[:12]}`" for name, new in sorted(green.items())]
    return _message(document, lines)


def _message(document: Mapping[str, object], lines: Sequence[str]) -> Message:
    return Message(
        json=json.dumps(document, indent=2, sort_keys=True) + "\n", markdown="\n".join(lines) + "\n"
    )


def stale(
    store: Store, plan: NightPlan, page: str, *, now: datetime, limit: float
) -> Message | None:
    """Make the message that a newest night is older than `limit` seconds; None once it was sent."""
    if (now - moment(plan.made)).total_seconds() <= limit:
        return None
    headline = f"no newer night for more than {duration(limit)}"
    document = {"night": plan.night, "page": page, "headline": headline, "made": plan.made}
    made = _message(document, [f"# Night {plan.night}: {headline}", "", f"<{page}>"])
    return None if glance(store, STALE)[0] == made.json.encode() else made


def remember(store: Store, sent: Message) -> None:
    """Write down the last message that no newer night came."""
    store.replace(STALE, sent.json.encode(), previous=store.info(STALE), headers=AS_JSON)


def post(url: str, message: Message, *, secret: str, environ: Mapping[str, str]) -> None:
    """POST the JSON, again while the server is busy. Raises FetchError when it was not taken."""
    import requests
    from requests.adapters import HTTPAdapter
    from urllib3 import Retry

    if not re.match(r"https?://[^/]", url):
        raise ConfigError(f"{url!r}: no address to POST to", hint="write https://host/path")
    body, headers = message.json.encode(), {"Content-Type": "application/json"}
    if secret:
        digest = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
        headers["X-Rocwheel-Signature"] = f"sha256={digest}"
    again = Retry(
        None, redirect=False, other=0, connect=TRIES, read=1, status=TRIES,
        allowed_methods=None, status_forcelist=AGAIN, backoff_factor=0.5, raise_on_status=False,
    )  # fmt: skip
    with session(environ) as asking:
        asking.mount(url[: url.index("://") + 3], HTTPAdapter(max_retries=again))
        asking.proxies.update(proxies(url, environ))
        try:
            # a redirect led nowhere: nothing was taken
            with asking.post(
                url, data=body, headers=headers, timeout=SILENCE, allow_redirects=False, stream=True
            ) as answer:
                good = requests.codes.ok <= answer.status_code < requests.codes.multiple_choices
                problem = "" if good else f"HTTP {answer.status_code}"
        except requests.RequestException as exc:
            problem = reason(exc)
    if problem:
        raise FetchError(
            f"{without_secrets(url)}: {problem}",
            hint="check the address; the night itself is not affected",
        )
