"""Making a runtime image: a plan with the digest of all it is made from, then two `build`s.

The first makes base and ROCm, once for all images that share them; the second adds a CPython and
the wheels. Both are recalled by the digest of their inputs, so unchanged inputs build nothing.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rocwheel import files
from rocwheel.console import Console
from rocwheel.container import ContainerEngine, EngineKind, scratch
from rocwheel.container.spec import LABEL
from rocwheel.errors import ConfigError, HostError
from rocwheel.image.building import OCI, engine_build, named, run_build
from rocwheel.image.found import INPUTS, Found, inspect
from rocwheel.manifest import Manifest
from rocwheel.model import PythonVersion
from rocwheel.process import Command, HostRunner
from rocwheel.rocm import RocmRoot
from rocwheel.runtime import closure, layer, packages
from rocwheel.runtime.closure import Closure
from rocwheel.runtime.image_recipe import ImagedSet, RuntimeBase, RuntimeRecipe
from rocwheel.runtime.packages import PackagePin, Where
from rocwheel.values import canonical_json
from rocwheel.wheel.inspect import WheelReport

DOCKERFILE: Final = "runtime.Dockerfile"
SCRIPT: Final = "install.sh"
LOCAL: Final = "localhost/rocwheel-runtime"
PYTHON: Final = "/opt/venv/bin/python"  # of the image
MANIFEST: Final = f"{LABEL}.manifest"
RELEASED: Final = f"{LABEL}.released"
LAYERS: Final = ("base", "rocm", "cpython", "wheels")


@dataclass(frozen=True, kw_only=True)
class Subject:
    """Which image is wanted."""

    recipe: RuntimeRecipe
    base: RuntimeBase
    manifest: Manifest
    family: str
    python: PythonVersion
    profile: str
    is_released: bool

    @property
    def repository(self) -> str:
        """A set that is only staged never goes where released ones are."""
        return self.recipe.repository if self.is_released else self.recipe.unreleased

    @property
    def tag(self) -> str:
        wheels = ImagedSet(
            set_id=self.manifest.sha256,
            jax=self.manifest.jax_version,
            rocm=self.manifest.rocm.version,
            family=self.family,
        )
        return self.recipe.tag_of(wheels, self.python, self.base, self.profile)

    @property
    def reference(self) -> str:
        return f"{self.repository}:{self.tag}"


@dataclass(frozen=True, kw_only=True)
class ImagePlan:
    """Everything an image is made from."""

    subject: Subject
    base: Found
    rocm: RocmRoot
    closure: Closure
    wheels: Mapping[Path, str]  # of the set, for this CPython -> SHA-256
    pins: tuple[PackagePin, ...]
    where: Where
    docker: Path  # the folder with Dockerfile and script
    tool: str  # our commit

    @property
    def rocm_digest(self) -> str:
        """Of base and ROCm, which images share."""
        chosen = self.subject.base
        return _digest(
            base=self.base.config,
            packages=list(chosen.packages),
            rocm=self.rocm.sha256,
            files=list(self.closure.paths),
            dockerfile=files.sha256(self.docker / DOCKERFILE),
            script=files.sha256(self.docker / SCRIPT),
        )

    @property
    def digest(self) -> str:
        """Of all inputs."""
        python = self.subject.python
        return _digest(
            rocm=self.rocm_digest,
            python=[str(python), *self.subject.base.python(python)],
            wheels=[[pin.project, pin.version, pin.sha256] for pin in self.pins],
            manifest=self.subject.manifest.sha256,
            released=str(self.subject.is_released),
        )

    @property
    def rocm_image(self) -> str:
        return f"{LOCAL}-rocm:{self.rocm_digest[:16]}"

    @property
    def image(self) -> str:
        return f"{LOCAL}:{self.digest[:16]}"

    @property
    def interpreter(self) -> str:
        version = self.subject.python
        return f"/usr/bin/python{version.major}.{version.minor}"


@dataclass(frozen=True, kw_only=True)
class MadeImage:
    """A runtime image, whether it had to be made, and what its layers weigh."""

    image: Found
    is_new: bool
    layers: Mapping[str, int]  # of `LAYERS` -> bytes, unpacked


def _digest(**parts: object) -> str:
    return files.sha256(canonical_json(parts))


def files_of(
    profile: str,
    rocm: RocmRoot,
    reports: tuple[WheelReport, ...],
    recipe: RuntimeRecipe,
    manifest: Manifest,
) -> Closure:
    """Return the files of ROCm that a profile holds. Raises RocmError."""
    if profile == "devel":
        return closure.whole(rocm.root)
    return closure.needed(rocm.root, reports, recipe.files, targets=manifest.gfx_targets)


def existing(plan: ImagePlan, *, engine: ContainerEngine, runner: HostRunner) -> Found | None:
    """Find the engine's image of these inputs, by its label and never by its tag."""
    image = inspect(plan.image, engine=engine, runner=runner)
    return image if image and image.labels.get(INPUTS) == plan.digest else None


def commands(
    plan: ImagePlan, context: Path, *, base: str, engine: ContainerEngine, network: str
) -> Iterator[Command]:
    """Yield the engine's two `build`s; `base` is a name that the base has."""
    chosen, subject = plan.subject.base, plan.subject
    yield engine_build(
        engine, context / DOCKERFILE, target="rocm", tag=plan.rocm_image, network=network,
        arguments={"BASE": base, "PACKAGES": " ".join(chosen.packages)},
        labels={INPUTS: plan.rocm_digest},
    )  # fmt: skip
    yield engine_build(
        engine, context / DOCKERFILE, target="runtime", tag=plan.image, network=network,
        arguments={
            "BASE": base,
            "ROCM": plan.rocm_image,
            "PYTHON": plan.interpreter,
            "PYTHON_PACKAGES": " ".join(chosen.python(subject.python)),
        },
        labels=_labels(plan),
    )  # fmt: skip


