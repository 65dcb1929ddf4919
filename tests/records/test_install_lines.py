"""The lines that install a set, for each client; `tests/records/test_install_lines_real.py` runs them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.wheelset import make_set

from rocwheel.base.values import replace
from rocwheel.records.install import Install, Package

ROOT = Path(__file__).parents[2]
INDEX = "https://example.com/v2/gfx94X-dcgpu/"
WHEELS = "https://example.com/whl/"
OURS = tuple(
    Package(project=name, version="0.11.0+rocm7.10.0", hashes=("a" * 64, "b" * 64))
    for name in ("jax-rocm7-pjrt", "jax-rocm7-plugin")
)
JAXLIB = Package(project="jaxlib", version="0.11.0", hashes=("c" * 64,))
SET = Install(
    index=INDEX, ours=OURS, upstream=(JAXLIB,), jax="0.11.0", rocm="7.10.0a20251120",
    rocm_url="https://example.com/therock-dist-linux-gfx94X-dcgpu-7.10.0a20251120.tar.gz",
    rocm_origin="tarball",
)  # fmt: skip


def test_wheels_come_from_the_index_alone_and_the_rest_by_exact_version():
    ours = "jax-rocm7-pjrt==0.11.0+rocm7.10.0 jax-rocm7-plugin==0.11.0+rocm7.10.0"
    rest = "jax==0.11.0 jaxlib==0.11.0"
    assert SET.pip == (
        f"pip install --no-deps --index-url {INDEX} {ours}",
        f"pip install {rest}",
    )
    assert SET.uv == (
        f"uv pip install --no-deps --default-index {INDEX} {ours}",
        f"uv pip install {rest}",
    )
    assert SET.poetry == (
        f"poetry source add --priority=explicit rocm {INDEX}",
        f"poetry add --source rocm {ours}",
        f"poetry add {rest}",
    )


def test_a_jax_that_is_no_release_comes_from_its_commit_or_not_at_all(tmp_path):
    manifest = make_set(tmp_path)
    assert f"jax=={manifest.jax_version}" in "".join(Install.of(manifest, INDEX).pip)
    folder = replace(manifest, jax=replace(manifest.jax, commit="", digest="a" * 64))
    document = Install.of(folder, INDEX).to_json()
    assert not re.search(r"\bjax(==| = )", f"{document['pip']}{document['uv']}{document['pixi']}")
    commit = "1a2b3c4d5" + "0" * 31
    branch = replace(
        manifest,
        jax=replace(manifest.jax, repository="https://github.com/jax-ml/jax", commit=commit),
        wheels=tuple(
            replace(wheel, version=f"{wheel.version}.jax{commit[:9]}") for wheel in manifest.wheels
        ),
    )
    lines = Install.of(branch, INDEX)
    address = f"git+https://github.com/jax-ml/jax@{commit}"
    assert lines.pip[1] == f"pip install 'jax @ {address}'"
    assert lines.uv[1] == f"uv pip install 'jax @ {address}'"
    assert lines.poetry[2] == f"poetry add {address}"
    assert f'jax = {{ git = "https://github.com/jax-ml/jax", rev = "{commit}" }}' in lines.pixi


def test_pixi_takes_each_wheel_from_its_index():
    assert SET.pixi.splitlines() == [
        "[pypi-dependencies]",
        *(f'{p.project} = {{ version = "=={p.version}", index = "{INDEX}" }}' for p in OURS),
        'jax = "==0.11.0"',
        'jaxlib = "==0.11.0"',
    ]


def test_a_requirements_file_has_its_index_and_every_hash():
    assert SET.requirements.splitlines() == [
        f"--index-url {INDEX}",
        *(f"{p} --hash=sha256:{'a' * 64} --hash=sha256:{'b' * 64}" for p in OURS),
    ]
    assert SET.upstream_requirements == f"jaxlib==0.11.0 --hash=sha256:{'c' * 64}\n"
    assert SET.by_hash("a.txt") == ("pip install --no-deps --require-hashes -r a.txt",)


@pytest.mark.parametrize(
    ("origin", "url", "targets", "line"),
    [
        (
            "tarball",
            SET.rocm_url,
            (),
            f"curl --fail --location {SET.rocm_url} | sudo tar --extract",
        ),
        ("pip", WHEELS, ("gfx1100",), "'rocm[libraries,device-gfx1100]==7.10.0a20251120'"),
        ("pip", WHEELS, ("gfx1200", "gfx1201"), "[libraries,device-gfx1200,device-gfx1201]=="),
        ("pip", WHEELS, ("gfx942", "gfx11-generic"), "'rocm[libraries,device-all]==7.10"),
    ],
)
def test_rocm_comes_as_the_set_had_it_for_the_gpus_of_the_set(origin, url, targets, line):
    install = Install(
        index=INDEX, ours=OURS, jax="0.11.0", rocm=SET.rocm, rocm_url=url, rocm_origin=origin,
        targets=targets,
    )  # fmt: skip
    lines = install.rocm_lines()
    assert set(lines) == {origin, "/opt/rocm"}
    assert line in lines[origin]


def test_of_a_set_for_all_gpus_a_familys_users_get_the_rocm_of_theirs(tmp_path):
    manifest = make_set(tmp_path / "set", gfx=("gfx90a", "gfx942", "gfx1100"))
    delivery = replace(manifest.rocm.delivery, url=WHEELS)
    manifest = replace(manifest, rocm=replace(manifest.rocm, origin="pip", delivery=delivery))
    every = Install.of(manifest, INDEX).rocm_lines()["pip"]
    ours = Install.of(manifest, INDEX, targets=("gfx942",)).rocm_lines()["pip"]
    assert "[libraries,device-gfx90a,device-gfx942,device-gfx1100]==" in every
    assert "[libraries,device-gfx942]==" in ours


def test_a_page_that_knows_one_project_installs_the_pair():
    pair = Install.of_version("jax-rocm60-plugin", "0.9.1.post1+rocm7.2.0", INDEX)
    assert [str(item) for item in pair.ours] == [
        "jax-rocm60-pjrt==0.9.1.post1+rocm7.2.0",
        "jax-rocm60-plugin==0.9.1.post1+rocm7.2.0",
    ]
    assert pair.jax == "0.9.1"


def test_nothing_that_is_printed_or_documented_adds_an_index():
    files = [*(ROOT / "build" / "rocwheel").rglob("*.*"), *(ROOT / "docs").rglob("*.md")]
    lines = [
        f"{path}: {line}"
        for path in [*files, ROOT / "README.md"]
        if path.suffix in {".py", ".j2", ".html", ".md"}
        for line in path.read_text().splitlines()
        if re.search(r"install .*--extra-index-url", line)
    ]
    assert lines == []
