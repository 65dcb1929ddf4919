"""What the store knows of runtime images, put together for people and programs: list and page."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from rocwheel.assets import style, template
from rocwheel.console import size
from rocwheel.ledger import log
from rocwheel.places import Place
from rocwheel.runtime import record


def listed(place: Place) -> list[dict[str, Any]]:
    """Return the recorded images of a place, newest last, with the moving tags of each."""
    sets = log.read(place).sets
    tags: dict[tuple[str, str], list[str]] = {}
    for move in record.moved_tags(place):
        tags.setdefault((move.repository, move.config), []).append(move.tag)
    found = []
    for item in record.records(place):
        known = sets.get(item.manifest)
        verdicts = record.verdicts(place, item.config)
        found.append(
            {
                "reference": item.reference,
                "pull": f"{item.repository}@{item.digest}",
                "digest": item.digest,
                "config": item.config,
                "manifest": item.manifest,
                "released": item.released,
                "state": known.standing.value if known else "",
                "python": item.python,
                "rocm": item.rocm,
                "profile": item.profile,
                "base": item.base,
                "layers": dict(item.layers),
                "size": item.size,
                "download": sum(amount for _, amount in item.blobs),
                "packages": dict(item.packages),
                "verdicts": [
                    {
                        "suite": it.suite,
                        "state": it.state.value,
                        "passed": it.counts.passed,
                        "host": it.host,
                        "sha256": name,
                    }
                    for name in item.verdicts
                    if (it := verdicts.get(name))
                ],
                "tags": tags.get((item.repository, item.config), []),
                "time": item.time,
                "by": item.by,
                "tool": item.tool,
                "sbom": place.store.locate(record.sbom_key(place, item.config)),
                "sbom_sha256": item.sbom,
            }
        )
    return found


def page(found: Sequence[dict[str, Any]], *, title: str, now: datetime) -> bytes:
    """Return an HTML page of images, the newest first, without anything from elsewhere."""
    made = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    shown = template("runtime/assets/images.html", size=size).render(
        title=title, made=made, images=list(reversed(found)), css=style("report/assets/page.css")
    )
    return shown.encode()
