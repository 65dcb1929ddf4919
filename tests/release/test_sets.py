from __future__ import annotations

from pathlib import Path

import pytest
from support.wheelset import FAMILY, make_set

import amdgpu_family_matrix as matrix
from rocwheel.base.errors import ConfigError, PromotionError, WheelError
from rocwheel.base.store.file import FileStore
from rocwheel.base.values import replace
from rocwheel.base.versions import WheelKind
from rocwheel.records.manifest import MANIFEST
from rocwheel.records.places import Place
from rocwheel.release import wheelset


def metadata_of(folder: Path, manifest) -> dict[str, bytes]:
    return {w.filename: wheelset.read_metadata(folder / w.filename) for w in manifest.built}


def entries_of(folder: Path, **options):
    manifest = make_set(folder, **options)
    place = Place(store=FileStore(folder), root="v2", family="gfx90a")
    return wheelset.entries(manifest, metadata_of(folder, manifest), place, uploaded="")


def test_a_wheelhouse_is_its_manifest_and_nothing_else(tmp_path: Path) -> None:
    manifest = make_set(tmp_path)
    loaded, paths = wheelset.load(tmp_path)
    assert loaded == manifest
    assert sorted(paths) == sorted(w.filename for w in manifest.built)
    assert wheelset.load(tmp_path / MANIFEST)[0] == manifest
    (tmp_path / "extra-1-py3-none-any.whl").write_bytes(b"x")
    with pytest.raises(WheelError, match=r"extra-1-py3-none-any\.whl"):
        wheelset.load(tmp_path)


def test_a_wheel_that_is_missing_or_changed_is_named(tmp_path: Path) -> None:
    manifest = make_set(tmp_path)
    path = tmp_path / manifest.built[0].filename
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(WheelError, match=r"SHA-256 is .*the manifest says"):
        wheelset.load(tmp_path)
    path.unlink()
    with pytest.raises(WheelError, match="not what its"):
        wheelset.load(tmp_path)


@pytest.mark.parametrize("kind", list(WheelKind))
def test_a_set_that_lacks_a_cell_is_not_complete(tmp_path: Path, kind: WheelKind) -> None:
    manifest = make_set(tmp_path)
    wheelset.check_complete(manifest)
    lost = next(w for w in manifest.wheels if w.kind == kind.value)
    rest = tuple(w for w in manifest.wheels if w is not lost)
    with pytest.raises(WheelError, match=f"one {kind.value} wheel is needed .* it has none"):
        wheelset.check_complete(replace(manifest, wheels=rest))


def test_two_wheels_for_one_cell_are_one_too_many(tmp_path: Path) -> None:
    manifest = make_set(tmp_path)
    double = replace(manifest.wheels[0], filename="jaxlib-1-cp311-cp311-any.whl")
    with pytest.raises(WheelError, match=r"one jaxlib wheel is needed for CPython 3\.11"):
        wheelset.check_complete(replace(manifest, wheels=(*manifest.wheels, double)))


def test_an_upstream_jaxlib_fills_its_cell_and_is_not_staged(tmp_path: Path) -> None:
    manifest = make_set(tmp_path, upstream_jaxlib=True)
    wheelset.check_complete(manifest)
    loaded, paths = wheelset.load(tmp_path)
    assert len(loaded.wheels) == 5
    assert len(paths) == 3


def test_a_family_gets_only_wheels_for_all_its_targets(tmp_path: Path) -> None:
    manifest = make_set(tmp_path, gfx=("gfx90a", "gfx1100"))
    wheelset.check_family(manifest, FAMILY)
    with pytest.raises(ConfigError, match="gfx110X-all: the wheels lack gfx1101, gfx1102, gfx1103"):
        wheelset.check_family(manifest, matrix.family("gfx110X-all"))


def test_a_plugin_without_its_pjrt_is_refused(tmp_path: Path) -> None:
    manifest = make_set(tmp_path, requires_pjrt="==0.9.0")
    with pytest.raises(WheelError, match=r"requires jax-rocm7-pjrt==0\.9\.0, the set has 0\.9\.1"):
        wheelset.check_closed(manifest, metadata_of(tmp_path, manifest))


