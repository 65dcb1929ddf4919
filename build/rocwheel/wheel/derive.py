"""Sets made from other sets: new versions or tags, the same content, and a manifest to prove it.

`reversion` and `retag` copy unchanged members in compressed form. Each wheel of a derived set names
its parent's wheel, what was rewritten, and a digest of everything else, by RECORD. Anybody can
write that: the proof is that the parent's wheels, derived `again`, give the same set.
"""

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final, Literal

from packaging.version import Version

from rocwheel.base import files
from rocwheel.base.errors import ConfigError, WheelError
from rocwheel.base.values import replace
from rocwheel.records.manifest import Derivation, DerivedWheel, Manifest, WheelEntry
from rocwheel.wheel import metadata
from rocwheel.wheel.inspect import inspect
from rocwheel.wheel.metadata import WheelName
from rocwheel.wheel.rename import NewVersion, Rename, apply, plan_retag, plan_reversion
from rocwheel.wheel.zip_reader import ZipArchive

_INFO: Final = re.compile(r"\A[^/]+\.dist-info/")
_TEXTS: Final = re.compile(
    r"[^/]+\.dist-info/(METADATA|WHEEL|RECORD|sboms/rocwheel\.cdx\.json)|[^.]+/version\.py"
)


def content_of(path: Path, rewritten: Collection[str]) -> str:
    """Return the SHA-256 of what RECORD says of all members but those that were rewritten.

    The name of the dist-info folder, which has the version in it, does not count.
    """
    with ZipArchive(path) as archive:
        folder = metadata.dist_info(archive.by_name, path=path)
        _, rows = metadata.read_record(archive, folder)
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


def again(manifest: Manifest, parent: Manifest, source: Path, folder: Path) -> Manifest:
    """Derive a set again from its parent's wheels in `source`. Raises WheelError.

    Equal manifests prove every byte of the set, and all that its manifest says.
    """
    said = manifest.parent.wheels if manifest.parent else {}
    paths = [source / entry.filename for entry in parent.built]
    try:
        names = {origin.filename: WheelName.parse(name) for name, origin in said.items()}
        new = {WheelName.parse(old).version: name.version for old, name in names.items()}
        if manifest.parent and manifest.parent.by == "retag":
            by: Literal["reversion", "retag"] = "retag"
            platforms = next(iter(names.values())).platforms
            plans = plan_retag(paths, platform=".".join(platforms))
        else:
            by = "reversion"
            plans = plan_reversion(paths, NewVersion(each=new))
        apply(plans, folder)
        return derived(parent, plans, folder, by)
    except (ConfigError, StopIteration, ValueError) as exc:  # what no derivation writes
        what = f"it cannot be derived from {parent.sha256[:12]} again: {exc}"
        raise WheelError(what, hint="derive it with `wheel reversion`, or build it") from exc


def check(plans: Sequence[Rename]) -> None:
    """Refuse a set that would be the same, or another release's. Raises ConfigError."""
    for plan in plans:
        if plan.after.version.base_version != plan.before.version.base_version:
            raise ConfigError(
                f"{plan.after}: another release than {plan.before.version}",
                hint="a set keeps the release of JAX that it was built from: build the other one",
            )
    if not any(plan.edits or plan.after != plan.before for plan in plans):
        raise ConfigError(
            f"{plans[0].after}: nothing would change", hint="give another version or tag"
        )


def derived(
    parent: Manifest,
    plans: Sequence[Rename],
    folder: Path,
    by: Literal["reversion", "retag"],
) -> Manifest:
    """Return the manifest of the set that `plans` made."""
    check(plans)
    entries = {entry.filename: entry for entry in parent.built}
    made: dict[str, WheelEntry] = {}
    proofs: dict[str, DerivedWheel] = {}
    for plan in plans:
        entry = entries[plan.source.name]
        path = folder / str(plan.after)
        report = inspect(path)
        rewritten = tuple(sorted(plan.path(name) for name in plan.edits))
        proofs[path.name] = DerivedWheel(
            filename=entry.filename,
            sha256=entry.sha256,
            rewritten=rewritten,
            content=content_of(path, rewritten),
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
