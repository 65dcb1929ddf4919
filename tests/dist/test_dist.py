"""What `dist_wheels` decides before anything is fetched or built."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

import amdgpu_family_matrix as matrix
from rocwheel import bazel, cli, dist, source
from rocwheel.base import home
from rocwheel.base.console import silent
from rocwheel.base.errors import ConfigError
from rocwheel.base.git import Source
from rocwheel.base.values import replace
from rocwheel.base.versions import PythonVersion, RocmVersion, WheelKind
from rocwheel.dist import assemble, inputs, output
from tests.records.test_manifest import example

ROOT = Path(__file__).parents[2]
MULTIARCH = "https://example.com/therock-dist-linux-multiarch-7.14.0.tar.gz"
TARBALL = "therock-dist-linux-gfx94X-dcgpu-7.10.0a20251120.tar.gz"


def request(tmp_path, **changes):
    plain = dist.Request(
        allow_dirty=True,  # of the checkout that the tests stand in
        therock=f"https://example.com/{TARBALL}",
        wheelhouse=tmp_path / "wheelhouse",
        cache=tmp_path / "cache",
        home=home.find(None),
        cwd=tmp_path,
    )
    return replace(plain, **changes)


def test_gfx_targets_are_the_list_else_the_family_else_the_tarballs_name(tmp_path):
    assert dist.plan(request(tmp_path)).gfx_targets == ("gfx942",)
    family = dist.plan(request(tmp_path, families=("gfx110X-all",), therock=MULTIARCH))
    assert family.gfx_targets == matrix.family("gfx110X-all").targets
    wider = request(tmp_path, families=("gfx90a",), gfx_targets=("gfx90a", "gfx9-generic"))
    assert dist.plan(replace(wider, therock=MULTIARCH)).gfx_targets == wider.gfx_targets
    assert dist.plan(request(tmp_path, gfx_targets=("gfx11-generic",))).gfx_targets


def test_a_build_for_several_families_has_the_targets_of_each(tmp_path):
    several = request(tmp_path, therock=MULTIARCH, families=("gfx1151", "gfx90a", "gfx1151"))
    planned = dist.plan(several)
    assert planned.gfx_targets == ("gfx1151", "gfx90a")
    assert [item.name for item in planned.families] == ["gfx1151", "gfx90a"]
    every = dist.plan(replace(several, families=("all", "gfx90a")))
    assert [item.name for item in every.families] == sorted(matrix.FAMILIES)
    assert {*every.gfx_targets} == {*matrix.known_targets()} - {*matrix.GENERIC_TARGETS}
    own = ROOT / "examples" / "miniature" / "families.yaml"
    team = dist.plan(replace(several, families=("all",), own_families=own))
    assert [item.name for item in team.families] == ["miniature"]
    mixed = dist.plan(replace(several, families=("gfx1151", "miniature"), own_families=own))
    assert mixed.gfx_targets == ("gfx1151", "gfx90a", "gfx942", "gfx1100", "gfx1201")


PIP = "pip:rocm[libraries,devel,device-gfx90a,device-gfx1151]==7.15.0a20260630"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"families": ("gfx94X-dcgpu", "gfx110X-all")},
            f"{TARBALL}: has no code for gfx1100, gfx1101, gfx1102, gfx1103 of gfx110X-all",
        ),
        (
            {"families": ("all",)},
            f"{TARBALL}: has no code for gfx1010, gfx1011, gfx1012 of gfx101X",
        ),
        (
            {"families": ("gfx90a", "gfx950-dcgpu"), "therock": PIP},
            f"{PIP.removeprefix('pip:')}: has no code for gfx950 of gfx950-dcgpu",
        ),
        (
            {"families": ("gfx110X-all",), "gfx_targets": ("gfx1100",), "therock": MULTIARCH},
            "--gfx-targets: lacks gfx1101, gfx1102, gfx1103 of gfx110X-all, which --family names",
        ),
    ],
)
def test_families_that_rocm_or_targets_lack_are_one_error(tmp_path, changes, message):
    with pytest.raises(ConfigError) as caught:
        dist.plan(request(tmp_path, **changes))
    assert str(caught.value).startswith(message)
    assert caught.value.hint


def test_rocm_by_pip_for_every_device_serves_every_family(tmp_path):
    every = "pip:rocm[libraries,devel,device-all]==7.15.0a20260630"
    assert dist.plan(request(tmp_path, families=("all",), therock=every)).families
    assert dist.plan(request(tmp_path, therock=PIP)).gfx_targets == ("gfx1151", "gfx90a")


def test_planning_writes_nothing(tmp_path):
    dist.plan(request(tmp_path))
    assert list(tmp_path.iterdir()) == []


def tree(tmp_path, runner, version="0.9.2"):
    planned = dist.plan(request(tmp_path, jax_version=version))
    return source.preview(planned.sources, pins=planned.pins, runner=runner, console=silent())


def test_an_upstream_jaxlib_is_in_the_manifest_by_its_hash(tmp_path, runner):
    found = tree(tmp_path, runner)
    assert found.jaxlib_origin == "upstream"
    pythons = (PythonVersion(3, 12), PythonVersion(3, 13))
    entries = list(assemble._upstream_jaxlib(found, pythons))
    assert [entry.python for entry in entries] == ["3.12", "3.13"]
    assert all(entry.origin == "upstream" and entry.version == "0.9.2" for entry in entries)
    assert all(len(entry.sha256) == 64 and entry.size > 1 << 20 for entry in entries)
    assert entries[0].tags == ("cp312-cp312-manylinux_2_27_x86_64",)


@pytest.mark.parametrize(
    ("chosen", "named"),
    [
        (("gfx90a", "gfx1151"), ("gfx1151", "gfx90a")),
        (("gfx90a",), ()),
        (("gfx90a", "gfx90a"), ()),
        ((), ()),
    ],
)
def test_a_manifest_names_the_families_of_a_set_for_several(chosen, named, tmp_path, runner):
    """One of a single family, or of targets alone, stays what it was, byte for byte."""
    planned = dist.plan(
        request(
            tmp_path, therock=MULTIARCH, families=chosen, gfx_targets=() if chosen else ("gfx90a",)
        )
    )  # fmt: skip
    before = example()
    spec = SimpleNamespace(
        bazel=SimpleNamespace(version="7.4.1"),
        compiler=SimpleNamespace(kind="clang", major=18, digest="d"),
        cpu_features="release",
        wheel_type="release",
        wheel_suffix="",
        pythons=(PythonVersion(3, 12),),
    )
    root = SimpleNamespace(
        version="7.14.0", facts=SimpleNamespace(header_version="7.14.0"), sha256="1" * 64,
        origin="tarball", name="x", delivery=before.rocm.delivery,
    )  # fmt: skip
    given = SimpleNamespace(
        planned=planned, tree=tree(tmp_path, runner), root=root, spec=spec, tool=before.tool,
        place=SimpleNamespace(builder_image=""),
    )  # fmt: skip
    made = assemble._manifest(given, before.wheels)
    assert made.families == named
    assert (b'"families"' in made.to_bytes()) is bool(named)
    shown = output.contents(tmp_path, made)
    assert shown.get("families", []) == list(named)
    result = dist.Result(
        wheelhouse=tmp_path, manifest=made, is_new=True, bazel=bazel.Runs(done=()), findings=()
    )
    told = next(line for line in output.lines(result, seconds={}) if "gfx targets" in line)
    assert told.endswith(", for gfx1151, gfx90a" if named else "gfx targets gfx90a")


def test_a_wheel_lists_what_it_is_built_from(tmp_path, runner):
    made = tree(tmp_path, runner)
    root = SimpleNamespace(version="7.10.0")
    spec = SimpleNamespace(
        bazel=SimpleNamespace(version="7.4.1"),
        compiler=SimpleNamespace(kind="clang", major=18, digest="d"),
    )
    given = SimpleNamespace(tree=made, root=root, spec=spec, llvm="")
    jax, xla, rocm, *tools = assemble._sources(given, WheelKind.PLUGIN)
    assert jax == ("source", "jax", "0.9.2", f"pkg:github/jax-ml/jax@{made.jax.commit}")
    assert (xla.name, xla.version) == ("xla", made.xla.commit)
    assert rocm[1:] == ("rocm", "7.10.0", "pkg:generic/rocm@7.10.0")
    assert [each[:3] for each in tools] == [("tool", "bazel", "7.4.1"), ("tool", "clang", "18")]
    names = {each.name for each in assemble._sources(given, WheelKind.JAXLIB)}
    assert names == {"jax", "xla", "bazel", "clang"}  # jaxlib is of no ROCm
    given.llvm = "a" * 40
    (llvm,) = [each for each in assemble._sources(given, WheelKind.PLUGIN) if each.name == "llvm"]
    assert llvm[1:] == ("llvm", "a" * 40, f"pkg:github/llvm/llvm-project@{'a' * 40}")


@pytest.mark.parametrize("contained", [False, True])
def test_the_record_names_bazel_by_digest_where_no_image_has_it(tmp_path, contained):
    program = tmp_path / "bazel"
    program.write_bytes(b"bazel")
    asked = SimpleNamespace(started="x", host="h", command_line="dist_wheels")
    given = SimpleNamespace(
        planned=SimpleNamespace(request=asked),
        spec=SimpleNamespace(bazel=SimpleNamespace(path=program, version="7.4.1")),
        place=SimpleNamespace(
            spec=object() if contained else None, record=None, executor=SimpleNamespace(kind="host")
        ),
        root=SimpleNamespace(root=tmp_path), tree=SimpleNamespace(root=tmp_path),
    )  # fmt: skip
    by = SimpleNamespace(versions={})
    made = assemble._record(given, example(), bazel.Runs(done=()), (), by=by, seconds={})
    digest = hashlib.sha256(b"bazel").hexdigest()
    assert made.bazel.programs == ({} if contained else {"program bazel 7.4.1": digest})


def test_xla_names_the_llvm_that_it_takes(tmp_path):
    """As openxla/xla has it: within a function, above the archive's rule."""
    folder = tmp_path / "third_party/llvm"
    assert assemble._llvm(tmp_path) == ""
    folder.mkdir(parents=True)
    text = (
        'def repo(name):\n    """Imports LLVM."""\n    LLVM_COMMIT = "{}"\n    LLVM_SHA256 = "{}"\n'
    )
    (folder / "workspace.bzl").write_text(text.format("d1653c8e" * 5, "8" * 64))
    assert assemble._llvm(tmp_path) == "d1653c8e" * 5
    (folder / "workspace.bzl").write_text(text.format("main", ""))
    assert assemble._llvm(tmp_path) == ""


