"""Provisioning: the ROCm a gate puts beside the wheels, which bring none themselves.

It is the manifest's tarball by its digest, another tarball or folder, or packages. For a set that
was built from packages it is the packages that users install, by digest, without the development
files. A suite may be for users of ROCm by pip: then it is the manifest's version.
"""

import re
from pathlib import Path
from typing import Final

from rocwheel import rocm
from rocwheel.base.console import Console
from rocwheel.base.values import Plain
from rocwheel.gate import subject
from rocwheel.gate.request import DeviceChoice, GateRequest, Host
from rocwheel.records.install import DEVICE
from rocwheel.records.verdict import RocmProvided
from rocwheel.rocm import by_pip

PIP: Final = "pip:"
_BETWEEN: Final = re.compile(r",(?=\s*[A-Za-z])(?![^\[]*\])")  # requirements, not extras or limits
IMAGE: Final = Path("/opt/rocm")  # where images have it


class Provided(Plain, frozen=True, kw_only=True):
    """A ROCm that is ready; while this value lives, the cache keeps its tree."""

    record: RocmProvided
    root: Path | None = None
    requirements: tuple[str, ...] = ()
    index: str = ""  # that has them, besides those of pip's settings
    tree: object = None


def describe(request: GateRequest, host: Host) -> str:
    """Say in one line what `provide` will do, for --dry-run. Raises ConfigError."""
    if request.installed:
        return f"the ROCm beside {request.installed}"
    if request.device is not DeviceChoice.FAMILY:
        return "no ROCm"
    if packages := ",".join(line.partition(" ")[0] for line in _own(request)):
        return f"ROCm by pip, of the manifest's digests: {packages}"
    if packages := _packages(request):
        return f"ROCm by pip: {packages}"
    return str(_plan(request, host))


def provide(request: GateRequest, host: Host, console: Console) -> Provided:
    """Make ROCm ready. Raises ConfigError when none is named, and what `rocm.fetch` raises."""
    nothing = Provided(record=RocmProvided(origin="none"))
    if request.installed:  # the ROCm of the image that this runs in, which has no compiler
        try:
            version = (IMAGE / ".info" / "version").read_text(encoding="utf-8").strip()
        except OSError:
            return nothing
        record = RocmProvided(origin="path", version=version, name=IMAGE.name)
        return Provided(record=record, root=IMAGE)
    if request.device is not DeviceChoice.FAMILY:
        return nothing
    if lines := _own(request):
        source = request.manifest.rocm
        record = RocmProvided(
            origin="pip", version=source.version, sha256=source.sha256, name=source.name
        )
        return Provided(record=record, requirements=lines, index=source.url)
    if text := _packages(request):
        requirements = tuple(_BETWEEN.split(text))
        # `rocm[libraries]==7.10.0`, the first requirement, may have one
        pinned = re.fullmatch(r"[^=]*==([^,;*]+)", requirements[0])
        version = pinned[1].strip() if pinned else ""
        record = RocmProvided(origin="pip", name=text, version=version)
        return Provided(record=record, requirements=requirements)
    tree = rocm.fetch(_plan(request, host), console=console, env=host.environ)
    record = RocmProvided(
        origin="path" if tree.origin == "directory" else tree.origin,
        version=str(tree.version),
        sha256=tree.sha256,  # of a folder: of the list of its files, as the manifest has it
        name=tree.name,
    )
    return Provided(record=record, root=tree.root, tree=tree)


def _own(request: GateRequest) -> tuple[str, ...]:
    """Return what users install of the packages that the set was built from; () for any other."""
    if request.rocm or request.suite.rocm == "pip":
        return ()
    delivery = request.manifest.rocm.delivery
    return () if not delivery else by_pip.for_users(delivery.packages, request.family.targets)


def _packages(request: GateRequest) -> str:
    """Return the requirements that pip is asked for; "" where it is not."""
    if request.rocm or request.suite.rocm != "pip":
        return request.rocm.removeprefix(PIP) if request.rocm.startswith(PIP) else ""
    # the wheels; `rocm` itself, whose extras they are, is an sdist and has no library
    names = ("core", "libraries", *(f"{DEVICE}{target}" for target in request.family.targets))
    return ",".join(f"rocm-sdk-{name}=={request.manifest.rocm.version}" for name in names)


def env(provided: Provided) -> dict[str, str]:
    """Return what a test process must know of ROCm; the wheels find its libraries by themselves."""
    root = {"ROCM_PATH": str(provided.root)} if provided.root else {}
    version = provided.record.version
    return root | ({"ROCWHEEL_ROCM_VERSION": version} if version else {})


def _plan(request: GateRequest, host: Host) -> rocm.RocmPlan:
    return subject.rocm_of(
        request.manifest, request.rocm, exact=False, cache=host.cache, cwd=host.cwd
    )
