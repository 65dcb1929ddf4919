"""Why a real JAX build fails, on the miniature with a real Bazel: mended, and broken on purpose.

Each reason is taken back in rocwheel (a check that says nothing, data as it was), so that Bazel
meets it; what a user would then see is what is asserted. All share one workspace, one Bazel server
and one disk cache, so a generation compiles only what differs.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from support import bazel_bench, generations
from support.generations import GENERATIONS
from support.tiers import merge_tries

from rocwheel import dist, source
from rocwheel.base import home
from rocwheel.base.console import silent
from rocwheel.base.errors import BazelError, HostError, RocmError
from rocwheel.base.here import Here
from rocwheel.base.values import replace
from rocwheel.base.versions import PythonVersion
from rocwheel.dist import checks
from rocwheel.source import tree

pytestmark = [
    pytest.mark.integration,
    pytest.mark.needs("bazel", "clang-19", "cc"),
    pytest.mark.slow,
    pytest.mark.xdist_group("miniature"),
]

WORKSPACE = Path(__file__).parents[2] / "examples" / "miniature" / "workspace"
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
CLANG = "/usr/bin/clang-19"
PACKED = b"CCOB"  # what a compressed bundle of GPU code begins with
NEWEST = GENERATIONS["0.11.1"]


# What the miniature's rules need beside the configs that every generation has.
_CROSSTOOL = "build:rocm --crosstool_top=@local_config_rocm//crosstool:toolchain\n"
# Its local toolchain lists the headers of one clang only. (JAX after 0.11.0 lists none; here 0.11.1 has
# the list of 0.11.0, so that the oldest and the newest of that kind are both met.)
OWN_HEADERS = frozenset({"0.11.0", "0.11.1"})


def write_miniature(
    root: Path, generation: generations.Generation, *, says: str = "", clang: str
) -> Path:
    """Write the workspace of `generation` over whatever is at `root`.

    `says` is the version in it, `clang` the compiler its local route names.
    """
    for old in ("build", "jaxlib", "third_party"):
        shutil.rmtree(root / old, ignore_errors=True)
    ignored = shutil.ignore_patterns("bazel-*")
    shutil.copytree(WORKSPACE, root, dirs_exist_ok=True, ignore=ignored)
    kept = {
        name: (root / name).read_bytes()
        for name in ("WORKSPACE", "jaxlib/tools/BUILD.bazel", "jax/version.py")
    }
    shutil.rmtree(root / "build" / "rocm")
    (root / "jaxlib" / "plugin_support.py").unlink()
    generations.write(root, generation, says=says, clang=clang)
    shutil.rmtree(root / "third_party")
    (root / ".bazelversion").unlink()
    for name, content in kept.items():
        (root / name).write_bytes(content)
    version = root / "jax" / "version.py"
    version.write_text(version.read_text().replace("0.11.99", says or generation.version))
    late = bool(generation.rocm_bazelrc)
    with (root / ("build/rocm/rocm.bazelrc" if late else ".bazelrc")).open("a") as rc:
        rc.write(_CROSSTOOL)
    if generation.plugin.startswith('"jax_rocm6'):  # a number that the tree itself decides
        build = root / "jaxlib" / "tools" / "BUILD.bazel"
        text = build.read_text().replace(".format(ROCM_MAJOR_VERSION)", '.format("60")')
        build.write_text(text.replace("wheel_name = _PLUGIN", f"wheel_name = {generation.plugin}"))
    new = generation.version in OWN_HEADERS
    (root / "bazel" / "generation.bzl").write_text(
        f'LOCAL_CLANG_HEADERS = "{"18" if new else ""}"\n'
        f'LOCAL_LINKER = "{"lld" if new else "gold"}"\n'
    )
    return root


@dataclass(frozen=True)
class Bench:
    """A folder, a ROCm tree, and how a wheel set is built there."""

    folder: Path
    rocm: Path
    here: Here

    def tree(self, generation: generations.Generation, **changes: str) -> Path:
        return write_miniature(self.folder / "jax", generation, **{"clang": CLANG, **changes})

    def build(self, generation: generations.Generation | None = None, **changes: object):
        """What `dist_wheels` does, for plugin and pjrt; the tree is written anew for one."""
        if generation:
            self.tree(generation)
        planned = dist.plan(self.request(**changes))
        return dist.build(planned, self.here)

    def request(self, **changes: object) -> dist.Request:
        """A request for plugin, pjrt and jaxlib of the tree."""
        names = (f"MINIATURE_PYTHON_{PYTHON.replace('.', '_')}={sys.executable}", f"CC={CLANG}")
        plain = dist.Request(
            therock=str(self.rocm),
            pythons=(PythonVersion.parse(PYTHON),),
            gfx_targets=("gfx942",),
            jax_source_dir=self.folder / "jax",
            jaxlib="built",
            wheelhouse=self.folder / "wheelhouse",
            cache=self.folder / "cache",
            home=self.data(),
            cwd=self.folder,
            environ={
                "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
                "HOME": str(self.folder),
            },
            bazel_startup_options=("--bazelrc=bazel/debian.bazelrc",),
            machine_options=tuple(f"--repo_env={name}" for name in names),
            allow_dirty=True,
        )
        return replace(plain, **changes)

    def data(self, **texts: tuple[str, str]) -> home.Home:
        """Rocwheel's data with one text of a file replaced: `layouts=(old, new)`.

        The miniature has few members under the numbers of real releases: all are judged as it is.
        """
        ours = home.find(None)
        ci = self.folder / "-".join(("ci", *texts))
        shutil.rmtree(ci, ignore_errors=True)
        shutil.copytree(ours.ci, ci)
        policy = ci / "wheel_policy.yaml"
        text = re.sub(r'jax: "(?!==0\.11\.99)[^"]*"', 'jax: "<0"', policy.read_text())
        assert text.count('"==0.11.99"') > 1
        text = text.replace('"==0.11.99"', '">=0"')
        policy.write_text(text)
        for name, (old, new) in texts.items():
            path = ci / f"{name}.yaml"
            text = path.read_text()
            changed = re.sub(old, new, text)
            assert changed != text
            path.write_text(changed)
        return replace(ours, ci=ci)


@pytest.fixture(scope="module")
def bench(miniature_tarball, tmp_path_factory, runner):
    folder = tmp_path_factory.mktemp("real-build")
    (folder / miniature_tarball.name).hardlink_to(miniature_tarball)
    with tarfile.open(miniature_tarball) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # since 3.11.4
        archive.extractall(folder / "rocm")
    (folder / "rocm/amdgcn").symlink_to("lib/llvm/amdgcn")  # a cached tree gets it by itself
    here = Here(
        environ=dict(os.environ), cwd=folder, cache=folder / "cache", home=home.find(None),
        console=silent(), runner=runner,
    )  # fmt: skip
    yield Bench(folder, folder / "rocm", here)
    bazel_bench.stop(folder / "cache")


@pytest.fixture
def lacking(bench, tmp_path):
    """Make a clang that finds no lld, and a ROCm without some of its files."""

    def make(*names: str) -> Path:
        copy = tmp_path / "rocm"
        shutil.copytree(bench.rocm, copy, symlinks=True)
        for name in names:
            (copy / name).unlink()
        return copy

    return make


def libraries(result) -> dict[str, bytes]:
    found = {}
    for entry in result.manifest.wheels:
        with zipfile.ZipFile(result.wheelhouse / entry.filename) as archive:
            names = [name for name in archive.namelist() if name.endswith(".so")]
            found |= {name.rpartition("/")[2]: archive.read(name) for name in names}
    return found


def failure(bench, *, remedy: str, said: str, **changes: object) -> BazelError:
    """The failure of a build that Bazel began; its hint says what to do."""
    with pytest.raises(BazelError) as caught:
        bench.build(**changes)
    assert re.search(said, f"{caught.value}\n{caught.value.detail}"), caught.value.detail
    assert remedy in caught.value.hint
    assert "\n" not in f"{caught.value}{caught.value.hint}"
    return caught.value


@pytest.mark.parametrize("version", merge_tries("0.11.1", of=GENERATIONS))
def test_a_tree_of_each_generation_is_built_with_the_compiler_its_class_wants(version, bench):
    result = bench.build(GENERATIONS[version])
    number = "60" if version < "0.9.2" and not version.startswith("0.1") else "7"
    projects = {entry.project for entry in result.manifest.wheels}
    assert projects == {f"jax-rocm{number}-plugin", f"jax-rocm{number}-pjrt", "jaxlib"}
    own = version not in OWN_HEADERS
    assert result.manifest.options["compiler"] == ("clang 19" if own else "hermetic")
    assert PACKED in libraries(result)["xla_rocm_plugin.so"]


# 1: from 0.10.2 on the local toolchain lists the headers of clang 18.


@pytest.mark.soak
@pytest.mark.parametrize("version", ["0.11.0", "0.11.1"])
def test_the_own_clang_of_a_late_jax_fails_where_bazel_checks_inclusions(version, bench):
    bench.tree(GENERATIONS[version])
    found = failure(
        bench,
        compiler_path=Path(CLANG),
        said=r"undeclared inclusion\(s\) in rule '//jax",
        remedy="leave --compiler-path out",
    )
    assert "/lib/llvm/lib/clang/19/include/" in f"{found}{found.detail}"


@pytest.mark.soak
def test_the_default_compiler_would_fail_so_too_if_it_were_the_machines_own(bench):
    bench.tree(NEWEST)
    ours = bench.data(layouts=(r" +own_clang: no CI of JAX or TheRock builds with it\n", ""))
    failure(bench, home=ours, said="undeclared inclusion", remedy="leave --compiler-path out")


# 2: `hermetic` takes a clang of the machine up to 0.10.1.


def test_a_hermetic_build_without_the_clang_its_rc_file_names_stops_before_bazel(
    bench, monkeypatch
):
    bench.tree(GENERATIONS["0.10.1"], clang="/nowhere/clang")
    with pytest.raises(HostError, match=r"/nowhere/clang: not found; JAX 0\.10\.1 compiles"):
        bench.build(compiler="hermetic")
    monkeypatch.setattr(checks, "check_toolchain", lambda *_, **__: iter(()))
    failure(
        bench,
        compiler="hermetic",
        said="Cannot find /nowhere/clang",
        remedy="--compiler clang",
    )


@pytest.mark.soak
def test_a_hermetic_build_with_that_clang_is_made_by_it(bench):
    result = bench.build(GENERATIONS["0.10.1"], compiler="hermetic")
    assert b"clang version 19" in libraries(result)["rocm_plugin_extension.so"]


@pytest.mark.soak
def test_a_compiler_whose_bytes_changed_under_its_path_builds_everything_again(bench, tmp_path):
    clang, script = tmp_path / "clang", '#!/bin/sh\nexec /usr/lib/llvm-19/bin/{} "$@"\n'
    for name in (clang.name, "clang++"):
        (tmp_path / name).write_text(script.format(name))
        (tmp_path / name).chmod(0o755)

    def build():
        made = bench.build(compiler_path=clang)
        return sum(each.actions_executed for each in made.bazel.records), made.manifest

    bench.tree(GENERATIONS["0.10.1"])
    first, of_the_first = build()
    assert build() == (0, of_the_first)
    clang.write_text(clang.read_text() + "# of another release\n")
    again, other = build()
    assert again > first / 2
    assert other.options.pop("host_compiler") != of_the_first.options.pop("host_compiler")
    assert other.options == of_the_first.options


# 3: the class is what the tree has.


@pytest.mark.soak
def test_new_configs_under_an_old_number_are_built_and_a_class_by_number_fails(bench, monkeypatch):
    bench.tree(GENERATIONS["0.11.0"], says="0.9.1")
    assert bench.build().manifest.jax_version == "0.9.1"

    def by_number(root, layout, version):
        return layout.version_class(version), ()

    monkeypatch.setattr(tree, "_class_of", by_number)
    monkeypatch.setattr(checks, "check_options", lambda *_: None)
    monkeypatch.setattr(checks, "check_toolchain", lambda *_, **__: iter(()))
    failure(bench, said="is not defined in any .rc file", remedy="rc files")


# 4: the linker.


@pytest.mark.soak
def test_a_clang_that_finds_no_lld_is_refused_before_it_would_fail_at_the_last_link(
    bench, lacking, monkeypatch
):
    clang = lacking("lib/llvm/bin/ld.lld", "lib/llvm/bin/lld") / "lib/llvm/bin/clang"
    bench.tree(NEWEST)
    (bench.folder / "jax/bazel/generation.bzl").write_text(
        'LOCAL_CLANG_HEADERS = ""\nLOCAL_LINKER = "lld"\n'  # as upstream has repaired it
    )
    with pytest.raises(HostError, match=r"ld\.lld: .* does not find it") as caught:
        bench.build(compiler_path=clang)
    assert "apt-get install lld" in caught.value.hint
    assert bench.build(compiler_path=Path(CLANG))
    monkeypatch.setattr(checks, "check_toolchain", lambda *_, **__: iter(()))
    failure(
        bench,
        compiler_path=clang,
        said="invalid linker name in argument '-fuse-ld=lld'",
        remedy="install the linker",
    )


@pytest.mark.soak
def test_a_clang_that_finds_no_gold_is_refused_before_it_would_fail_at_the_first_link(
    bench, tmp_path, monkeypatch
):
    """Up to 0.10.1: the machine's clang, with all of its programs but gold on its path."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for program in Path("/usr/bin").iterdir():
        if not program.name.endswith("gold"):
            (programs / program.name).symlink_to(program)
    for name in ("clang", "clang++"):
        script = f'#!/bin/sh\nPATH={programs} exec /usr/lib/llvm-19/bin/{name} "$@"\n'
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)
    bench.tree(GENERATIONS["0.10.1"])
    with pytest.raises(HostError, match=r"ld\.gold: .* does not find it") as caught:
        bench.build(compiler_path=tmp_path / "clang")
    assert "apt-get install binutils" in caught.value.hint
    monkeypatch.setattr(checks, "check_toolchain", lambda *_, **__: iter(()))
    failure(
        bench,
        compiler_path=tmp_path / "clang",
        said="invalid linker name in argument '-fuse-ld=gold'",
        remedy="install the linker",
    )