def test_a_config_of_jaxs_own_stands_before_the_gfx_targets_that_it_would_undo(tmp_path, here):
    name = "--config=rocm_clang_hermetic_local_sysroot"
    asked = request(
        tmp_path, compiler="hermetic", bazel_options=(name, "--jobs=4"),
        environ={"PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    lines = [line for line in dist.dry_run(dist.plan(asked), here) if name in line]
    assert lines
    for words in map(str.split, lines):
        place = words.index(name)
        assert words[place - 1] == "--config=rocm_release_wheel"
        assert words[place + 1 :].count("--repo_env=TF_ROCM_AMDGPU_TARGETS=gfx942") == 1
        assert words.count(name) == 1
        assert "--jobs=4" in words[place:]


def test_a_new_jax_is_a_few_lines_of_data(tmp_path, here):
    ci = Path(shutil.copytree(ROOT / "ci", tmp_path / "ci"))
    pins = (ci / "pins.yaml").read_text()
    newest = pins[pins.index('  "0.11.0":') : pins.index('  "0.11.1":')].replace(
        "    default: true\n", ""
    )
    (ci / "pins.yaml").write_text(pins + newest.replace("0.11.0", "0.99.0"))
    layouts = (ci / "layouts.yaml").read_text()
    start, end = layouts.index('      - versions: ">=0.11.1"'), len(layouts)
    old = layouts[start:end].replace(">=0.11.1", ">=0.11.1,<0.99")
    new = layouts[start:end].replace(">=0.11.1", ">=0.99").replace("rocm_release_wheel", "next")
    (ci / "layouts.yaml").write_text(layouts[:start] + old + new + layouts[end:])
    asked = request(
        tmp_path,
        jax_version="0.99.0",
        compiler="hermetic",
        home=home.find(tmp_path / "ci"),
        environ={"PATH": "/usr/bin:/bin"},
    )
    shown = "\n".join(dist.dry_run(dist.plan(asked), here))
    assert " --config=next " in shown
    assert "rocm_release_wheel" not in shown
    assert "/jax_rocm7_plugin-0.99.0+rocm7.10.0a20251120-cp314-cp314t-" in shown


@pytest.mark.parametrize(
    ("asked", "xla", "suffix"),
    [
        (None, False, "+rocm7.10.0a20251120"),
        (".post1", False, ".post1"),
        (None, True, "+rocm7.10.0a20251120.xla123456789"),
        (".post1", True, ".post1+xla123456789"),
        ("", True, "+xla123456789"),
    ],
)
def test_overrides_mark_the_version_with_any_suffix(tmp_path, runner, asked, xla, suffix):
    found = tree(tmp_path, runner)
    if xla:
        found = replace(found, xla=Source(repository="", commit="123456789a" * 4), xla_dir=tmp_path)
    wanted = request(tmp_path, wheel_suffix=asked)
    version = RocmVersion.parse("7.10.0a20251120")
    mark = found.local_suffix
    assert inputs._wheel_suffix(wanted.wheel_suffix, mark, version) == suffix


# What a build would refuse, its dry run refuses: the plan says so before anything begins.


LINE = (
    "dist_wheels", "--dry-run", "--compiler=hermetic", "--family=gfx94X-dcgpu", "--allow-dirty",
    "--rocm-version=7.10.0", "--python-versions=3.12",
    "--therock-path=https://example.com/therock-dist-linux-gfx94X-dcgpu-7.10.0.tar.gz",
)  # fmt: skip


def test_what_is_right_is_planned(tmp_path, capsys):
    right = ("--bazel-options=--nokeep_going", f"--cache-dir={tmp_path}/new")
    assert cli.main([*LINE, *right, f"--wheelhouse={tmp_path}/w"]) == 0
    assert "--nokeep_going" in capsys.readouterr().out


NIGHTLY, PACKAGES = "https://rocm.nightlies.amd.com", "whl-multi-arch/"
BY_PIP = "'--therock-path=pip:rocm[libraries,devel,device-gfx942]==7.15.0a20260630'"


@pytest.mark.parametrize(
    ("options", "fetched"),
    [
        (["--therock-path={page}therock-dist-linux-gfx94X-dcgpu-{version}.tar.gz"], "{options[0]}"),
        (["--therock-path={page}therock-dist-linux-multiarch-{version}.tar.gz",
          "--family=gfx94X-dcgpu"], "{options[0]}"),
        (["--therock-index-url=nightly", "--rocm-version={version}", "--rocm-devices=gfx942",
          "--gfx-targets=gfx942"], BY_PIP),
    ],
    ids=["per family", "multiarch", "pip"],
)  # fmt: skip
def test_each_way_therock_publishes_is_planned_with_its_version(options, fetched, tmp_path, capsys):
    names = {"page": f"{NIGHTLY}/tarball-multi-arch/", "version": "7.15.0a20260630"}
    options = [option.format(**names) for option in options]
    line = ("dist_wheels", "--dry-run", "--compiler=hermetic", "--allow-dirty",
            "--python-versions=3.12", f"--cache-dir={tmp_path}")  # fmt: skip
    assert cli.main([*line, *options]) == 0
    shown = capsys.readouterr().out
    rocm = next(line for line in shown.splitlines() if line.startswith("ROCM_ROOT="))
    assert f" rocm fetch {fetched.format(options=options)} --cache-dir={tmp_path}" in rocm
    assert (f"--therock-index-url={NIGHTLY}/{PACKAGES})" in rocm) == (fetched == BY_PIP)
    assert "--repo_env=TF_ROCM_AMDGPU_TARGETS=gfx942 " in shown
    for wheel in ("plugin-{}-cp312-cp312", "pjrt-{}-py3-none"):
        assert f"/jax_rocm7_{wheel.format('0.11.0+rocm7.15.0a20260630')}-" in shown


@pytest.mark.parametrize(
    ("targets", "warned"),
    [("gfx942", False), ("gfx942,gfx1100", True), ("gfx1100", True)],
)
def test_targets_that_the_tarballs_family_lacks_are_warned_of(targets, warned, tmp_path, capsys):
    line = [word for word in LINE if not word.startswith("--family")]
    assert cli.main([*line, f"--gfx-targets={targets}", f"--cache-dir={tmp_path}/new"]) == 0
    warning = "its libraries have no code for gfx1100; gfx94X-dcgpu is gfx942"
    assert (warning in capsys.readouterr().err) == warned
