"""`serve`, and what stops it or the gate: what a person sees of an index on this machine."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from support.wheelset import FAMILY, Shop, make_set

PROGRAM = (sys.executable, str(Path(__file__).parents[2] / "build" / "ci_build"))


@pytest.fixture
def shop(tmp_path, console):
    found = Shop((tmp_path / "store").as_uri(), console)
    found.released(tmp_path / "set")
    return found


@pytest.fixture
def served(shop, tmp_path):
    """`serve` on a free port, as a process; its lines on stdout."""
    process = subprocess.Popen(
        [
            *PROGRAM,
            "index",
            "serve",
            "--port=0",
            f"--family={FAMILY.name}",
            f"--store={shop.store.url}",
        ],
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    process.lines = [process.stdout.readline().strip() for _ in range(3)]
    yield process
    process.kill()
    process.communicate()


def read(url):
    with urllib.request.urlopen(url, timeout=240) as answer:
        return answer.read().decode()


def test_the_line_that_serve_prints_can_be_pasted(served, tmp_path):
    released, line, others = served.lines
    assert released == "# released:"
    wanted = r"pip install --no-deps --index-url http://\S+ .*jax-rocm7-plugin==\S+ jaxlib==\S+"
    assert re.fullmatch(wanted, line), line
    assert re.fullmatch(r"pip install jax==\S+", others)
    target = [
        "--target",
        str(tmp_path / "in"),
        "--isolated",
        "--disable-pip-version-check",
    ]
    words = shlex.split(line)
    target += ["--python-version", "3.11", "--only-binary=:all:"]
    subprocess.run(
        [sys.executable, "-m", *words, *target], check=True, capture_output=True, timeout=400
    )
    assert list((tmp_path / "in").glob("jax_rocm7_plugin*"))


def test_the_root_is_a_page_and_no_page_names_a_folder(served):
    base = re.search(r"http://[^/]+/", served.lines[1])[0]
    root = read(base)
    (first, *_) = re.findall(r'href="/([^"]+)"', root)
    index = read(base + first)
    project = read(f"{base}{first}jax-rocm7-plugin/")
    for page in (root, index, project):
        assert "file://" not in page
    assert f"{base}{first}" in project
    other = urllib.request.Request(
        f"{base}{first}jax-rocm7-plugin/", headers={"Host": "wheels.example.com"}
    )
    assert f"http://wheels.example.com/{first}" in read(other)
    odd = urllib.request.Request(base + first, headers={"Host": '"><script>'})
    assert "<script>" not in read(odd)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_serve_with_a_sentence(served, number):
    served.send_signal(number)
    _, err = served.communicate(timeout=240)
    assert re.fullmatch(r"stopped serving http://\S+\n", err)
    assert served.returncode == 0


def test_a_blocked_promote_says_first_what_blocks_and_copies_nothing(tmp_path, console):
    other = Shop((tmp_path / "other").as_uri(), console)
    wheelhouse = tmp_path / "second"
    make_set(wheelhouse)
    other.stage(wheelhouse)
    for more in ((), ("--dry-run",)):
        done = subprocess.run(
            [*PROGRAM, "promote", f"--manifest={wheelhouse}", f"--family={FAMILY.name}",
             f"--store={other.store.url}", *more],
            env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 9
        said = (done.stdout if more else done.stderr).splitlines()
        assert said[0].startswith("manifest ")
        assert said[1].startswith("BLOCKS   ")
        assert not any("copy" in line or ".whl" in line for line in said)