def test_a_requirement_of_another_rocm_is_refused(tmp_path: Path) -> None:
    manifest = make_set(tmp_path)
    metadata = metadata_of(tmp_path, manifest)
    name = next(w.filename for w in manifest.wheels if w.kind == "plugin")
    metadata[name] = metadata[name].replace(b"jax-rocm7-pjrt", b"jax-rocm8-pjrt")
    with pytest.raises(WheelError, match="which the set lacks"):
        wheelset.check_closed(manifest, metadata)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"Version: 0.9.1", b"Version: 0.9.2", "METADATA says"),
        (b"Name: jaxlib", b"Name: jax", "METADATA says"),
        (b"Requires-Python: >=3.10", b"Requires-Python: >=3.12", "excludes CPython 3.11"),
        (b"Requires-Python: >=3.10", b"Requires-Dist: ?", "Requires-Dist '\\?'"),
    ],
)
def test_metadata_that_contradicts_the_manifest_is_refused(tmp_path, old, new, message) -> None:
    manifest = make_set(tmp_path)
    metadata = metadata_of(tmp_path, manifest)
    name = next(w.filename for w in manifest.wheels if w.kind == "jaxlib")
    metadata[name] = metadata[name].replace(old, new)
    with pytest.raises(WheelError, match=message):
        wheelset.check_closed(manifest, metadata)


def test_extras_and_other_platforms_are_no_requirements(tmp_path: Path) -> None:
    manifest = make_set(tmp_path)
    metadata = metadata_of(tmp_path, manifest)
    name = next(w.filename for w in manifest.wheels if w.kind == "plugin")
    metadata[name] += (
        b'Requires-Dist: jax-rocm8-pjrt==1; extra == "x"\n'
        b'Requires-Dist: jax-rocm8-pjrt==1; sys_platform == "win32"\n'
        b'Requires-Dist: jax-rocm8-pjrt==1; python_version < "3.9"\n'
    )
    wheelset.check_closed(manifest, metadata)


# R4: what sorts below a released build would not be installed.


@pytest.mark.parametrize(
    ("there", "new", "is_refused"),
    [
        ("+rocm7.10.0a20251120", "+rocm7.10.0a20251119", True),
        ("+rocm7.10.0a20251120", "+rocm7.10.0a20251121", False),
        ("+rocm7.10.0", "+rocm7.9.0", True),
        ("+rocm7.9.0", "+rocm7.10.0", False),
        ("+rocm7.10.0", "", True),
        ("", "+rocm7.10.0", False),
        (".post1+rocm7.10.0", "+rocm7.10.0", False),  # another public version
        ("+rocm7.10.0", "+rocm7.10.0", False),  # the same
    ],
)
def test_a_build_that_sorts_below_a_released_one_is_refused(
    tmp_path: Path, there: str, new: str, is_refused: bool
) -> None:
    old = entries_of(tmp_path / "old", suffix=there)
    page = tuple(e for e in old if e.project == "jaxlib")
    candidates = [e for e in entries_of(tmp_path / "new", suffix=new) if e.project == "jaxlib"]
    if not is_refused:
        wheelset.check_order(page, candidates)
        return
    with pytest.raises(PromotionError, match="sorts below") as caught:
        wheelset.check_order(page, candidates)
    assert "--wheel-suffix" in caught.value.hint
    assert "yank" in caught.value.hint
    yanked = [replace(item, yanked="superseded") for item in page]
    wheelset.check_order(yanked, candidates)


def test_a_second_rocm_major_is_sent_to_prefixes_of_its_own(tmp_path: Path) -> None:
    """`+rocm10` sorts below `+rocm7`, and an older public version would hide it as well."""
    page = [e for e in entries_of(tmp_path / "7", jax="0.9.0") if e.project == "jaxlib"]
    for jax in ("0.9.0", "0.9.1"):
        new = entries_of(tmp_path / jax, jax=jax, rocm="10.1.0")
        with pytest.raises(PromotionError, match="for ROCm 7 here") as caught:
            wheelset.check_order(page, [e for e in new if e.project == "jaxlib"])
        assert "ci/channels.yaml" in caught.value.hint
