"""Telling somebody that a night differs from the one before: JSON and Markdown, file or URL.

A POST is signed (HMAC-SHA256 of the body), retried on 5xx, throttling and broken connections, and
over when its deadline is. What changed is what the two summaries say of the same cell.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rocwheel.download import proxies, reason, session, without_secrets
from rocwheel.errors import FetchError
from rocwheel.ledger.nights import Nights
from rocwheel.pipeline import summing
from rocwheel.report.night_page import CellChange, changes

if TYPE_CHECKING:
    import requests

AGAIN: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
TOLD: Final = {CellChange.NEW, CellChange.FIXED, CellChange.FLAKY, CellChange.INFRA}


@dataclass(frozen=True, kw_only=True)
class Message:
    """A message about a night, as JSON and as Markdown."""

    json: str
    markdown: str


def message(nights: Nights, night: str) -> Message | None:
    """What to tell of a night; None when nothing changed, or it has no summary yet."""
    here = summing.read(nights, night)
    if here is None:
        return None
    names = nights.names()
    earlier = names[: names.index(night)] if night in names else names
    before = summing.read(nights, earlier[-1]) if earlier else None
    found = {name: change for name, change in changes(here, before).items() if change in TOLD}
    families = {item.family: item.green for item in here.families}
    old = {item.family: item.green for item in before.families} if before else {}
    green = {name: new for name, new in families.items() if new and old.get(name) != new}
    if not found and not green:
        return None
    states = {cell.name: cell for cell in here.cells}
    document = {
        "night": night,
        "changes": [
            {"cell": n, "change": c.value, "state": states[n].word, "reason": states[n].reason}
            for n, c in sorted(found.items())
        ],
        "green": green,
        "blocked": {item.family: item.blocked for item in here.families if item.blocked},
    }
    lines = [f"# Night {night}", ""]
    lines += [
        f"- `{n}`: {c.value}: {states[n].word} {states[n].reason}".rstrip()
        for n, c in sorted(found.items())
    ]
    lines += [f"- {name}: green set is now `{new[:12]}`" for name, new in sorted(green.items())]
    return Message(
        json=json.dumps(document, indent=2, sort_keys=True) + "\n", markdown="\n".join(lines) + "\n"
    )


def post(
    url: str, told: Message, *, secret: str, deadline: float, environ: Mapping[str, str]
) -> None:
    """POST the JSON. Raises FetchError when it was not taken before the deadline."""
    body = told.json.encode()
    headers = {"Content-Type": "application/json"}
    if secret:
        digest = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
        headers["X-Rocwheel-Signature"] = f"sha256={digest}"
    ends, pause, last = time.monotonic() + deadline, 0.5, "no answer"
    with session(environ) as asking:
        asking.proxies.update(proxies(url, environ))
        while (left := ends - time.monotonic()) > 0:
            status, last = _post(asking, url, body, headers, min(left, 20.0))
            if 200 <= status < 300:  # noqa: PLR2004 - a redirect led nowhere: nothing was taken
                return
            if status and status not in AGAIN:
                break
            time.sleep(max(0.0, min(pause, ends - time.monotonic())))
            pause = min(10.0, 2 * pause)
    raise FetchError(
        f"{without_secrets(url)}: {last}",
        hint="check the address; the night itself is not affected",
    )


def _post(
    asking: requests.Session, url: str, body: bytes, headers: dict[str, str], seconds: float
) -> tuple[int, str]:
    """Status, 0 where there was none, and what to say of it.

    A server that goes on sending headers would reset every timeout of a socket, so the answer is
    waited for from outside.
    """
    import requests

    said = [(0, f"no answer within {seconds:.0f} s")]

    def ask() -> None:
        try:
            answer = asking.post(
                url, data=body, headers=headers, timeout=seconds, allow_redirects=False, stream=True
            )
            answer.close()
        except requests.RequestException as exc:
            said.append((0, reason(exc)))
        else:
            said.append((answer.status_code, f"HTTP {answer.status_code}"))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(seconds)
    return said[-1]
