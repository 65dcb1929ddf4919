"""The page of the nightly: what each family has, what is missing, and why.

One HTML file, made from the summaries of the shown nights alone, so that it costs the same with ten
nights stored as with four hundred. What may be released and what blocks it is copied from `status`.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote

from amdgpu_family_matrix import Family
from rocwheel.base.assets import style, template, text
from rocwheel.base.choices import TEST_KINDS
from rocwheel.base.console import Console, duration, size
from rocwheel.base.errors import ObjectStaleError
from rocwheel.base.store import HTML, JSON, Headers, Store
from rocwheel.base.versions import PythonVersion, timestamp
from rocwheel.night import bisect, truth
from rocwheel.night.bisect import Bisection
from rocwheel.night.truth import CellSummary, NightSummary, Truth
from rocwheel.release.index.channels import Channel
from rocwheel.release.ledger.nights import Nights

PAGE: Final = "status/index.html"  # keys, below the store
FEED: Final = "status/feed.atom"
BADGE: Final = "status/badge.json"  # as https://shields.io/badges/endpoint-badge reads it
COLOURS: Final = {"bad": "red", "warn": "yellow", "good": "brightgreen"}
PUBLISHED: Final = 5  # times a page is made that another one overtakes
NO_XML: Final = re.compile(r"[^\t\n\r -\uD7FF\uE000-\uFFFD\U00010000-\U0010FFFF]")
TREND: Final = 14  # nights of a cell


def render(
    summaries: Sequence[NightSummary],
    *,
    now: datetime,
    title: str,
    root: str,
    where: str = "",
    findings: Mapping[str, Bisection] | None = None,
) -> bytes:
    """Render the page; `summaries` are oldest first, `root` is the URL that keys lie below."""
    seen = tuple(summaries)
    facts = Truth(summaries=seen, where=where, findings=findings or {}) if seen else None
    recipes = {item.name: item for item in facts.night.recipes} if facts else {}
    old = {item.name: item for night in seen[:-1] for item in night.recipes}
    page = template("night/assets/night.html").render(
        css=style("gate/report/assets/page.css", "night/assets/night.css"),
        js=text("night/assets/night.js"),
        title=f"{facts.night.short}: {title}" if facts else title,
        channel=title,
        made=timestamp(now),
        max_age_hours=36,
        facts=facts,
        newest=facts.night if facts else None,
        groups=_groups(facts) if facts else [],
        causes=facts.causes if facts else [],
        recipes=recipes,
        ranges={
            name: list(bisect.ranges(item, old[name])) if name in old else []
            for name, item in recipes.items()
        },
        gpus=list(_gpu_minutes(facts.night)) if facts else [],
        nights=seen[::-1],
        worst=truth.worst,
        trend=min(TREND, len(seen)),
        duration=duration,
        size=size,
        url=lambda key: f"{root}{quote(key)}" if key else "",
    )
    return page.encode()


def _gpu_minutes(newest: NightSummary) -> Iterator[dict[str, Any]]:
    """Yield for each family what its GPUs did; held but not testing is waste."""
    own = defaultdict(list)
    for cell in newest.cells:
        if cell.gpus and cell.milliseconds:
            own[cell.family].append(cell)
    for family, cells in own.items():
        idle = {c.name: c.gpus * max(0, c.milliseconds - c.testing) for c in cells}
        worst = max(idle, key=lambda name: idle[name])
        yield {
            "family": family,
            "waited": sum(c.waited for c in cells) / 1000,
            "held": sum(c.gpus * c.milliseconds for c in cells) / 1000,
            "testing": sum(c.gpus * min(c.testing, c.milliseconds) for c in cells) / 1000,
            "idle": sum(idle.values()) / 1000,
            "worst": worst,
            "most": idle[worst] / 1000,
        }


def _groups(facts: Truth) -> list[dict[str, Any]]:
    newest, past = facts.night, facts.spoken
    cause = {cell.name: n for n, of in enumerate(facts.causes, 1) for cell in of.cells}
    groups = []
    for family in newest.families:
        cells = newest.of_family(family.family)
        own = (cell for cell in past[-1].values() if cell.family == family.family)
        tests = [cell for cell in own if cell.kind in TEST_KINDS]
        groups.append(
            {
                "family": family,
                "worst": "bad" if newest.nothing_built and cells else truth.worst(cells),
                "causes": sorted({cause[cell.name] for cell in cells if cell.name in cause}),
                "pythons": sorted({cell.python for cell in tests}, key=PythonVersion.parse),
                "suites": list(dict.fromkeys((cell.wheels, cell.suite) for cell in tests)),
                "is_one_set": len({cell.wheels for cell in tests}) <= 1,
                "rows": {
                    (cell.wheels, cell.suite, cell.python): {
                        "cell": cell,
                        "cause": cause.get(cell.name),
                        "since": facts.since(cell),
                        "strip": _strip([night.get(cell.identity) for night in past[-TREND:]]),
                    }
                    for cell in tests
                },
                "images": [cell for cell in cells if cell.kind == "image"],
            }
        )
    order = ("bad", "warn", "idle", "none", "good")
    return sorted(groups, key=lambda group: order.index(str(group["worst"])))


def _strip(cells: Iterable[CellSummary | None]) -> dict[str, str]:
    """Draw a square per night as one path per colour: small, and readable without a script."""
    paths: dict[str, list[str]] = {}
    for number, cell in enumerate(cells):
        paths.setdefault(cell.colour if cell else "none", []).append(f"M{number * 6} 0h5v10h-5z")
    return {name: "".join(path) for name, path in paths.items()}


def badge(facts: Truth | None) -> bytes:
    """Render the badge of the newest night."""
    night = facts.night if facts else None
    document = {
        "schemaVersion": 1,
        "label": night.night if night else "nightly",
        "message": night.verdict if night else "no night",
        "color": COLOURS.get(night.colour if night else "", "lightgrey"),
        "isError": bool(night and night.colour == "bad"),
    }
    return json.dumps(document, indent=2, sort_keys=True).encode() + b"\n"


def feed(summaries: Sequence[NightSummary], *, title: str, page: str, where: str = "") -> bytes:
    """Render the feed (RFC 4287): an entry for each shown night that differs."""
    parts = [summaries[max(0, n - truth.PAST) : n] for n in range(len(summaries), 0, -1)]
    nights = [Truth(summaries=tuple(part), where=where) for part in parts]
    filled = template("night/assets/feed.xml", clean=lambda text: NO_XML.sub("", text)).render(
        nights=[facts for facts in nights if facts.loud or facts is nights[-1]],
        updated=summaries[-1].written if summaries else "1970-01-01T00:00:00Z",
        title=title,
        page=page,
    )
    return filled.encode()


def page_url(channel: Channel, store: Store) -> str:
    """Return where people read the page of all families."""
    public = channel.public_url.rstrip("/")
    return f"{public}/{PAGE}" if public else store.http(PAGE)


def publish(
    nights: Nights,
    night: str,
    channel: Channel,
    families: Mapping[str, Family],
    *,
    now: datetime,
    console: Console,
    shown: int,
    tries: int = PUBLISHED,
) -> tuple[bytes, int]:
    """Sum up a night, and the newest again; return the new page and how many nights it shows."""
    names = nights.names()[-shown:]
    others = [name for name in names if name != night]
    summaries = {s.night: s for s in truth.known(nights, others, console.warn)}
    newest = (name for name in names[-1:] if name in summaries)
    findings: Mapping[str, Bisection] = {}  # of the newest, which comes last
    for name in dict.fromkeys(filter(None, (night, *newest))):
        facts = truth.truth(nights, name, families, channel, now=now, warn=lambda _said: None)
        summaries[name], findings = facts.night, facts.findings
        nights.put_summary(name, facts.night.to_bytes())
    wanted = [summaries[name] for name in names if name in summaries]
    store, public, name = nights.store, channel.public_url.rstrip("/"), channel.name or "rocwheel"
    root = f"{public}/" if public else "../"
    body = render(
        wanted, now=now, title=f"{name} wheels", root=root, where=channel.option, findings=findings
    )
    entries = feed(
        wanted, title=f"{name} nights", page=page_url(channel, store), where=channel.option
    )
    try:
        for key, data, kind in (
            (PAGE, body, HTML),
            (FEED, entries, "application/atom+xml"),
            (BADGE, badge(Truth(summaries=tuple(wanted)) if wanted else None), JSON),
        ):
            headers = Headers(content_type=kind, cache_control="public, max-age=60")
            previous = store.info(key)
            if not previous or store.read(key)[0] != data:
                store.replace(key, data, previous=previous, headers=headers)
    except ObjectStaleError:  # another page was published meanwhile, which may know more
        if not tries:
            raise
        return publish(
            nights, night, channel, families, now=now, console=console, shown=shown, tries=tries - 1
        )
    return body, len(wanted)
