"""Lets pip resolve a released set, for each CPython, in a closed world.

Closed: names of the set come from our index alone, every other name from upstream. No installer
can say that by options, so the index is served locally and other names are redirected.
"""

import json
import tempfile
from pathlib import Path
from typing import Final

from packaging.utils import canonicalize_name

from rocwheel.base.errors import CommandError
from rocwheel.base.process import Command, Runner
from rocwheel.base.versions import PythonVersion
from rocwheel.records.manifest import Manifest
from rocwheel.records.places import Place
from rocwheel.release.index.serve import Site
from rocwheel.release.ledger import log, manifests

SECONDS: Final = 600.0  # for one resolution


def resolve(place: Place, *, upstream: str, python: Path, runner: Runner) -> list[str]:
    """Resolve every set in the index; return one line per CPython where pip chose otherwise.

    `python` is an interpreter that has pip.
    """
    with Site(place.store, upstream=upstream).running() as site:
        index, state = f"{site.url}{place.index}/", log.read(place)
        pip = (str(python), "-m", "pip", "install", "--index-url", index)
        said = [
            (version, _problem(manifest, version, runner, pip))
            for known in state.of(place.family).listed
            if (manifest := manifests.find(state.at(place, known.id), known.id))
            for version in manifest.pythons
        ]
    return [f"{place.location}: CPython {version}: {text}" for version, text in said if text]


def _problem(manifest: Manifest, version: str, runner: Runner, pip: tuple[str, ...]) -> str:
    """Return the problem, or "" if pip chooses exactly the manifest's versions for a CPython."""
    wanted = {w.project: w.version for w in manifest.built if w.python in {"", version}}
    platforms = sorted({tag.rpartition("-")[2] for w in manifest.built for tag in w.tags})
    target = PythonVersion.parse(version)
    with tempfile.TemporaryDirectory(prefix="rocwheel-") as scratch:
        report = Path(scratch) / "report.json"
        argv = (
            *pip, "--dry-run", "--ignore-installed",
            "--quiet", "--isolated", "--no-cache-dir", "--disable-pip-version-check",
            "--report", str(report), "--target", str(report.with_name("target")),
            "--only-binary=:all:",
            "--python-version", f"{target.major}.{target.minor}", "--implementation", "cp",
            "--abi", target.abi, "--abi", "none", "--abi", "abi3",
            *(part for name in platforms for part in ("--platform", name)),
            *(f"{project}=={number}" for project, number in sorted(wanted.items())),
        )  # fmt: skip
        try:
            runner.run(Command(argv=argv, timeout=SECONDS))
        except CommandError as exc:
            return (exc.detail.strip().splitlines() or [str(exc)])[-1]
        chosen: dict[str, str] = {
            str(canonicalize_name(item["metadata"]["name"])): item["metadata"]["version"]
            for item in json.loads(report.read_bytes())["install"]
        }
    for project, number in sorted(wanted.items()):
        if chosen.get(project) != number:
            return f"pip chose {project} {chosen.get(project)}, not {number}"
    return ""
