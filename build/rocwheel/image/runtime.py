"""Makes a runtime image: a plan with the digest of its inputs, then two `build`s.

The first makes base and ROCm, once for all images that share them; the second adds a CPython and
the wheels. Both are found by the digest of their inputs, so unchanged inputs build nothing. The
layer of ROCm is a tar stream that depends on its files alone, so it is the same on every machine.
"""

import os
import shutil
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path, PurePosixPath
from typing import Final

from rocwheel.base import errors, files
from rocwheel.base.container import PLACE, ContainerEngine, scratch
from rocwheel.base.container.spec import LABEL
from rocwheel.base.errors import HostError
from rocwheel.base.here import Here
from rocwheel.base.process import Command
from rocwheel.base.values import Plain
from rocwheel.base.versions import PythonVersion
from rocwheel.image import build
from rocwheel.image.build import OCI, Made, engine_build, named
from rocwheel.image.closure import Closure, PackagePin, Where, gather
from rocwheel.image.recipe import (
    RUNTIME,
    SCRIPT,
    ImagedSet,
    RuntimeBase,
    RuntimeRecipe,
    inputs_digest,
)
from rocwheel.image.registry import INPUTS, Found, inspect
from rocwheel.records.manifest import Manifest
from rocwheel.rocm import RocmRoot

PREFIX: Final = PurePosixPath("opt/rocm")
TIME: Final = 315532800  # 1980-01-01, of every member of the layer
LOCAL: Final = "localhost/rocwheel-runtime"
PYTHON: Final = "/opt/venv/bin/python"  # of the image
MANIFEST: Final = f"{LABEL}.manifest"
RELEASED: Final = f"{LABEL}.released"


class Subject(Plain, frozen=True, kw_only=True):
    """The wanted image."""

    recipe: RuntimeRecipe
    base: RuntimeBase
    manifest: Manifest
    family: str
    python: PythonVersion
    profile: str
    is_released: bool

    @property
    def repository(self) -> str:
        """The repository: a set that is only staged never goes where released ones are."""
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

    @property
    def budget(self) -> int:
        """MiB that it may weigh."""
        return int(getattr(self.recipe.budgets, self.profile))


class ImagePlan(Plain, frozen=True, kw_only=True):
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
        return inputs_digest(
            base=self.base.config,
            packages=list(self.subject.base.packages),
            rocm=self.rocm.sha256,
            files=list(self.closure.paths),
            dockerfile=files.sha256(self.docker / RUNTIME),
            script=files.sha256(self.docker / SCRIPT),
        )

    @property
    def digest(self) -> str:
        """Of all inputs."""
        python = self.subject.python
        return inputs_digest(
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


def commands(
    plan: ImagePlan, context: Path, *, base: str, engine: ContainerEngine, network: str
) -> Iterator[Command]:
    """Yield the engine's two `build`s; `base` is a name that the base has."""
    subject, manifest = plan.subject, plan.subject.manifest
    yield engine_build(
        engine, context / RUNTIME, target="rocm", tag=plan.rocm_image, network=network,
        arguments={"BASE": base, "PACKAGES": " ".join(subject.base.packages)},
        labels={INPUTS: plan.rocm_digest},
    )  # fmt: skip
    yield engine_build(
        engine, context / RUNTIME, target="runtime", tag=plan.image, network=network,
        arguments={
            "BASE": base,
            "ROCM": plan.rocm_image,
            "PYTHON": f"/usr/bin/python{subject.python.major}.{subject.python.minor}",
            "PYTHON_PACKAGES": " ".join(subject.base.python(subject.python)),
        },
        labels={
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
        },
    )  # fmt: skip


def make(plan: ImagePlan, engine: ContainerEngine, here: Here, *, network: str) -> Made:
    """Make the image, unless the engine has it. Raises HostError as `build.make` does."""
    builds, what = _builds(plan, engine, here, network), plan.subject.reference
    return build.make(plan.image, plan.digest, builds, engine, here, what=what, base=plan.base)


@contextmanager
def _builds(
    plan: ImagePlan, engine: ContainerEngine, here: Here, network: str
) -> Iterator[Sequence[Command]]:
    runner = here.runner
    has_rocm = inspect(plan.rocm_image, engine=engine, runner=runner) is not None
    # A stage that is not built still needs the name of an image that exists.
    base_of = (
        nullcontext(plan.rocm_image) if has_rocm else named(plan.base, engine=engine, runner=runner)
    )
    with scratch(here.cache / PLACE, "context") as context, base_of as base:
        for file in (RUNTIME, SCRIPT):
            shutil.copy(plan.docker / file, context / file)
        gather(context / "wheels", plan.wheels, plan.pins, plan.where, runner=runner)
        if not has_rocm:
            write_layer(context / "rocm.tar", plan.rocm.root, plan.closure)
        both = tuple(commands(plan, context, base=base, engine=engine, network=network))
        yield both[1:] if has_rocm else both


def write_layer(target: Path, root: Path, closure: Closure) -> None:
    """Write the layer of these files. Raises HostError for a full disk.

    Members are sorted, root's, of one time, executable or not; folders come before what is in them.
    """
    folders: set[PurePosixPath] = set()
    hint = f"free {closure.size >> 20} MiB where TMPDIR points"
    with (
        errors.named(target, HostError, hint=hint),
        tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in closure.paths:
            inside = PREFIX / path
            for folder in reversed(inside.parents[:-1]):
                if folder not in folders:
                    folders.add(folder)
                    archive.addfile(_info(str(folder), tarfile.DIRTYPE, 0o755))
            _copy(archive, root / path, str(inside))


def _copy(archive: tarfile.TarFile, source: Path, name: str) -> None:
    if source.is_symlink():
        archive.addfile(_info(name, tarfile.SYMTYPE, 0o777, link=str(source.readlink())))
        return
    with source.open("rb") as stream:
        status = os.fstat(stream.fileno())
        info = _info(name, tarfile.REGTYPE, 0o755 if status.st_mode & 0o111 else 0o644)
        info.size = status.st_size
        archive.addfile(info, stream)


def _info(name: str, kind: bytes, mode: int, *, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.mtime, info.linkname = kind, mode, TIME, link
    return info
