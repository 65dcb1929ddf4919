"""A toy workspace with a real Bazel: builds it, changes it, and ends the servers it started."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import replace as changed
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from support import toy

from rocwheel import bazel, source
from rocwheel.base import files
from rocwheel.base.console import Console
from rocwheel.base.errors import BazelError
from rocwheel.base.process import Runner
from rocwheel.base.values import replace
from rocwheel.base.versions import PythonVersion, RocmVersion, WheelKind
from rocwheel.bazel import BazelResult, BuildSpec, Caches
from rocwheel.dist.offline import BLOCK

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


def check_offline(bench: Bench, define: Callable[[str], None]) -> None:
    """Fetch what a wheel is made of, take the server away, and build from what was kept.

    `define` adds the definition of a repository `kernels` to the workspace.
    """
    served = bench.folder / "served"
    served.mkdir(exist_ok=True)
    (served / "kernels.txt").write_text("kernels = fetched\n")
    digest = files.sha256(served / "kernels.txt")
    rules = bench.workspace / "jaxlib/tools/BUILD.bazel"
    own = 'toy_object(name = "kernels", src = "@kernels//file")\n'
    rules.write_text(rules.read_text().replace('"host", "kernels"', '"host"') + own)
    repositories = bench.folder / "repositories"
    config = bench.folder / "no-network.cfg"
    config.write_text(BLOCK)
    caches = replace(bench.spec.caches, disk=None, repository=repositories)
    bench = changed(bench, spec=replace(bench.spec, caches=caches))
    told = {"folder": bench.folder / "logs", "runner": bench.runner, "console": bench.console}
    handler = partial(SimpleHTTPRequestHandler, directory=str(served))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/kernels.txt"
        define(f'http_file(name = "kernels", urls = ["{url}"], sha256 = "{digest}")\n')
        fetched, needs = bazel.fetch(bench.invocation(), **told)
        server.shutdown()
    assert {"sha256": digest} in [known for urls in fetched.values() for known in urls.values()]
    assert url in [url for urls in fetched.values() for url in urls]
    assert any(f"checksum=sha256:{digest}" in each.purl for each in needs)
    bench.wipe()
    blocked = (*bench.spec.options, f"--experimental_downloader_config={config}")
    made = bench.build(options=blocked)
    assert "kernels = fetched" in toy.text_of(made.outputs[WheelKind.PLUGIN])
    files.remove(repositories / "content_addressable" / "sha256" / digest)
    bench.wipe()
    with pytest.raises(BazelError) as caught:
        bench.build(options=blocked)
    assert url in f"{caught.value} {caught.value.detail}"
    assert "blocked" in f"{caught.value} {caught.value.detail}"


def stop(folder: Path) -> None:
    """End the servers below `folder` and make it removable: Bazel's outputs are read-only."""
    for pid_file in folder.glob("bazel/*/server/server.pid.txt"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid_file.read_text()), signal.SIGKILL)
    subprocess.run(["chmod", "-R", "u+w", str(folder)], check=False)
