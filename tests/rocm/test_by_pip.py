"""ROCm by pip: real pip, real environments, stand-in packages with the shape of TheRock's."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import uv
from support import rocm_packages

from rocwheel import rocm
from rocwheel.base.console import silent
from rocwheel.base.errors import CommandError, ConfigError, FetchError, RocmError
from rocwheel.base.process import Command
from rocwheel.gate import environment
from rocwheel.gate.request import DeviceChoice
from rocwheel.records.manifest import RocmSource
from rocwheel.records.verdict import RocmProvided
from rocwheel.rocm import by_pip
from rocwheel.tools import housekeeping

pytestmark = pytest.mark.integration

VERSION = "7.10.0a20251120"
SOURCE = by_pip.requirement(VERSION, ("gfx942",))


@pytest.fixture
def fetch(tmp_path, console):
    def run(source: str = SOURCE, *, index: str, version: str | None = None) -> rocm.RocmRoot:
        asked = rocm.plan(
            source,
            sha256=None,
            version=version,
            cache=tmp_path / "cache",
            cwd=tmp_path,
            index=index,
        )
        return rocm.fetch(asked, console=console, env=dict(os.environ))

    return run


def leftovers(folder: Path) -> list[Path]:
    rocm_cache = folder / "cache/rocm"
    return [*rocm_cache.glob("staging/*"), *rocm_cache.glob(".download-*")]


def test_the_root_is_a_checked_tree_and_its_packages_are_recorded(fetch, tmp_path):
    index = rocm_packages.index(tmp_path / "index", VERSION)
    root = fetch(index=index)
    assert (root.origin, str(root.version)) == ("pip", VERSION)
    assert (root.root / "lib/llvm/bin/clang").is_file()
    assert (root.root / "amdgcn/bitcode").is_dir()  # a link that 7.10 lacks
    assert root.delivery.links == ("amdgcn -> lib/llvm/amdgcn", "llvm -> lib/llvm")
    assert root.delivery.url == index
    names = [item.filename.partition("-")[0] for item in root.delivery.packages]
    assert names == ["rocm", "rocm_sdk_core", "rocm_sdk_devel", "rocm_sdk_device_gfx942",
                     "rocm_sdk_libraries"]  # fmt: skip
    shutil.rmtree(tmp_path / "index")
    again = fetch(index=index)  # a pinned version that is here asks nobody
    assert (again.cached, again.sha256, again.root) == (True, root.sha256, root.root)


def test_a_gate_has_what_users_install_of_the_manifests_packages_by_digest(
    fetch, tmp_path, here, runner
):
    """TheRock's #5523: with `devel` a library was found that users do not have."""
    index = rocm_packages.index(tmp_path / "index", VERSION)
    built = fetch(index=index)
    manifest = SimpleNamespace(
        rocm=RocmSource(
            version=str(built.version), header_version=built.facts.header_version, sha256=built.sha256,
            origin=built.origin, name=built.name, delivery=built.delivery,
        )
    )  # fmt: skip
    rocm_packages.index(tmp_path / "index", "7.11.0", tree="7.11.0")
    request = SimpleNamespace(
        rocm="", device=DeviceChoice.FAMILY, manifest=manifest, installed=None,
        suite=SimpleNamespace(rocm="root"), family=SimpleNamespace(targets=("gfx942",)),
    )  # fmt: skip
    assert "rocm-sdk-libraries" in str(environment.rocm_of(request, here))
    provided = environment.provide(request, here)
    assert provided.record == RocmProvided(
        origin="pip", version=VERSION, sha256=built.sha256, name=built.name
    )  # what a promotion compares with the manifest
    assert (provided.root, provided.index) == (None, index)
    lines = tmp_path / "rocm.txt"
    lines.write_text("\n".join(provided.requirements))
    words = (uv.find_uv_bin(), "pip", "install", "--quiet", "--no-cache", "--no-deps",
             "--require-hashes", "--index-url", index, "-r", str(lines), "--target")  # fmt: skip
    runner.run(Command(argv=(*words, str(tmp_path / "site"))))
    folders = {path.name for path in (tmp_path / "site").glob("*rocm_sdk_*") if not path.suffix}
    assert folders == {"_rocm_sdk_core", "_rocm_sdk_libraries", "_rocm_sdk_device_gfx942"}
    for_others = by_pip.for_users(built.delivery.packages, ("gfx90a",))
    assert not any("device" in line for line in for_others)
    other = {"_rocm_sdk_core/lib/other": b"other"}
    rocm_packages.wheel(tmp_path / "index", "rocm-sdk-core", VERSION, other)
    with pytest.raises(CommandError) as caught:
        runner.run(Command(argv=(*words, str(tmp_path / "other"))))
    assert "Hash mismatch" in f"{caught.value} {caught.value.detail}"


def test_packages_are_kept_while_they_are_used_and_never_mistaken(fetch, tmp_path):
    index = rocm_packages.index(tmp_path / "index", VERSION)
    cache = tmp_path / "cache"
    built = fetch(index=index)

    def kept() -> dict[str, bool]:
        return {item.kind: item.in_use for item in housekeeping.look(cache)}

    assert kept() == {"rocm/trees-3": True}
    recorded = RocmSource(
        version=str(built.version), header_version=built.facts.header_version, sha256=built.sha256,
        origin=built.origin, name=built.name, delivery=built.delivery,
    )  # fmt: skip
    del built
    (unused,) = items = housekeeping.look(cache)
    assert not unused.in_use
    assert housekeeping.remove(cache, items) == items
    core = tmp_path / "index/rocm-sdk-core" / f"rocm_sdk_core-{VERSION}-py3-none-any.whl"
    core.write_bytes(core.read_bytes() + b"other")
    with pytest.raises(FetchError, match="DO NOT MATCH THE HASHES"):
        rocm.fetch(rocm.recorded(recorded, cache=cache), console=silent(), env=dict(os.environ))
    assert housekeeping.look(cache) == ()


