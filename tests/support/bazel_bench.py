"""A toy workspace with a real Bazel: builds it, changes it, and ends the servers it started."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from support import toy

from rocwheel import bazel, source
from rocwheel.base.console import Console
from rocwheel.base.process import Runner
from rocwheel.base.values import replace
from rocwheel.base.versions import PythonVersion, RocmVersion, WheelKind
from rocwheel.bazel import BazelResult, BuildSpec, Caches

CI = Path(__file__).parents[2] / "ci"
SOURCES = "jaxlib/tools/src"


@dataclass(frozen=True, kw_only=True)
class Bench:
    """A workspace and where its Bazel works."""

    workspace: Path
    spec: BuildSpec
    folder: Path
    runner: Runner
    console: Console

    def build(self, number: int = 0, **changes: object) -> BazelResult:
        return bazel.build(
            self.invocation(number, **changes),
            folder=self.folder / "logs",
            into=self.folder / "out",
            runner=self.runner,
            console=self.console,
        )

    def invocation(self, number: int = 0, **changes: object) -> bazel.BazelInvocation:
        return bazel.invocations(replace(self.spec, **changes))[number]  # type: ignore[arg-type]

    def write(self, name: str, text: str) -> None:
        (self.workspace / SOURCES / name).write_text(text)

    def wipe(self) -> None:
        """Remove the output base, as on a fresh machine; caches stay."""
        invocation = self.invocation()
        bazel.shutdown(invocation, runner=self.runner)
        base = Path(invocation.spec.output_base)
        subprocess.run(["chmod", "-R", "u+w", str(base)], check=False)
        shutil.rmtree(base, ignore_errors=True)


def tree_of(workspace: Path, runner: Runner, console: Console) -> source.SourceTree:
    layouts = source.load_layouts(CI / "layouts.yaml")
    pins = source.load_pins(CI / "pins.yaml", layouts=layouts)
    planned = source.plan(
        source.SourceRequest(jax_source_dir=workspace), pins=pins, cache=workspace
    )
    return source.resolve(planned, pins=pins, runner=runner, console=console)


def make(folder: Path, runner: Runner, console: Console) -> Bench:
    """A bench in `folder`; the workspace is put back to what it was."""
    workspace = toy.make(folder / "workspace")
    rocm = folder / "my rocm"
    rocm.mkdir(exist_ok=True)
    tree = tree_of(workspace, runner, console)
    spec = BuildSpec(
        bazel=bazel.locate(
            None,
            wanted=tree.bazel,
            search_path=os.environ["PATH"],
            workspace=tree.workspace,
            runner=runner,
        ),
        workspace=tree.workspace,
        layout=tree.layout,
        version_class=tree.version_class,
        jax_version=tree.jax_version,
        kinds=(WheelKind.PLUGIN, WheelKind.PJRT, WheelKind.JAXLIB),
        pythons=(PythonVersion(3, 12), PythonVersion(3, 13)),
        rocm=RocmVersion.parse("7.10.0"),
        rocm_root=rocm,
        rocm_number="7",
        gfx_targets=("gfx942",),
        wheel_suffix="+rocm7.10.0",
        startup_options=("--bazelrc=debian.bazelrc",),
        caches=Caches(output_user_root=folder / "bazel", disk=folder / "disk", repository=None),
    )
    return Bench(workspace=workspace, spec=spec, folder=folder, runner=runner, console=console)


def stop(folder: Path) -> None:
    """End the servers below `folder` and make it removable: Bazel's outputs are read-only."""
    for pid_file in folder.glob("bazel/*/server/server.pid.txt"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid_file.read_text()), signal.SIGKILL)
    subprocess.run(["chmod", "-R", "u+w", str(folder)], check=False)
