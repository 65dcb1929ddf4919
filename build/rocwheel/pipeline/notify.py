"""Sends how a night differs from the one before, or that none came: JSON, Markdown; file or URL.

A POST is signed (HMAC-SHA256 of the body), retried on 5xx, throttling and broken connections, and
over when its deadline is. What changed is what the two summaries say of the same cell.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final
from urllib.parse import quote, urljoin

from rocwheel.console import count, duration
from rocwheel.download import proxies, reason, session, without_secrets
from rocwheel.errors import FetchError, ObjectMissingError
from rocwheel.ledger.nights import AS_JSON, NightPlan, Nights
from rocwheel.model import moment
from rocwheel.pipeline import summing
from rocwheel.report import night_feed, night_summary
from rocwheel.report.night_summary import changes
from rocwheel.store import Store

AGAIN: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
TRIES: Final = 6
SILENCE: Final = 20.0  # seconds without a byte
TAKEN: Final = ""
LISTED: Final = 40  # changes in a message
STALE: Final = "status/stale.json"  # the last message of a night that is too old


@dataclass(frozen=True, kw_only=True)
class Message:
    """A message about a night, as JSON and as Markdown."""

    json: str
    markdown: str


def message(nights: Nights, night: str, page: str) -> Message | None:
    """Make what to tell of a night; None when nothing changed, or it has no summary yet.

    `page` is the URL of the page, beside which the logs lie.
    """
    names = nights.names()
    earlier = names[: names.index(night)] if night in names else names
    past = [made for n in earlier[-1:] if (made := summing.known(nights.summary(n)))]
    now = summing.read(nights, night)
    summaries = [*past, now] if now else past
    if not summaries or summaries[-1].night != night:
        return None
    here, before = summaries[-1], summaries[0] if len(summaries) > 1 else None
    loud = [item for item in changes(summaries) if item.change not in night_feed.QUIET]
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
    with suppress(ObjectMissingError):
        if store.read(STALE)[0] == made.json.encode():
            return None
    return made


def remember(store: Store, sent: Message) -> None:
    """Write down the last message that no newer night came."""
    store.replace(STALE, sent.json.encode(), previous=store.info(STALE), headers=AS_JSON)


def post(
    url: str, message: Message, *, secret: str, deadline: float, environ: Mapping[str, str]
) -> None:
    """POST the JSON. Raises FetchError when it was not taken before the deadline."""
    body = message.json.encode()
    headers = {"Content-Type": "application/json"}
    if secret:
        digest = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
        headers["X-Rocwheel-Signature"] = f"sha256={digest}"
    answers = [f"no answer within {deadline:.0f} s"]
    # A server that goes on sending headers resets every timeout of a socket: wait outside of it.
    ask = partial(_post, url, body, headers, environ, answers)
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(deadline)
    if answers[-1] != TAKEN:
        raise FetchError(
            f"{without_secrets(url)}: {answers[-1]}",
            hint="check the address; the night itself is not affected",
        )


def _post(
    url: str, body: bytes, headers: dict[str, str], environ: Mapping[str, str], answers: list[str]
) -> None:
    """POST, again and again while the server is busy; add what came of it to `answers`."""
    import requests
    from requests.adapters import HTTPAdapter
    from urllib3 import Retry

    again = Retry(
        None, redirect=False, other=0, connect=TRIES, read=TRIES, status=TRIES,
        allowed_methods=None, status_forcelist=AGAIN, backoff_factor=0.5, raise_on_status=False,
    )  # fmt: skip
    with session(environ) as asking:
        asking.mount(url[: url.index("://") + 3], HTTPAdapter(max_retries=again))
        asking.proxies.update(proxies(url, environ))
        try:
            # a redirect led nowhere: nothing was taken
            answer = asking.post(
                url, data=body, headers=headers, timeout=SILENCE, allow_redirects=False, stream=True
            )
        except requests.RequestException as exc:
            answers.append(reason(exc))
        else:
            good = requests.codes.ok <= answer.status_code < requests.codes.multiple_choices
            answers.append(TAKEN if good else f"HTTP {answer.status_code}")
