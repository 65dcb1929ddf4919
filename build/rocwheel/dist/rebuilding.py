"""Builds a set again from its manifest, and compares every byte."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import to_builtins

from rocwheel import rocm, source
from rocwheel.base.errors import ConfigError
from rocwheel.base.here import Here
from rocwheel.base.values import Plain, replace
from rocwheel.base.versions import PythonVersion
from rocwheel.dist import build_request, executor
from rocwheel.dist.assemble import Result, build
from rocwheel.dist.build_request import Plan, Request
from rocwheel.dist.executor import BuildEnvironment
from rocwheel.records.manifest import Manifest
from rocwheel.wheel.diff import diff

_SAME: Final = {  # of a manifest's options and of a request's fields
    "target_cpu_features": "cpu_features",
    "bazel_options": "bazel_options",
    "bazel_startup_options": "bazel_startup_options",
}


class Rebuilt(Plain, frozen=True, kw_only=True):
    """A set that was built again, compared with the one before."""

    before: Manifest
    result: Result
    wheels: Mapping[str, tuple[str, ...]]  # those that differ, and in what
    circumstances: tuple[str, ...]  # in which the two builds differ

    @property
    def state(self) -> str:
        return "different" if self.wheels else "reproduced"

    def lines(self) -> Iterator[str]:
        """Yield the comparison for a person."""
        yield from (f"the build: {line}" for line in self.circumstances)
        for name, differences in self.wheels.items():
            yield from (f"{name}: {line}" for line in differences)
        yield f"{self.before.sha256} {self.state}"

    def to_json(self, statement: Path | None) -> dict[str, Any]:
        """Return the comparison for a program."""
        return {
            "state": self.state,
            "manifest": self.before.sha256,
            "rebuilt": self.result.manifest.sha256,
            "wheels": self.wheels,
            "circumstances": self.circumstances,
            "statement": str(statement or ""),
        }


def plan_rebuild(manifest: Manifest, request: Request) -> Plan:
    """Plan to build a set again; `request` says where and with what, the manifest all else.

    ROCm is the recorded one, by digest, unless the request names one. Raises ConfigError for an
    input without an address in the manifest, and what `dist.plan` raises.
    """
    options: Mapping[str, Any] = manifest.options
    if "xla_patches" in options and not request.xla_source_dir:
        raise _unnamed("XLA", manifest.xla.digest or manifest.xla.commit, "--xla-source-dir")
    again = replace(
        request,
        rocm_version=manifest.rocm.version,
        families=manifest.families,
        gfx_targets=manifest.gfx_targets,
        pythons=tuple(map(PythonVersion.parse, manifest.pythons)),
        jaxlib="built" if any(w.kind == "jaxlib" for w in manifest.built) else "upstream",
        compiler=options.get("compiler", request.compiler).partition(" ")[0],
        wheel_suffix=_asked_suffix(manifest),
        **{field: options[name] for name, field in _SAME.items() if name in options},
        **({} if request.jax_source_dir else _jax(manifest, request.home.ci)),
    )
    recorded = None
    if not request.therock:
        cache = request.rocm_cache or request.cache
        recorded = rocm.recorded(manifest.rocm, cache=cache, option="--therock-path")
    return build_request.plan(again, recorded=recorded)


def _asked_suffix(manifest: Manifest) -> str:
    """Return the suffix without the part of its sources, `SourceTree.local_suffix`."""
    jax, xla = manifest.jax, manifest.xla
    marks = rf"([.+]jax{jax.commit[:9]})?([.+]xla{(xla.commit or xla.digest)[:9]})?"
    marks += r"([.+]dirty)?" if jax.dirty or xla.digest else ""
    return re.sub(rf"{marks}\Z", "", str(manifest.options.get("wheel_suffix", "")), count=1)


def _jax(manifest: Manifest, ci: Path) -> dict[str, Any]:
    jax = manifest.jax
    pins = source.load_pins(ci / "pins.yaml", layouts=source.load_layouts(ci / "layouts.yaml"))
    own = next((pin.name for pin in pins.pins if pin.commit == jax.commit), "")
    if jax.dirty or not (own or (jax.commit and jax.repository)):
        raise _unnamed("JAX", jax.digest or jax.commit, "--jax-source-dir")
    like = next((pin.name for pin in pins.pins if pin.name == manifest.jax_version), "")
    ref = {} if own else {"jax_ref": jax.commit, "jax_repository": jax.repository}
    return {"jax_version": own or like, "allow_unverified_pin": True, **ref}


def _unnamed(what: str, identity: str, option: str) -> ConfigError:
    problem = f"the manifest does not say where the files of its {what} are: {identity[:12]}"
    return ConfigError(problem, hint=f"name their folder: {option}")


def rebuild(
    manifest: Manifest,
    path: Path,
    planned: Plan,
    here: Here,
    *,
    place: BuildEnvironment | None = None,
) -> Rebuilt:
    """Build a set again and compare it with its wheels at `path`, or with their digests alone.

    Raises ConfigError for another builder image, and what `dist.build` raises.
    """
    place = place or executor.choose(planned.request, here)
    if place.builder_image != manifest.builder_image:
        own, its = (text or "none" for text in (place.builder_image, manifest.builder_image))
        hint = "give --executor and --builder-image as the set had them"
        raise ConfigError(f"the builder image is {own}, that of the set {its}", hint=hint)
    result = build(planned, here, place=place)
    old, new = ({w.filename: w.sha256 for w in m.built} for m in (manifest, result.manifest))
    wheels: dict[str, tuple[str, ...]] = {}
    for name in sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name)):
        paths = (path if path.is_dir() else path.parent) / name, result.wheelhouse / name
        differences = map(str, diff(*paths)) if all(path.is_file() for path in paths) else ()
        wheels[name] = tuple(differences) or (f"{old.get(name)} -> {new.get(name)}",)
    was, now = (dict(_facts(to_builtins(item))) for item in (manifest, result.manifest))
    differ = (name for name in sorted(was.keys() | now.keys()) if was.get(name) != now.get(name))
    circumstances = tuple(f"{name}: {was.get(name)} -> {now.get(name)}" for name in differ)
    return Rebuilt(before=manifest, result=result, wheels=wheels, circumstances=circumstances)


def _facts(document: Mapping[str, Any], start: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in document.items():
        if isinstance(value, dict):
            yield from _facts(value, f"{start}{name}.")
        elif name != "wheels":
            yield start + name, value
