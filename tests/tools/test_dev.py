"""The developer's loop: one command builds, installs and tests; the next one only what changed."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import bazel_bench, tarballs, toy

pytestmark = [pytest.mark.integration, pytest.mark.needs("bazel"), pytest.mark.xdist_group("bazel")]

ROOT = Path(__file__).parents[2]
SOURCES = "jaxlib/tools/src"

# of Debian's Bazel, which names its modules there
DEBIAN_RC = Path("/etc/bazel/bazelrc")
DEBIAN = (f"--bazel-startup-options=--bazelrc={DEBIAN_RC}",) if DEBIAN_RC.is_file() else ()


class Desk:
    """A developer's folders; `ci_build` is run as a developer runs it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.jax = toy.make(folder / "jax")
        self.xla = folder / "xla"
        (self.xla / "xla").mkdir(parents=True)
        self.rocm = tarballs.rocm_folder(folder / "rocm")
        self.environment = folder / "venv"
        subprocess.run([sys.executable, "-m", "venv", self.environment], check=True)
        site = next((self.environment / "lib").glob("python3*/site-packages"))
        here = next(path for path in map(Path, sys.path) if (path / "pytest").is_dir())
        (site / "tools.pth").write_text(str(here))  # pytest and setuptools, not installed again

    def ci_build(self, *arguments: object, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, ROOT / "build" / "ci_build", *map(str, arguments)],
            cwd=self.folder,
            env={**os.environ, "XDG_CACHE_HOME": str(self.folder / "cache"), "XLA_FLAGS": "--x"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0 or not check, done.stderr
        return done

    def dev(self, *arguments: object) -> dict:
        done = self.ci_build(
            "dev",
            "--json",
            f"--environment={self.environment}",
            *self.sources,
            *arguments,
        )
        self.talk = done.stderr
        return json.loads(done.stdout)

    @property
    def sources(self) -> tuple[str, ...]:
        return (
            f"--therock-path={self.rocm}",
            f"--jax-source-dir={self.jax}",
            f"--xla-source-dir={self.xla}",
            "--gfx-targets=gfx942",
            "--compiler=hermetic",
            *DEBIAN,
        )

    def says(self, expression: str) -> str:
        argv = [self.environment / "bin" / "python", "-c", f"print({expression})"]
        return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dev")
    yield Desk(folder)
    for base in folder.glob("cache/rocwheel"):
        bazel_bench.stop(base)


def test_one_command_builds_installs_and_tests_the_next_only_what_changed(desk):
    test = desk.folder / "test_it.py"
    test.write_text(
        "import os, jaxlib\n\ndef test_it():\n    assert jaxlib.host == 1\n"
        "    assert os.environ['XLA_FLAGS'] == '--x'\n"
        f"    assert os.environ['LD_LIBRARY_PATH'].startswith('{desk.rocm}/lib')\n"
    )
    first = desk.dev(f"--test={test}", "--test-option=-p", "--test-option=no:cacheprovider")
    assert len(first["installed"]) == 3
    assert first["tested"]
    assert "1 passed" in desk.talk
    assert desk.says("__import__('jax_rocm7_plugin').kernels") == "1"

    nothing = desk.dev()
    assert (nothing["bazel"]["actions_executed"], nothing["installed"]) == (0, [])
    assert "nothing to rebuild" in desk.talk
    assert "0 of 3 had changed" in desk.talk
    assert "Nothing was rebuilt: Bazel ran 0 actions in 2 invocations." in desk.talk

    (desk.jax / SOURCES / "kernels.txt").write_text("kernels = 2\n")
    touched = desk.dev()
    assert touched["bazel"]["actions_executed"] == 2
    assert "slowest actions:" in desk.talk
    assert [name.partition("-")[0] for name in touched["installed"]] == ["jax_rocm7_plugin"]
    assert desk.says("__import__('jax_rocm7_plugin').kernels") == "2"


def test_only_some_wheels_are_built_on_demand(desk):
    done = desk.dev("--only=jaxlib")
    assert done["bazel"]["invocations"] == 1


def test_a_failing_test_fails_the_command_after_the_install(desk):
    test = desk.folder / "test_fails.py"
    test.write_text("def test_it():\n    assert False, 'told to fail'\n")
    done = desk.ci_build(
        "dev", f"--environment={desk.environment}", f"--test={test}", *desk.sources, check=False
    )
    assert done.returncode == 5
    assert done.stderr.count("Error: told to fail") == 2, "pytest's own two lines, once each"
    assert "error: pytest: a test failed\nhint:  its output is above" in done.stderr
    assert "Traceback" not in done.stderr


def test_configure_writes_an_rc_file_with_which_bazel_by_hand_rebuilds_nothing(desk, tmp_path):
    wheels = desk.ci_build("configure", "--json", "--python-versions=3.12,3.13", *desk.sources)
    document = json.loads(wheels.stdout)
    assert not Path(document["rc_file"]).is_relative_to(desk.jax)
    assert len(document["commands"]) == 4
    shell = {**os.environ, "ROCM_PATH": "/nowhere", "TF_NEED_ROCM": "1", "CC": "/nowhere"}
    for command in document["commands"]:
        assert " && env -i " in command  # whatever the shell has, where it is pasted
        done = subprocess.run(
            ["sh", "-c", command], capture_output=True, text=True, check=False, env=shell
        )
        assert done.returncode == 0, done.stderr
    events = tmp_path / "events.json"
    again = document["commands"][0][1:-1] + f" --build_event_json_file={shlex.quote(str(events))}"
    subprocess.run(["sh", "-c", again], check=True, capture_output=True)
    metrics = [
        line for line in events.read_text().splitlines() if '"buildMetrics":{"action' in line
    ]
    assert '"actionsExecuted":"1"' in metrics[0]  # the stamp, which every build writes


def test_configure_leaves_nothing_in_the_checkout(desk):
    inside = desk.jax / "x.bazelrc"
    done = desk.ci_build("configure", f"--output={inside}", *desk.sources, check=False)
    assert done.returncode == 3
    assert "lies in the checkout" in done.stderr
    assert not inside.exists()


@pytest.mark.soak
def test_the_dry_run_of_configure_pasted_into_a_shell_does_what_the_real_run_does(desk):
    """A ROCm that is not here yet comes too, and its place is in the file Bazel is started with."""
    name = desk.folder / "therock-dist-linux-gfx94X-dcgpu-7.10.0"
    tarball = shutil.make_archive(str(name), "gztar", desk.rocm)
    rc_file = desk.folder / "by hand" / "it's.bazelrc"
    words = (
        "configure", f"--output={rc_file}", "--python-versions=3.12",
        f"--therock-path={tarball}", *desk.sources[1:],
    )  # fmt: skip
    shown = desk.ci_build(*words, "--dry-run").stdout
    assert not rc_file.exists()
    lines = shown.splitlines()
    by_hand = [line for line in lines if " build --config=" in line]
    script = "\n".join(line for line in lines if line not in by_hand)
    done = subprocess.run(["sh", "-e"], input=script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    pasted = rc_file.read_text()
    real = desk.ci_build(*words).stdout
    assert rc_file.read_text() == pasted
    assert by_hand == real.splitlines()
    assert len(by_hand) == 2


def test_a_dry_run_shows_every_command_and_does_nothing(desk):
    (desk.folder / "test_it.py").touch()
    before = sorted(desk.folder.rglob("*"))
    shown = desk.ci_build(
        "dev", "--dry-run", f"--environment={desk.environment}", "--test=test_it.py", *desk.sources
    ).stdout
    assert shown.count(" build --symlink_prefix=/") == 2
    assert "-m pip " in shown
    assert not any("<" in line for line in shown.splitlines() if not line.startswith("#"))
    assert shown.rstrip().endswith("-m pytest " + str(desk.folder / "test_it.py") + ")")
    shown = desk.ci_build("configure", "--dry-run", *desk.sources).stdout
    assert "# write " in shown
    assert "\n  'build:plugin_pjrt_cp310 " in shown
    assert sorted(desk.folder.rglob("*")) == before
