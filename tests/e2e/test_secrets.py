"""A marked secret in every place of a build that takes one; then everything written is searched."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rocwheel.download import has_secret, shown

ROOT = Path(__file__).parents[2]
SECRET = "s3cr3t-m4rk"
TARBALL = "therock-dist-linux-gfx94X-dcgpu-7.10.0.tar.gz"
PLACES = [
    f"--therock-path=http://me:{SECRET}@127.0.0.1:9/{TARBALL}",
    f"--therock-path=http://127.0.0.1:9/{TARBALL}?X-Signature={SECRET}",
    f"--remote-cache=https://me:{SECRET}@127.0.0.1:9",
    f"--remote-cache=https://{SECRET}@127.0.0.1:9",
    f"--remote-cache=ftp://{SECRET}@127.0.0.1:9",
    f"--remote-executor=grpcs://{SECRET}@127.0.0.1:9",
    f"--bazel-mirror=ftp://me:{SECRET}@127.0.0.1:9",
    f"--bazel-mirror=https://{SECRET}@127.0.0.1:9",
    f"--bazel-proxy=http://me:{SECRET}@127.0.0.1:9",
    f"--xla-repo=https://me:{SECRET}@127.0.0.1:9/xla",
    f"--bazel-options=--remote_header=Authorization=Bearer {SECRET}",
    f"--bazel-options=--remote_cache=https://me:{SECRET}@127.0.0.1:9",
    f"--bazel-startup-options=--bes_header=x-token={SECRET}",
]
COMMANDS = {
    "dry run": ("dist_wheels", "--dry-run"),
    "real run": ("dist_wheels",),
    "json": ("dist_wheels", "--json"),
    "debug": ("dist_wheels", "--debug"),
    "configure": ("configure",),
    "fetch": ("fetch_rocm",),
}


@pytest.mark.parametrize("how", COMMANDS)
@pytest.mark.parametrize("place", PLACES)
def test_no_secret_is_written_anywhere(tmp_path, place, how):
    if how == "fetch" and "therock" not in place:
        pytest.skip("fetch_rocm has no such option")
    rest = [] if "therock" in place else [f"--therock-path=http://127.0.0.1:9/{TARBALL}"]
    rest += ["--xla-ref=main"] if "xla" in place else []
    done = subprocess.run(
        [sys.executable, str(ROOT / "build" / "ci_build"), *COMMANDS[how], place, *rest],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "NO_PROXY": "*"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    said = done.stdout + done.stderr
    assert SECRET not in said, said
    assert "Traceback" not in said or how == "debug", said
    for path in tmp_path.rglob("*"):
        if path.is_file():
            assert SECRET.encode() not in path.read_bytes(), path


def test_what_is_kept_of_a_command_line_has_no_credentials():
    line = ("ci_build", f"--remote-cache=https://a:{SECRET}@host/x", "--bazel-options",
            f"--remote_header=Authorization=Bearer {SECRET}", "--jobs=3")  # fmt: skip
    kept = shown(line)
    assert SECRET not in " ".join(kept)
    assert kept[1] == "--remote-cache=https://host/x"
    assert kept[3:] == ("--remote_header=[redacted]", "--jobs=3")
    assert not has_secret("--config=rocm")
    assert not has_secret("--remote_cache=https://host")
