"""The lines that install a wheel set, for each client, on pages, in commands and in the docs.

The set's wheels come from its index alone, without dependencies. Then `jax`, and a jaxlib that the
set does not contain, come from the package index by exact version. No line has `--extra-index-url`:
with it, pip takes the newest version of a name from any index, even where a stranger registered it.
"""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final

from packaging.version import Version

from rocwheel.base.values import Plain
from rocwheel.base.versions import WheelKind, kind_of, project_name
from rocwheel.records.manifest import Manifest

NO_DEPS: Final = "--no-deps"
DEVICE: Final = "device-"  # before a gfx target: an extra of TheRock's rocm, and of our plugin
REQUIREMENTS: Final = "requirements.txt"  # of a wheelhouse: its wheels by hash


def rocm_requirement(version: str, targets: Collection[str]) -> str:
    """Return what brings the ROCm that users of these GPUs need; without targets, of all."""
    # a generic target has no package of its own
    is_exact = targets and not any("generic" in item for item in targets)
    devices = [f"{DEVICE}{item}" for item in (targets if is_exact else ("all",))]
    return f"rocm[{','.join(('libraries', *devices))}]=={version}"


def rocm_extras(version: str, targets: Collection[str]) -> dict[str, str]:
    """Return the extras of a plugin, and what each requires: ROCm for one GPU, or for all."""
    one = {f"{DEVICE}{item}": rocm_requirement(version, (item,)) for item in targets}
    return one | {f"{DEVICE}all": rocm_requirement(version, targets)}


@dataclass(frozen=True, kw_only=True, order=True)
class Package:
    """One project at one version, with the SHA-256 of its files where they are known."""

    project: str
    version: str
    hashes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.project}=={self.version}"

    @property
    def hashed(self) -> str:
        """Return the line of a requirements file that allows these files and no others."""
        return " ".join((str(self), *(f"--hash=sha256:{item}" for item in self.hashes)))