def test_a_suite_for_users_of_pip_finds_rocm_where_the_wheels_look_for_it(tmp_path, here, runner):
    """By uv and from wheels alone, as a gate installs."""
    index = rocm_packages.index(tmp_path / "index", VERSION)
    manifest = SimpleNamespace(rocm=SimpleNamespace(version=VERSION))
    request = SimpleNamespace(
        rocm="", device=DeviceChoice.FAMILY, manifest=manifest, installed=None,
        suite=SimpleNamespace(rocm="pip"), family=SimpleNamespace(targets=("gfx942",)),
    )  # fmt: skip
    provided = environment.provide(request, here)
    assert (provided.record.origin, provided.record.version) == ("pip", VERSION)
    words = ("pip", "install", "--quiet", "--only-binary", ":all:", "--no-cache",
             "--target", str(tmp_path / "site"), "--index-url", index)  # fmt: skip
    runner.run(Command(argv=(uv.find_uv_bin(), *words, *provided.requirements)))
    ci = Path(__file__).parents[2] / "ci"
    (looked_for,) = re.findall(r"sdk: \[(.*)\]", (ci / "wheel_policy.yaml").read_text())
    folders = {path.name for path in (tmp_path / "site").glob("_rocm_sdk_*")}
    wanted = {f"_rocm_sdk_{name}" for name in looked_for.split(", ")}
    assert folders == wanted | {"_rocm_sdk_device_gfx942"}


@pytest.mark.soak
def test_an_open_version_is_asked_for_each_time(fetch, tmp_path):
    source = by_pip.requirement(None, ("all",))
    index = rocm_packages.index(tmp_path / "index", "7.10.0")
    first = fetch(source, index=index)
    assert fetch(source, index=index).root == first.root
    rocm_packages.index(tmp_path / "index", "7.10.1", tree="7.10.1")
    assert str(fetch(source, index=index).version) == "7.10.1"


@pytest.mark.soak
def test_an_environment_that_was_cut_is_made_again(fetch, tmp_path):
    index = rocm_packages.index(tmp_path / "index", VERSION)
    root = fetch(index=index)
    (tmp_path / "cache/rocm/trees-3" / root.sha256 / "entry.json").unlink()
    again = fetch(index=index)
    assert not again.cached
    assert (again.sha256, again.root) == (root.sha256, root.root)


def test_an_index_without_development_files_is_one_error(fetch, tmp_path):
    index = rocm_packages.index(tmp_path / "index", VERSION, devel=False)
    with pytest.raises(
        FetchError, match=r"pip finds no such ROCm at file://.*rocm-sdk-devel"
    ) as why:
        fetch(index=index)
    assert "--therock-index-url" in why.value.hint
    assert leftovers(tmp_path) == []


def test_a_version_that_pip_and_the_tree_disagree_about_is_refused(fetch, tmp_path):
    index = rocm_packages.index(tmp_path / "index", "7.12.0", tree="7.10.0")
    with pytest.raises(RocmError, match=r"the tree is ROCm 7\.10\.0, but 7\.12\.0"):
        fetch(by_pip.requirement("7.12.0", ("all",)), index=index)


def test_an_open_version_within_limits_keeps_its_nightly_suffix_and_joins_one_that_is_asked(
    fetch, tmp_path
):
    index = rocm_packages.index(tmp_path / "index", VERSION)
    source = "pip:rocm[libraries,devel]>=7.10.0a1,<7.11"
    assert str(fetch(source, index=index).version) == VERSION  # .info/version says 7.10.0 alone
    where = {"sha256": None, "cache": tmp_path / "cache", "cwd": tmp_path, "index": index}
    planned = rocm.plan(source, version=VERSION, **where)
    assert planned.source == f"rocm[devel,libraries]=={VERSION}"
    with pytest.raises(ConfigError, match=r"excludes ROCm 7\.12\.0"):
        rocm.plan(source, version="7.12.0", **where)


def test_what_a_killed_download_left_goes_and_the_budget_of_the_cache_holds_for_packages_too(
    fetch, tmp_path, console
):
    index = rocm_packages.index(tmp_path / "index", VERSION)
    planned = rocm.plan(
        SOURCE, sha256=None, version=None, cache=tmp_path / "cache", cwd=tmp_path, index=index
    )
    left = tmp_path / "cache/rocm/staging" / planned.key / "packages"
    left.mkdir(parents=True)
    (left / "half.whl").write_bytes(b"half")
    first = fetch(index=index).sha256
    assert leftovers(tmp_path) == []
    rocm_packages.index(tmp_path / "index", "7.11.0", tree="7.11.0")
    planned = rocm.plan(
        by_pip.requirement("7.11.0", ("gfx942",)), sha256=None, version=None,
        cache=tmp_path / "cache", cwd=tmp_path, index=index,
    )  # fmt: skip
    second = rocm.fetch(planned, console=console, budget_bytes=1, env=dict(os.environ))
    trees = tmp_path / "cache/rocm/trees-3"
    assert [path.name for path in trees.iterdir()] == [second.sha256] != [first]


def test_two_sources_are_one_too_many(fetch):
    with pytest.raises(ConfigError, match="names another one"):
        fetch("https://host/rocm.tar.gz", index="https://index/")


# What a requirement for pip may say.


def test_an_address_is_refused_without_its_password():
    with pytest.raises(ConfigError, match="an address") as caught:
        by_pip.checked("rocm[libraries,devel] @ https://bob:s3cr3t@host/rocm.whl")
    assert "s3cr3t" not in f"{caught.value}{caught.value.hint}"