# 5: what XLA looks for in ROCm.


@pytest.mark.soak
def test_all_missing_headers_are_listed_before_bazel_finds_one(bench, lacking, monkeypatch):
    gone = ("include/miopen/version.h", "include/roctracer/roctracer.h")
    rocm = lacking(*gone)
    bench.tree(NEWEST)
    with pytest.raises(RocmError, match=r"lacks 2 of the files JAX 0\.11\.1") as caught:
        bench.build(therock=str(rocm))
    assert caught.value.detail.split() == list(gone)
    monkeypatch.setattr(checks, "check_rocm", lambda *_, **_named: None)
    failure(
        bench,
        therock=str(rocm),
        said="ROCm Configuration Error: .*miopen/version.h",
        remedy="whole TheRock distribution",
    )


# 6: patches that a tree puts on its XLA.

PATCH = """\
--- a/xla/api.h
+++ b/xla/api.h
@@ -1 +1 @@
-#define XLA_API_VERSION 1
+#define XLA_API_VERSION 2
"""


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    argv = ["git", "-C", str(folder), *identity, *words]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def xla(tmp_path):
    """An XLA as its project has it, which this JAX builds with its patch only."""
    folder = tmp_path / "xla"
    (folder / "xla").mkdir(parents=True)
    (folder / "WORKSPACE").touch()
    (folder / "xla" / "api.h").write_text("#define XLA_API_VERSION 1\n")
    (folder / "xla" / "BUILD").write_text('exports_files(["api.h"])\n')
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "xla")
    return folder


