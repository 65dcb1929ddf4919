"""Bazel's own tests share the gate's GPUs: a real Bazel, whose sandbox is in the way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.needs("bazel"), pytest.mark.slow]

EXECUTABLE = Path(__file__).parents[3] / "build" / "ci_build"
DEBIAN = {
    "rules_java": "/usr/share/bazel/rules/java",
    "rules_proto": "/usr/share/bazel/rules/proto",
    "bazel_skylib": "/usr/share/bazel/tools/skylib",
}
CC = ("binary", "library", "test", "import", "toolchain", "toolchain_suite", "proto_library")
FILES = {
    "workspace/WORKSPACE": "",
    "workspace/BUILD": '[sh_test(name=n, srcs=["t.sh"], size="small") for n in ("one", "two")]\n',
    "workspace/t.sh": """#!/bin/sh
mkdir "$SLOTS/busy" || exit 9
sleep 1
rmdir "$SLOTS/busy"
echo "mask=$CUDA_VISIBLE_DEVICES"
""",
    "rules_cc/WORKSPACE": "",
    "rules_cc/cc/BUILD": "",
    "rules_cc/cc/defs.bzl": "".join(f"cc_{name} = native.cc_{name}\n" for name in CC),
    "coverage/WORKSPACE": "",
    "coverage/BUILD": 'filegroup(name="coverage_report_generator", '
    'visibility=["//visibility:public"])\n',
    "bin/nvidia-smi": "#!/bin/sh\necho '0, GPU-aaa1, 9.0, 81559, NVIDIA H100'\n",
}


def test_tests_of_bazel_wait_for_the_one_gpu_there_is(tmp_path):
    """Without a GPU here, a script answers for nvidia-smi."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for name in ("workspace/t.sh", "bin/nvidia-smi"):
        (tmp_path / name).chmod(0o755)
    slots = Path("/run/lock") / f"rocwheel-{tmp_path.name}-{os.getpid()}"
    repositories = {**DEBIAN, "rules_cc": tmp_path / "rules_cc"}
    repositories["remote_coverage_tools"] = tmp_path / "coverage"
    bazel = ["bazel", f"--output_user_root={tmp_path / 'root'}", "--nohome_rc"]
    options = [f"--override_repository={name}={path}" for name, path in repositories.items()]
    options += [f"--test_env=PATH={tmp_path / 'bin'}:{os.environ['PATH']}", "--jobs=2"]
    options += [f"--test_env=SLOTS={slots}", "--test_output=all", "--symlink_prefix=/"]
    options += [f"--run_under={sys.executable} {EXECUTABLE} gate slot --nvidia --slots {slots} --"]

    def test(*more):
        argv = [*bazel, "test", *options, *more, "//:one", "//:two"]
        return subprocess.run(
            argv, cwd=tmp_path / "workspace", capture_output=True, text=True, check=False
        )

    try:
        done = test()
        if " linux-sandbox" in done.stderr:  # which hides folders; where it cannot be, none is
            assert "--sandbox_writable_path" in done.stdout + done.stderr, done.stderr
            slots.mkdir()
            done = test(f"--sandbox_writable_path={slots}")
        assert done.returncode == 0, done.stdout + done.stderr
        assert (done.stdout + done.stderr).count("mask=GPU-aaa1") == 2
    finally:
        subprocess.run([*bazel, "shutdown"], cwd=tmp_path / "workspace", check=False)
        if slots.exists():
            for path in slots.iterdir():
                path.unlink()
            slots.rmdir()