class Install(Plain, frozen=True, kw_only=True):
    """How users install one wheel set: from which index, with which jax, jaxlib and ROCm."""

    index: str  # URL; "" for a wheelhouse
    folder: str = ""  # of a wheelhouse, in which `REQUIREMENTS` lies
    ours: tuple[Package, ...]
    jax: str
    from_commit: str | None = None  # requirement of an unreleased JAX; "" where it has no URL
    upstream: tuple[Package, ...] = ()  # a jaxlib of the package index
    rocm: str = ""  # version
    rocm_url: str = ""  # where the ROCm it was built with came from
    rocm_origin: str = ""  # tarball, directory or pip
    targets: tuple[str, ...] = ()  # gfx targets of the wheels
    extras: tuple[str, ...] = ()  # of the plugin, which bring that ROCm
    pythons: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, manifest: Manifest, index: str, *, targets: tuple[str, ...] = (), folder: str = ""
    ) -> Install:
        """Return the lines for the set of a manifest, from an index or from its wheelhouse.

        `targets` are those of the user's GPUs, if the set has code for more.
        """
        files = defaultdict[tuple[bool, str, str], list[str]](list)
        for wheel in manifest.wheels:
            files[wheel.origin != "built", wheel.project, wheel.version].append(wheel.sha256)
        packages: tuple[list[Package], list[Package]] = ([], [])  # ours, upstream
        for (is_upstream, project, version), hashes in sorted(files.items()):
            package = Package(project=project, version=version, hashes=tuple(sorted(hashes)))
            packages[is_upstream].append(package)
        return cls(
            index=index,
            folder=folder,
            ours=tuple(packages[0]),
            upstream=tuple(packages[1]),
            jax=manifest.jax_version,
            from_commit=jax_from_commit(manifest),
            rocm=manifest.rocm.version,
            rocm_url=manifest.rocm.url,
            rocm_origin=manifest.rocm.origin,
            targets=targets or manifest.gfx_targets,
            extras=tuple(name for wheel in manifest.built for name in wheel.extras or ()),
            pythons=manifest.pythons,
        )

    @classmethod
    def of_version(
        cls,
        project: str,
        version: str,
        index: str,
        *,
        has_jaxlib: bool = False,
        from_commit: str | None = None,
    ) -> Install:
        """Return the lines for plugin and pjrt of a version, given one of the two projects.

        A jaxlib of the set has the same version and is installed with them.
        """
        _, number = kind_of(project) or (None, "")
        pair = (project_name(kind, number) for kind in (WheelKind.PJRT, WheelKind.PLUGIN))
        own = ("jaxlib",) if has_jaxlib else ()
        names = (*pair, *own) if number else (project,)
        return cls(
            index=index,
            ours=tuple(Package(project=name, version=version) for name in names),
            jax=Version(version).base_version,
            from_commit=from_commit,
        )

    @property
    def pip(self) -> tuple[str, ...]:
        ours = self._from_folder or ("--index-url", self.index, *map(str, self.ours))
        return self._lines("pip", "install", ours=(NO_DEPS, *ours))

    @property
    def _from_folder(self) -> tuple[str, ...]:
        if not self.folder:
            return ()
        by_hash = ("--require-hashes", "-r", f"{self.folder}/{REQUIREMENTS}")
        return ("--no-index", "--find-links", self.folder, *by_hash)

    @property
    def uv(self) -> tuple[str, ...]:
        """Return uv's lines for an environment; a project's are in the docs."""
        by_name = ("--default-index", self.index, *map(str, self.ours))
        ours = (NO_DEPS, *(self._from_folder or by_name))
        return self._lines("uv", "pip", "install", ours=ours)

    @property
    def poetry(self) -> tuple[str, ...]:
        """Return the lines that add the set to a Poetry project."""
        return (
            shlex.join(("poetry", "source", "add", "--priority=explicit", "rocm", self.index)),
            *self._lines("poetry", "add", ours=("--source", "rocm", *map(str, self.ours))),
        )

    @property
    def pixi(self) -> str:
        """Return the table of a `pixi.toml`."""
        index = f'index = "{self.index}"'
        ours = (f'{x.project} = {{ version = "=={x.version}", {index} }}' for x in self.ours)
        others = (re.sub("==(.*)", r' = "==\1"', item) for item in self._others)
        jax = r'jax = { git = "\1", rev = "\2" }'
        others = (re.sub(r"jax @ git\+(.*)@(.*)", jax, item) for item in others)
        return _file("[pypi-dependencies]", *ours, *others)

    @property
    def requirements(self) -> str:
        """Return the file of the set's wheels by hash, for every CPython of the set."""
        index = (f"--index-url {self.index}",) if self.index else ()
        return _file(*index, *(item.hashed for item in self.ours))

    @property
    def upstream_requirements(self) -> str:
        """Return the requirements of the package index by hash; "" where the set has all."""
        return _file(*(item.hashed for item in self.upstream))

    @staticmethod
    def by_hash(*files: str) -> tuple[str, ...]:
        """Return pip's lines for files of requirements with hashes."""
        words = ("pip", "install", NO_DEPS, "--require-hashes", "-r")
        return tuple(shlex.join((*words, file)) for file in files)

    def rocm_lines(self) -> dict[str, str]:
        """Return the lines that install the set's ROCm, by way; pip's are for the set's GPUs."""
        lines = {"/opt/rocm": f"# ROCm {self.rocm} in /opt/rocm is found without more"}
        if self.rocm_origin == "pip" and self.rocm_url:
            wanted = rocm_requirement(self.rocm, self.targets)
            devices = [f"{DEVICE}{item}" for item in self.targets or ("all",)]
            plugin = next((item for item in self.ours if item.project.endswith("-plugin")), None)
            if plugin and {*devices} <= {*self.extras}:
                wanted = f"{plugin.project}[{','.join(devices)}]=={plugin.version}"
            lines["pip"] = shlex.join(("pip", "install", "--index-url", self.rocm_url, wanted))
        if self.rocm_origin == "tarball" and self.rocm_url:
            fetch = shlex.join(("curl", "--fail", "--location", self.rocm_url))
            unpack = "sudo tar --extract --gzip --directory /opt/rocm"
            lines["tarball"] = f"sudo mkdir -p /opt/rocm && {fetch} | {unpack}"
        return lines

    def to_json(self) -> dict[str, Any]:
        return {
            "index_url": self.index,
            "jax": self.jax,
            "pythons": list(self.pythons),
            "pip": list(self.pip),
            "uv": list(self.uv),
            "poetry": list(self.poetry),
            "pixi": self.pixi,
            "requirements": self.requirements,
            "upstream_requirements": self.upstream_requirements,
            "rocm": self.rocm_lines() if self.rocm else {},
        }

    @property
    def _others(self) -> tuple[str, ...]:
        jax = f"jax=={self.jax}" if self.from_commit is None else self.from_commit
        return (*((jax,) if jax else ()), *map(str, self.upstream))

    def _lines(self, *command: str, ours: tuple[str, ...]) -> tuple[str, ...]:
        """Return the line of the set's own wheels, and that of the others where there are some."""
        others = self._others
        if command[0] == "poetry":  # which takes a digit after `@` for a version
            others = tuple(item.removeprefix("jax @ ") for item in others)
        return tuple(shlex.join((*command, *words)) for words in (ours, others) if words)


def jax_from_commit(manifest: Manifest) -> str | None:
    """Return what pip takes the JAX of a set by; None for a release, "" where it has no address."""
    if not manifest.jax.commit:
        return ""
    versions = {wheel.version for wheel in manifest.built}
    if not any(re.search(r"[+.]jax[0-9a-f]{9}\b", version) for version in versions):
        return None
    url = manifest.jax.repository
    return f"jax @ git+{url}@{manifest.jax.commit}" if url.startswith("https://") else ""


def _file(*lines: str) -> str:
    return "".join(f"{line}\n" for line in lines)