def _labels(plan: ImagePlan) -> dict[str, str]:
    manifest, subject = plan.subject.manifest, plan.subject
    return {
        INPUTS: plan.digest,
        MANIFEST: manifest.sha256,
        RELEASED: "yes" if subject.is_released else "no",
        f"{LABEL}.profile": subject.profile,
        f"{LABEL}.python": str(subject.python),
        f"{LABEL}.rocm": manifest.rocm.version,
        f"{LABEL}.rocm.sha256": plan.rocm.sha256,
        f"{LABEL}.jax.commit": manifest.jax.commit,
        f"{LABEL}.xla.commit": manifest.xla.commit,
        f"{LABEL}.tool": plan.tool,
        f"{OCI}.title": subject.reference,
        f"{OCI}.version": manifest.jax_version,
        f"{OCI}.revision": manifest.jax.commit,
        f"{OCI}.base.name": plan.base.reference,
        f"{OCI}.base.digest": plan.base.config,
    }


def build(
    plan: ImagePlan,
    *,
    engine: ContainerEngine,
    runner: HostRunner,
    console: Console,
    network: str,
    place: Path,
) -> MadeImage:
    """Make the image, unless the engine has it; its context below `place`.

    Raises HostError for what an engine says of a build that failed. Nothing is tagged unless all
    of it succeeded.
    """
    there = existing(plan, engine=engine, runner=runner)
    if there:
        return MadeImage(image=there, is_new=False, layers=weigh(plan.image, engine, runner))
    has_rocm = inspect(plan.rocm_image, engine=engine, runner=runner)
    # what is not started from needs no name; a stage that is not made has to have some image
    base_of = (
        nullcontext(plan.rocm_image) if has_rocm else named(plan.base, engine=engine, runner=runner)
    )
    with (
        console.step(f"Image {plan.subject.reference}", key="image"),
        _context(plan, place, with_rocm=has_rocm is None, runner=runner) as context,
        base_of as base,
    ):
        first, second = commands(plan, context, base=base, engine=engine, network=network)
        what, on = plan.subject.reference, plan.base.reference
        for command in (second,) if has_rocm else (first, second):
            run_build(command, what, on, runner=runner, console=console)
    made = existing(plan, engine=engine, runner=runner)
    if made is None:
        raise HostError(f"{plan.image}: built, and not there", hint="ask the engine: images")
    return MadeImage(image=made, is_new=True, layers=weigh(plan.image, engine, runner))


@contextmanager
def _context(
    plan: ImagePlan, place: Path, *, with_rocm: bool, runner: HostRunner
) -> Iterator[Path]:
    """Make a folder with everything the Dockerfile reads."""
    with scratch(place, "context") as context:
        for file in (DOCKERFILE, SCRIPT):
            shutil.copy(plan.docker / file, context / file)
        packages.gather(context / "wheels", plan.wheels, plan.pins, plan.where, runner=runner)
        if with_rocm:
            layer.write(context / "rocm.tar", plan.rocm.root, plan.closure)
        yield context


_STEPS: Final = (
    ("wheels", re.compile(r"install\.sh wheels")),
    ("cpython", re.compile(r"install\.sh python")),
    ("rocm", re.compile(r"\b(ADD|COPY)\b")),
)


def weigh(name: str, engine: ContainerEngine, runner: HostRunner) -> dict[str, int]:
    """Return what each layer weighs unpacked, as the engine counts it."""
    weights = dict.fromkeys(LAYERS, 0)
    left = list(_STEPS)  # the engine tells the newest first
    for size, made_by in _history(name, engine, runner):
        kind = "base"
        if left and left[0][1].search(made_by):
            kind = left.pop(0)[0]
        weights[kind] += size
    return weights


def _history(name: str, engine: ContainerEngine, runner: HostRunner) -> Iterator[tuple[int, str]]:
    """Size and command of each step; only Podman's JSON has bytes, only Docker's lines have."""
    asked = ("history", "--no-trunc", "--human=false")
    if engine.kind is EngineKind.PODMAN:
        said = runner.capture(engine.command(*asked, "--format=json", name))
        yield from ((int(item["size"]), str(item["CreatedBy"])) for item in json.loads(said))
        return
    said = runner.capture(engine.command(*asked, "--format={{.Size}}\t{{.CreatedBy}}", name))
    for line in said.splitlines():
        size, _, made_by = line.partition("\t")
        yield int(size) if size.isdigit() else 0, made_by


def refuse_heavy(plan: ImagePlan, made: MadeImage) -> None:
    """Hold an image against its budget. Raises ConfigError with what its layers weigh."""
    profile = plan.subject.profile
    total, most = sum(made.layers.values()), plan.subject.recipe.budgets[profile]
    if total > most:
        listed = ", ".join(f"{name} {size >> 20} MiB" for name, size in made.layers.items())
        raise ConfigError(
            f"{plan.subject.reference}: {total >> 20} MiB, its budget is {most >> 20} ({listed})",
            hint="look at what it holds, or raise `budgets` in ci/images.yaml",
        )
