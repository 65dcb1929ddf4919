"""The list of what a wheel was made of: valid CycloneDX, the same every time, and kept true."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from support import wheels
from support.wheels import POLICY, File, NoRunner

from rocwheel.base.errors import WheelError
from rocwheel.base.git import Source
from rocwheel.cli import main
from rocwheel.wheel import sbom
from rocwheel.wheel.diff import diff
from rocwheel.wheel.inspect import inspect
from rocwheel.wheel.repair import apply, plan_repair
from rocwheel.wheel.sbom import Component, make, of_source, of_wheel, read, with_version

AUDITWHEEL = {  # as auditwheel 6.5 writes it
    "bomFormat": "CycloneDX", "specVersion": "1.4", "version": 1,
    "metadata": {
        "component": {"type": "library", "bom-ref": "w", "name": "jax_rocm7_plugin", "version": "0.9.1"},
        "tools": [{"name": "auditwheel", "version": "6.5.0"}],
    },
    "components": [
        {"type": "library", "bom-ref": "w", "name": "jax_rocm7_plugin", "version": "0.9.1", "purl": "pkg:pypi/jax_rocm7_plugin@0.9.1"},
        {"type": "library", "bom-ref": "n", "name": "numactl-libs", "version": "2.0.16", "purl": "pkg:rpm/almalinux/numactl-libs@2.0.16-3.el8?arch=x86_64"},
    ],
    "dependencies": [{"ref": "w", "dependsOn": ["n"]}, {"ref": "n"}],
}  # fmt: skip
NUMA = Component("package", "numactl-libs", "2.0.16", AUDITWHEEL["components"][1]["purl"])
BUILT = (
    of_source("jax", Source(repository="https://github.com/jax-ml/jax", commit="b" * 40), "0.9.1"),
    Component("source", "rocm", "7.10.0", "pkg:generic/rocm@7.10.0"),
    Component("tool", "clang", "18"),
)


def repaired(path: Path, out: Path, console, **given) -> Path:
    return apply(
        plan_repair(path, policy=POLICY, **given), out, runner=NoRunner(), console=console
    ).path


def sbom_of(path: Path) -> bytes:
    with zipfile.ZipFile(path) as archive:
        (name,) = [each for each in archive.namelist() if each.endswith("rocwheel.cdx.json")]
        assert name == f"{path.name.partition('-cp')[0]}.dist-info/sboms/rocwheel.cdx.json"
        return archive.read(name)


def check_schema(data: bytes) -> None:
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(data.decode()) is None


def grafted() -> wheels.Wheel:
    made = wheels.plugin()
    name = "jax_rocm7_plugin.libs/libnuma-0123abcd.so.1"
    own = {name: File(wheels.make_elf(soname="libnuma-0123abcd.so.1"), mode=0o755)}
    listed = {f"{made.dist_info}/sboms/auditwheel.cdx.json": File(json.dumps(AUDITWHEEL).encode())}
    return made.but(files={**made.files, **own, **listed})


def test_repair_lists_what_a_wheel_is_made_of_and_needs(tmp_path: Path, console) -> None:
    path = grafted().write(tmp_path)
    made = repaired(path, tmp_path / "out", console, sources=BUILT)
    check_schema(sbom_of(made))
    listed = inspect(made, hashes=True)
    assert listed.rows == listed.digests == ()
    assert {*listed.sboms[sbom.OWN]} == {
        of_wheel("jax-rocm7-plugin", "0.9.1"), *BUILT, NUMA, Component("grafted", "libnuma.so.1"),
        Component("needed", "libamdhip64.so.7"), Component("needed", "libhipblas.so.3"),
    }  # fmt: skip
    document = json.loads(sbom_of(made))
    assert "serialNumber" not in document
    assert "timestamp" not in document["metadata"]
    (row,) = [each for each in document["dependencies"] if each.get("dependsOn")]
    assert row["ref"] == document["metadata"]["component"]["bom-ref"]
    assert len(row["dependsOn"]) == 7
    assert list(listed.sboms) == ["sboms/auditwheel.cdx.json", sbom.OWN]
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(made) as new:  # nothing else has moved
        names = [each for each in new.namelist() if each != f"{listed.dist_info}/{sbom.OWN}"]
        assert names == old.namelist()
        assert (
            new.read(f"{listed.dist_info}/sboms/auditwheel.cdx.json")
            == json.dumps(AUDITWHEEL).encode()
        )


def test_a_second_repair_changes_nothing_and_forgets_nothing(tmp_path: Path, console) -> None:
    path = grafted().write(tmp_path)
    first = repaired(path, tmp_path / "first", console, sources=BUILT)
    again = repaired(path, tmp_path / "again", console, sources=BUILT[::-1])
    assert again.read_bytes() == first.read_bytes()
    plan = plan_repair(first, policy=POLICY)
    assert plan.components == ()
    assert repaired(first, tmp_path / "second", console).read_bytes() == first.read_bytes()


def test_without_a_build_the_modules_of_the_wheel_say_what_it_is_from(
    tmp_path: Path, console
) -> None:
    made = wheels.plugin()
    info = b'commits = {"ROCm/xla": "%s", "jax": "%s"}\n' % (b"c" * 40, b"a1" * 20)
    files = {**made.files, "jax_rocm7_plugin/commit_info.py": File(info)}
    out = repaired(made.but(files=files).write(tmp_path), tmp_path / "out", console)
    check_schema(sbom_of(out))
    sources = {each.purl for each in read(sbom_of(out)) if each.role == "source"}
    assert {f"pkg:github/rocm/xla@{'c' * 40}", f"pkg:generic/jax@{'a1' * 20}"} <= sources


def test_reversion_and_retag_keep_the_list_true(tmp_path: Path, console, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = repaired(grafted().write(tmp_path), tmp_path / "out", console, sources=BUILT)
    assert main(["wheel", "reversion", str(path), "--local", "rocm7.10", "--output", "new"]) == 0
    (renamed,) = Path("new").iterdir()
    check_schema(sbom_of(renamed))
    assert inspect(renamed, hashes=True).digests == ()
    before, after = (set(read(sbom_of(each))) for each in (path, renamed))
    assert after - before == {of_wheel("jax-rocm7-plugin", "0.9.1+rocm7.10")}
    assert plan_repair(renamed, policy=POLICY).components == ()
    assert (
        main(["wheel", "retag", str(path), "--platform-tag", "linux_x86_64", "--output", "tag"])
        == 0
    )
    (tagged,) = Path("tag").iterdir()
    assert sbom_of(tagged) == sbom_of(path)


def test_inspect_and_diff_show_it(tmp_path: Path, console, capsys) -> None:
    path = grafted().write(tmp_path)
    old = repaired(path, tmp_path / "old", console, sources=BUILT)
    newer = Component("tool", "clang", "19")
    new = repaired(path, tmp_path / "new", console, sources=(*BUILT[:2], newer))
    lines = [(each.aspect, each.before, each.after) for each in diff(old, new) if not each.member]
    assert lines[-2:] == [(sbom.OWN, "tool clang 18 ", ""), (sbom.OWN, "", "tool clang 19 ")]
    assert main(["wheel", "inspect", str(new)]) == 0
    out = capsys.readouterr().out
    assert "  sboms/rocwheel.cdx.json" in out
    assert "  needed                   libamdhip64.so.7" in out
    assert main(["wheel", "inspect", "--json", str(new)]) == 0
    (report,) = json.loads(capsys.readouterr().out)["wheels"]
    listed = report["sboms"]["sboms/rocwheel.cdx.json"]
    assert {"role": "tool", "name": "clang", "version": "19", "purl": ""} in listed


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{}", b"[]", b"null", b"\xff", b"{", b"[" * 100_000, b'{"bomFormat": "SPDX"}',
        b" " * (257 << 10),
        *(
            b'{"bomFormat": "CycloneDX", %s}' % rest
            for rest in (
                b'"metadata": 1', b'"metadata": {"component": []}', b'"components": 7',
                b'"components": [1]', b'"components": [{"properties": [{}]}]',
                b'"metadata": {"component": {"version": %s}}' % (b"1" * 5000),
            )
        ),
    ],
)  # fmt: skip
def test_what_is_no_list_is_shown_and_breaks_nothing(data: bytes, tmp_path: Path, console) -> None:
    made = wheels.plugin()
    files = {**made.files, f"{made.dist_info}/{sbom.OWN}": File(data)}
    path = made.but(files=files).write(tmp_path)
    (only,) = inspect(path).sboms[sbom.OWN]
    assert only.name == "no CycloneDX file, or a large one"
    if len(data) < 6000:
        with pytest.raises(WheelError, match="none of ours"):
            with_version(data, "1")
    check_schema(sbom_of(repaired(path, tmp_path / "out", console)))


def test_a_package_url_that_is_none_is_refused() -> None:
    with pytest.raises(WheelError, match="sboms"):
        make([of_wheel("demo", "1"), NUMA._replace(purl="pkg:rpm/")])


def test_a_tree_without_a_clean_commit_is_named_by_its_digest() -> None:
    dirty = Source(
        repository="https://github.com/a/b", commit="b" * 40, dirty=True, digest="d" * 64
    )
    assert of_source("jax", dirty).purl == f"pkg:generic/jax?checksum=sha256:{'d' * 64}"
    other = Source(repository="https://example.org/a/b", commit="b" * 40)
    assert of_source("xla", other) == Component(
        "source", "xla", "b" * 40, f"pkg:generic/xla@{'b' * 40}"
    )
    check_schema(
        make([of_wheel("demo", "1!2+x"), of_source("jax", dirty), of_source("xla", other)])
    )