def with_xla(root: Path) -> None:
    """Let pjrt be built from XLA's header, patched by the tree."""
    third = root / "third_party" / "xla"
    third.mkdir(parents=True)
    (third / "revision.bzl").write_text(f'XLA_COMMIT = "{"1" * 40}"\n')
    (third / "workspace.bzl").write_text('patch_file = ["//third_party/xla:version.patch"]\n')
    (third / "version.patch").write_text(PATCH)
    build = root / "jax_plugins" / "rocm" / "BUILD.bazel"
    hdrs = '    hdrs = ["kernels.h"],\n    exports'
    build.write_text(
        build.read_text().replace(hdrs, '    hdrs = ["kernels.h", "@xla//xla:api.h"],\n    exports')
    )
    code = root / "jax_plugins" / "rocm" / "pjrt_c_api.cc"
    code.write_text(
        code.read_text() + '#include "external/xla/xla/api.h"\n'
        'static_assert(XLA_API_VERSION == 2, "XLA lacks what this JAX needs");\n'
    )
    workspace = root / "WORKSPACE"
    workspace.write_text(
        workspace.read_text() + 'local_repository(name = "xla", path = "third_party/xla")\n'
    )


def test_a_missing_patch_of_a_local_xla_is_warned_of(bench, xla, runner):
    with_xla(bench.tree(NEWEST))
    tree = bench.folder / "jax"
    pin = source.load_layouts(home.find(None).ci / "layouts.yaml")["upstream"].xla
    planned = source.tree.patches(tree, pin, by_module=False)
    applied, warnings = source.tree.compared(xla, planned, runner=runner)
    assert applied == ()
    assert "lacks JAX's version.patch" in warnings[0]
    with pytest.raises(BazelError, match="static assertion failed"):
        bench.build(xla_source_dir=xla)
    git(xla, "apply", str(planned[0]))
    assert bench.build(xla_source_dir=xla).manifest.options["xla_patches"]


