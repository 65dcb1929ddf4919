"""JAX's own graph: Bazel 7.7 loads and analyses it with the product's own line, and builds nothing.

PyPI is asked for the wheels of JAX's lock file. All else the folder of checkouts has: clones by their
names (abseil-cpp, bazel-skylib, protobuf, …), llvm-project as a clone or as the unpacked source of a
distribution, python-3.12.tar.gz with a prefix `python`. Of what it lacks there are stubs, which the
table at the end lists, and the rules download a CPython.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from pathlib import Path

import graph
import pytest
from checkouts import FOLDER, PINS, Commit
from support import bazel7
from test_options import gathered_folder

from rocwheel import bazel, dist
from rocwheel.base.console import silent
from rocwheel.base.here import Here
from rocwheel.base.process import HostRunner, base_env
from rocwheel.base.values import replace
from rocwheel.base.versions import PythonVersion, WheelKind

pytestmark = [
    pytest.mark.needs("mmdebstrap", "unshare", "chroot", "patch"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for mounts and chroot"),
    pytest.mark.xdist_group("bazel 7"),
]


def own_python(version: str) -> tuple[str, ...]:
    """Options by which the rules take a CPython of the folder of checkouts, if it has one."""
    packed = FOLDER / f"python-{version}.tar.gz"
    if not packed.is_file():
        return ()
    names = {"URL": packed.as_uri(), "SHA256": hashlib.sha256(packed.read_bytes()).hexdigest()}
    return tuple(f"--repo_env=HERMETIC_PYTHON_{name}={text}" for name, text in names.items())


@pytest.mark.parametrize(("release", "python"), [("0.11.0", "3.12")])
def test_the_plugin_of_jax_analyses_as_planned(
    release: str, python: str, therock: Path, tmp_path: Path, matrix: list
) -> None:
    commit = Commit("jax", PINS[release]["commit"])
    if not commit.is_here() or not commit.xla.is_here():
        pytest.skip(f"the folder of checkouts has no JAX {release}, or not its XLA")
    kinds, stand_ins = graph.furnish(commit, tmp_path / "graph")
    (tmp_path / "bazel7.bazelrc").write_text(bazel7.RC)
    label = bazel7.label(tmp_path)
    planned, _, spec, _ = gathered_folder(
        graph.checked_out(commit, tmp_path / "jax"),
        tmp_path,
        therock=str(therock),
        rocm_version="7.12.0",
        pythons=(PythonVersion.parse(python),),
        bazel_path=str(bazel7.program(tmp_path)),
        bazel_startup_options=(f"--bazelrc={tmp_path}/bazel7.bazelrc", label),
    )
    asked = planned.request
    runner = HostRunner(base_env(os.environ))
    here = Here(
        environ=asked.environ, cwd=tmp_path, cache=asked.cache, home=asked.home, console=silent(),
        runner=runner,
    )  # fmt: skip
    printed = "\n".join(dist.dry_run(planned, here))
    options = (*spec.options, *stand_ins, *own_python(python))
    line = bazel.invocations(spec)[0]
    assert " ".join(line.recipe) in printed.replace("'", "")  # what is analysed is what is printed
    plugin = replace(line, kinds=(WheelKind.PLUGIN,), spec=replace(spec, options=options))
    about = {"runner": runner, "console": silent()}
    try:
        _, needed = bazel.fetch(plugin, folder=tmp_path / "logs", **about)
        cost = list(bazel.price(plugin, **about))
        (target,) = plugin.targets.values()
        ask = ("aquery", *plugin.options, f'mnemonic("BuildJaxWheel", {target})')
        action = runner.capture(plugin.ask(*ask))
    finally:
        bazel.shutdown(plugin, runner=runner)

    (wheel,) = set(re.findall(r"jax_rocm7_plugin-[\w.+-]+\.whl", action))
    assert re.sub(r"\w+\.whl$", "<platform>.whl", wheel) in printed
    for argument in (f"jaxlib_git_hash={commit.name}", "enable-rocm=True", "platform_version=7"):
        assert f"'--{argument}'" in action
    external = Path(str(plugin.spec.output_base)) / "external"
    assert '"gfx942"' in (external / "local_config_rocm/rocm/build_defs.bzl").read_text()
    assert {each.role for each in needed} == {"fetched", "configured"}
    assert int(re.search(r"([\d,]+) CppCompile", cost[1])[1].replace(",", "")) >= 4_000
    used = sorted(kinds.keys() & {path.name for path in external.iterdir() if path.is_dir()})
    counts = ", ".join(f"{n} {kind}" for kind, n in Counter(kinds[name] for name in used).items())
    stubs = ", ".join(name for name in used if kinds[name] == "stub")
    said = f"{cost[0]}; archives: {counts}; stubs: {stubs}; {len(needed)} repositories listed"
    matrix.append((f"jax {release}", f"plugin, CPython {python}", "proved: analyses", said))
