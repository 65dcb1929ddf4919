"""Sets made from other sets: new versions or tags, the same content, and a manifest to prove it.

`reversion` and `retag` copy unchanged members in compressed form. Each wheel of a derived set names
its parent's wheel, what was rewritten, and a digest of everything else. That digest is computed
from RECORD alone, of either wheel; `verify` compares RECORD's rows with the bytes.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Final, Literal

from packaging.version import Version

from rocwheel.base import files
from rocwheel.base.errors import WheelError
from rocwheel.base.values import replace
from rocwheel.records.manifest import Derivation, DerivedWheel, Manifest, WheelEntry
from rocwheel.wheel import metadata
from rocwheel.wheel.inspect import inspect
from rocwheel.wheel.metadata import RecordRow
from rocwheel.wheel.rename import Rename
from rocwheel.wheel.zip_reader import ZipArchive

_INFO: Final = re.compile(r"\A[^/]+\.dist-info/")
_TEXTS: Final = re.compile(
    r"[^/]+\.dist-info/(METADATA|WHEEL|RECORD|sboms/rocwheel\.cdx\.json)|[^.]+/version\.py"
)


def content_of(path: Path, rewritten: Collection[str]) -> str:
    """Return the SHA-256 of a wheel's content without the members that were rewritten."""
    with ZipArchive(path) as archive:
        folder = metadata.dist_info(archive.by_name, path=path)
        return content(metadata.read_record(archive, folder)[1], rewritten)


def content(rows: Iterable[RecordRow], rewritten: Collection[str]) -> str:
    """Return the SHA-256 of what RECORD says of all but some members.

    The name of the dist-info folder, which has the version in it, does not count.
    """
    left_out = {_INFO.sub("dist-info/", name) for name in rewritten}
    lines = sorted(
        f"{name},{row.algorithm}={row.digest},{row.size}\n"
        for row in rows
        if row.digest and (name := _INFO.sub("dist-info/", row.path)) not in left_out
    )
    return files.sha256("".join(lines).encode())


def may_be_rewritten(name: str) -> bool:
    """Return whether a new version or tag changes this member, and nothing that runs."""
    return _TEXTS.fullmatch(name) is not None


def derived(
    parent: Manifest,
    plans: Sequence[Rename],
    folder: Path,
    by: Literal["reversion", "retag"],
) -> Manifest:
    """Return the manifest of the set that `plans` made; only rewritten texts may differ."""
    entries = {entry.filename: entry for entry in parent.built}
    made: dict[str, WheelEntry] = {}
    proofs: dict[str, DerivedWheel] = {}
    for plan in plans:
        entry = entries[plan.source.name]
        path = folder / str(plan.after)
        report = inspect(path)
        rewritten = tuple(sorted(plan.path(name) for name in plan.edits))
        content = content_of(path, rewritten)
        if content != content_of(plan.source, plan.edits):
            raise WheelError(
                f"{path.name}: has other content than {plan.source.name}",
                hint="this is a bug: only texts may change",
            )
        proofs[path.name] = DerivedWheel(
            filename=entry.filename, sha256=entry.sha256, rewritten=rewritten, content=content
        )
        made[entry.filename] = replace(
            entry,
            filename=path.name,
            version=report.version,
            tags=report.tags,
            size=report.size,
            sha256=report.sha256,
        )
    was, now = (
        {re.sub(r"\.post[0-9]+", "", Version(each.version).public) for each in wheels}
        for wheels in (entries.values(), made.values())
    )
    jax = parent.jax_version if was == now or len(now) > 1 else now.pop()
    return replace(
        parent,
        jax_version=jax,
        wheels=tuple(made.get(entry.filename, entry) for entry in parent.wheels),
        parent=Derivation(manifest=parent.sha256, by=by, wheels=proofs),
    )