# 7: GPU code is compressed where the tree does not say so.


@pytest.mark.soak
def test_without_our_flag_the_gpu_code_of_an_old_jax_is_not_compressed(bench):
    whole = libraries(bench.build(GENERATIONS["0.9.2"]))["xla_rocm_plugin.so"]
    assert PACKED in whole
    ours = bench.data(layouts=("--action_env=HIPCC_COMPILE_FLAGS_APPEND=.*", "--define=plain=1"))
    plain = libraries(bench.build(home=ours))["xla_rocm_plugin.so"]
    assert PACKED not in plain
    assert len(plain) > len(whole)


# 9: lines of a dry run, pasted into a shell that is full of other things.

HOSTILE = {
    "ROCM_PATH": "/opt/rocm",
    "TF_NEED_ROCM": "1",
    "CC": "/bin/false",
    "HIPCC_COMPILE_FLAGS_APPEND": "--bogus",
    "GIT_DIR": "/nowhere",
    "GIT_CONFIG_GLOBAL": "/nowhere/config",
    "GIT_INDEX_FILE": "/nowhere/index",
    "CDPATH": "/",
    "PYTHONPATH": "/nowhere",
    "ROCM_ROOT": "/nowhere",
    "XLA_COMMIT": "none",
}


def paste(bench, lines, cwd: Path) -> None:
    """Give the lines to a shell as they are, and let it stop at the first that fails."""
    script = "\n".join(["set -e", *lines])
    done = subprocess.run(
        ["bash"],
        input=script,
        env={"PATH": "/usr/bin:/bin", **HOSTILE},
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture
def published(bench, tmp_path):
    """A repository of JAX 0.10.0 (the miniature), which a pin names."""
    root = write_miniature(tmp_path / "jax", GENERATIONS["0.10.0"], clang=CLANG)
    git(root, "init", "-q", "-b", "main")
    git(root, "add", "-A", "-f")
    git(root, "commit", "-qm", "0.10.0")
    commit = git(root, "rev-parse", "HEAD")
    return bench.data(
        pins=(
            r'("0\.10\.0":\n    repository: ).*\n(    ref: ).*\n(    commit: ).*',
            rf"\g<1>{root}\n\g<2>main\n\g<3>{commit}",
        )
    )


def test_a_pasted_dry_run_fetches_and_builds_what_the_tool_then_finds_built(
    bench, published, tmp_path, here
):
    """Nothing is there before: ROCm is a tarball, JAX a repository."""
    (tarball,) = bench.folder.glob("*.tar.gz")
    asked = bench.request(
        therock=str(tarball),
        home=published,
        jax_source_dir=None,
        jax_version="0.10.0",
        bazel_path=shutil.which("bazel"),
        cache=tmp_path / "cache",
    )
    try:
        planned = dist.plan(asked)
        paste(bench, dist.dry_run(planned, here), tmp_path)
        result = dist.build(dist.plan(asked), here)
        assert {run.record.actions_executed for _, run in result.bazel.done} == {0}
        assert result.manifest.jax_version == "0.10.0"
        assert "rocm" not in str(result.wheelhouse)
    finally:
        bazel_bench.stop(tmp_path / "cache")
