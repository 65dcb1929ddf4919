"""The main job, as a new user runs it: real Bazel, real compilers, real pip."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import zipfile
from html import unescape
from pathlib import Path

import pytest

from rocwheel.base import home
from rocwheel.base.errors import HostError
from rocwheel.base.values import replace
from rocwheel.tools.demo import miniature

CODE = re.compile(r"<code tabindex=0>(.*?)</code>", re.DOTALL)
pytestmark = [
    pytest.mark.needs("bazel", "clang-19", "cc"),
    pytest.mark.xdist_group("demo"),
]


def test_it_ends_with_a_complete_wheelhouse_that_pip_installed(demo):
    world, done = demo
    document = done.document
    house = world.wheelhouse / document["manifest_sha256"][:12]
    assert document["wheelhouse"] == str(house)
    assert (world.wheelhouse / "current").resolve() == house.resolve()
    files = {path.name for path in house.iterdir()}
    names = {wheel["filename"] for wheel in document["wheels"]}
    assert files == names | {"manifest.json", "build.json", "requirements.txt"}
    pythons = [item["python"] for item in document["installed"]]
    assert pythons
    assert len(names) == 2 * len(pythons) + 1
    kinds = sorted({wheel["kind"] for wheel in document["wheels"]})
    assert kinds == ["jaxlib", "pjrt", "plugin"]
    assert all("jax_plugins.xla_rocm7" in item["modules"] for item in document["installed"])
    assert document["index"].startswith("file:///")
    assert "--require-hashes" in document["pip"]
    assert document["pip"] in done.stderr
    assert "<html" in Path(document["page"]).read_text()


def test_the_manifest_is_what_is_there(demo):
    world, done = demo
    house = world.wheelhouse / "current"
    data = (house / "manifest.json").read_bytes()
    assert hashlib.sha256(data).hexdigest() == done.document["manifest_sha256"]
    manifest = json.loads(data)
    for wheel in manifest["wheels"]:
        path = house / wheel["filename"]
        assert path.stat().st_size == wheel["size"]
        assert hashlib.sha256(path.read_bytes()).hexdigest() == wheel["sha256"]
        with zipfile.ZipFile(path) as archive:
            assert archive.testzip() is None
    asked = sorted(manifest["gfx_targets"])
    assert {tuple(w["gfx_targets"]) for w in manifest["wheels"] if w["kind"] != "jaxlib"} == {
        tuple(asked)
    }
    assert str(world.folder) not in data.decode(), "a manifest says nothing of this machine"
    record = json.loads((house / "build.json").read_bytes())
    assert record["manifest"] == done.document["manifest_sha256"]
    assert record["bazel"]["invocations"]


def test_bazel_is_asked_once_for_plugin_and_pjrt_and_pjrt_once_in_all(demo):
    world, done = demo
    record = json.loads((world.wheelhouse / "current" / "build.json").read_bytes())
    lines = [item["command"] for item in record["bazel"]["invocations"]]
    pythons = len(done.document["installed"])
    assert len(lines) == 2 * pythons
    assert "jax_rocm_plugin_wheel" in lines[0]
    assert "jax_rocm_pjrt_wheel" in lines[0]
    assert sum("jax_rocm_pjrt_wheel" in line for line in lines) == 1
    jaxlib = [line for line in lines if "jaxlib_wheel" in line]
    assert len(jaxlib) == pythons
    assert not any("ROCM" in line or "config=rocm" in line for line in jaxlib)


def test_the_gate_lets_the_demos_wheels_through(demo):
    world, done = demo
    gated = world.run(
        "gate", "--json", "--wheels=wheelhouse/current", "--suite=miniature",
        "--family=gfx94X-dcgpu", f"--python={done.document['installed'][0]['python']}",
    )  # fmt: skip
    assert gated.returncode == 0, gated.stderr[-4000:]
    assert gated.document["state"] == "pass"
    assert gated.document["counts"]["passed"] == 6


def test_a_second_run_is_a_night_with_nothing_to_do_and_says_so_in_folded_groups(demo):
    world, first = demo
    again = world.run("--json", "demo", GITHUB_ACTIONS="true")
    assert again.returncode == 0, again.stderr[-4000:]
    assert again.document["manifest_sha256"] == first.document["manifest_sha256"]
    assert again.document["new"] is False
    cells = len(first.document["installed"]) + 2  # all but the page and what retention prunes
    assert f": 2 cells, {cells} done before" in again.stderr
    assert again.stderr.count("::group::") == again.stderr.count("::endgroup::") >= 4
    assert world.unfinished() == []


def test_a_wheelhouse_that_is_gone_is_built_again_from_what_bazel_kept(demo):
    world, first = demo
    house = Path(first.document["wheelhouse"])
    shutil.rmtree(house)
    again = world.run("--json", "demo", "--wheels-only")
    assert again.returncode == 0, again.stderr[-4000:]
    assert again.document["bazel"]["actions_executed"] == 0
    assert again.document["manifest_sha256"] == first.document["manifest_sha256"]


@pytest.mark.soak
def test_a_night_builds_a_wheelhouse_that_is_gone_again(demo):
    world, first = demo
    house = Path(first.document["wheelhouse"])
    shutil.rmtree(house)
    again = world.run("--json", "demo")
    assert again.returncode == 0, again.stderr[-4000:]
    assert again.document["wheelhouse"] == str(house)
    assert (house / "manifest.json").is_file()


def test_its_night_is_one_that_the_commands_of_nights_know(demo):
    world, first = demo
    store = f"--store={(world.wheelhouse / 'demo' / 'store').as_uri()}"
    done = world.run("--json", "nightly", "status", first.document["night"], store)
    assert done.returncode == 0, done.stderr
    assert {cell["state"] for cell in done.document["cells"]} == {"pass"}
    page = Path(first.document["page"])
    assert "Released: JAX 0.11.99" in page.read_text()


def test_every_line_on_the_pages_of_its_index_installs_what_it_names(demo, tmp_path):
    world, _ = demo
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path], check=True)
    pip = tmp_path / "bin" / "pip"  # ours: ensurepip takes ten seconds
    pip.write_text(f'#!/bin/sh\nexec {sys.executable} -m pip --python {tmp_path}/bin/python "$@"\n')
    pip.chmod(0o755)
    every = sorted((world.wheelhouse / "demo" / "store" / "v2").rglob("index.html"))
    assert len(every) == 12, "of the family, of its night, of the last good set"
    pages = [page for page in every if not {"nights", "last-good"} & {*page.parts}]
    texts = [unescape(code) for page in pages for code in CODE.findall(page.read_text("utf-8"))]
    assert len(texts) == len(pages) >= 4  # one for each index and each of its projects
    env = {**world.env, "PATH": f"{pip.parent}:/usr/bin:/bin", "PIP_FORCE_REINSTALL": "1"}
    for text in texts:
        ran = subprocess.run(
            ["sh", "-ec", text], env=env, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, f"{text}\n{ran.stderr}"


@pytest.mark.soak
def test_wheels_are_the_same_bytes_from_another_cache_and_folder(demo, tmp_path):
    """Two builds of one input, nothing shared between them."""
    from e2e.conftest import World, stop_servers

    _, first = demo
    other = World(tmp_path)
    python = first.document["installed"][0]["python"]
    again = other.run("--json", "demo", "--wheels-only", f"--python-versions={python}")
    stop_servers(other)
    assert again.returncode == 0, again.stderr[-4000:]
    known = {wheel["filename"]: wheel["sha256"] for wheel in first.document["wheels"]}
    made = {wheel["filename"]: wheel["sha256"] for wheel in again.document["wheels"]}
    assert len(made) == 3
    assert made == {name: known[name] for name in made}
    assert again.document["bazel"]["actions_executed"] > 0


def test_the_log_is_plain_lines_with_the_time_of_each_step(demo):
    _, done = demo
    assert "\x1b" not in done.stderr
    for title in ("Make a ROCm tarball", f"Night {done.document['night']}", "Install with pip"):
        assert re.search(rf"done in \d+\.\d s: {title}", done.stderr), title
    assert re.search(r"build\.miniature: done after", done.stderr)
    assert set(done.document["seconds"]) >= {"tarball", "night", "install"}


def test_json_is_the_only_thing_on_stdout_and_a_plain_run_prints_the_manifest(demo):
    world, done = demo
    assert done.stdout.startswith("{")
    plain = world.run("-q", "demo")
    assert plain.stdout.strip() == done.document["manifest"]
    assert all(line.startswith("warning: ") for line in plain.stderr.splitlines())


def test_the_dry_run_names_every_file(demo):
    world, done = demo
    shown = world.run("--dry-run", "demo")
    assert shown.returncode == 0, shown.stderr
    for wheel in done.document["wheels"]:
        stem = wheel["filename"].rpartition("-")[0]
        assert stem in shown.stdout
    assert any("jaxlib_wheel" in line for line in shown.stdout.splitlines())


@pytest.mark.soak
def test_the_commands_of_a_dry_run_work_in_a_shell(demo):
    world, _ = demo
    shown = world.run("--dry-run", "demo")
    pasted = subprocess.run(
        ["sh", "-ec", shown.stdout], capture_output=True, text=True, check=False
    )
    assert pasted.returncode == 0, pasted.stderr[-2000:]


def test_the_wheel_commands_agree_with_the_build(demo):
    world, _ = demo
    done = world.run("wheel", "verify", str(world.wheelhouse / "current"))
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_example_is_named_where_it_is_lacking(tmp_path):
    lacking = replace(home.find(None), root=tmp_path)
    with pytest.raises(HostError, match=re.escape(f"{tmp_path}/examples/miniature: not found")):
        miniature(lacking)
