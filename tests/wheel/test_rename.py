"""Other tags, other versions: only what says so changes, and a set changes together."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from packaging.requirements import Requirement
from packaging.version import Version
from support import wheels
from support.wheels import POLICY, File, Wheel

from rocwheel.base.errors import ConfigError, WheelError
from rocwheel.wheel import rename
from rocwheel.wheel.diff import diff
from rocwheel.wheel.inspect import inspect
from rocwheel.wheel.rename import NewVersion, plan_retag, plan_reversion
from rocwheel.wheel.verify import verify
from rocwheel.wheel.zip_reader import ZipArchive


def text(path: Path, name: str) -> str:
    with zipfile.ZipFile(path) as archive:
        (found,) = (item for item in archive.namelist() if item.endswith(name))
        return archive.read(found).decode()


def retag(path: Path, out: Path, **tags: str) -> Path:
    (made,) = rename.apply(plan_retag([path], **tags), out)
    return made


def reversion(paths: list[Path], out: Path, **change) -> list[Path]:
    return list(rename.apply(plan_reversion(paths, NewVersion(**change)), out))


def changed(before: Path, after: Path) -> set[str]:
    """Members whose content differs, as the tool that compares wheels sees it."""
    return {item.member for item in diff(before, after) if item.member}


def test_other_tags_change_wheel_and_record_only(tmp_path: Path) -> None:
    path = wheels.plugin().write(tmp_path)
    before = path.read_bytes()
    made = retag(path, tmp_path / "out", platform="manylinux_2_28_x86_64")
    assert made.name == "jax_rocm7_plugin-0.9.1-cp312-cp312-manylinux_2_28_x86_64.whl"
    assert changed(path, made) == {"*.dist-info/WHEEL", "*.dist-info/RECORD"}
    assert "Tag: cp312-cp312-manylinux_2_28_x86_64\n" in text(made, "/WHEEL")
    assert verify(made, policy=POLICY) == ()
    assert path.read_bytes() == before


def test_every_part_of_the_tag_can_be_given_also_several(tmp_path: Path) -> None:
    path = wheels.plugin().write(tmp_path)
    made = retag(path, tmp_path / "out", python="cp311.cp312", abi="abi3", platform="linux_x86_64")
    assert made.name == "jax_rocm7_plugin-0.9.1-cp311.cp312-abi3-linux_x86_64.whl"
    tags = [line for line in text(made, "/WHEEL").splitlines() if line.startswith("Tag")]
    assert tags == ["Tag: cp311-abi3-linux_x86_64", "Tag: cp312-abi3-linux_x86_64"]


def test_the_tags_a_wheel_has_leave_every_byte(tmp_path: Path) -> None:
    path = wheels.plugin().write(tmp_path)
    made = retag(path, tmp_path / "out", platform="manylinux_2_27_x86_64")
    assert made.read_bytes() == path.read_bytes()
    assert retag(path, tmp_path, platform="manylinux_2_27_x86_64") == path


def test_a_wheel_whose_texts_were_renamed_by_hand_is_mended(tmp_path: Path) -> None:
    path = wheels.plugin(tags=("cp312-cp312-linux_x86_64",)).write(tmp_path)
    made = retag(path, tmp_path / "out", platform="manylinux_2_27_x86_64")
    assert made.name == path.name
    assert verify(made, policy=POLICY) == ()


@pytest.mark.parametrize(
    ("old", "change", "new"),
    [
        ("0.9.1", {"post": 1}, "0.9.1.post1"),
        ("0.9.1", {"post": 0}, "0.9.1.post0"),
        ("0.9.1.post1", {"post": 2}, "0.9.1.post2"),
        ("0.9.1+rocm7.2", {"post": 1}, "0.9.1.post1+rocm7.2"),
        ("0.9.1", {"local": "rocm7.10.0a20251120"}, "0.9.1+rocm7.10.0a20251120"),
        ("0.9.1.post1+rocm7.2", {"local": "rocm7.3"}, "0.9.1.post1+rocm7.3"),
        ("0.9.1.dev5", {"local": "rocm7.3"}, "0.9.1.dev5+rocm7.3"),
        ("0.9.1", {"version": "0.9.2rc1"}, "0.9.2rc1"),
    ],
)
def test_a_new_version_is_what_was_asked_for(old: str, change, new: str) -> None:
    assert str(NewVersion(**change).of(Version(old))) == new


@pytest.mark.parametrize(
    ("old", "change", "message"),
    [
        ("0.9.1.dev5", {"post": 1}, "no post-releases"),
        ("0.9.1rc1", {"post": 1}, "no post-releases"),
        ("0.9.1", {"version": "one"}, "not a PEP 440 version"),
        ("0.9.1", {"local": "ROCm7"}, "PEP 440 spells it '0.9.1\\+rocm7'"),
        ("0.9.1", {"local": "rocm7_2"}, "spells it"),
        ("0.9.1", {"local": "a+b"}, "not a PEP 440 version"),
        ("0.9.1", {"version": "0.9.1-1"}, "spells it"),
    ],
)
def test_a_version_that_cannot_be_is_refused(old: str, change, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        NewVersion(**change).of(Version(old))


def test_a_set_gets_one_version_and_keeps_its_pins(tmp_path: Path) -> None:
    paths = [wheels.pjrt().write(tmp_path), wheels.plugin().write(tmp_path)]
    pjrt, plugin = reversion(paths, tmp_path / "out", post=1)
    assert pjrt.name == "jax_rocm7_pjrt-0.9.1.post1-py3-none-manylinux_2_28_x86_64.whl"
    assert "Requires-Dist: jax-rocm7-pjrt==0.9.1.post1\n" in text(plugin, "/METADATA")
    assert "_release_version: str = '0.9.1.post1'" in text(plugin, "plugin/version.py")
    assert "old = \"_release_version: str = '0.9.1.post1'\"" in text(plugin, "plugin/version.py")
    assert "_release_version: str = '0.9.1.post1'" in text(pjrt, "xla_rocm7/version.py")
    assert changed(paths[0], pjrt) == {
        "*.dist-info/METADATA", "*.dist-info/RECORD", "jax_plugins/xla_rocm7/version.py",
    }  # fmt: skip
    assert changed(paths[1], plugin) == {
        "*.dist-info/METADATA", "*.dist-info/RECORD", "jax_rocm7_plugin/version.py",
    }  # fmt: skip
    for made in (pjrt, plugin):
        assert verify(made, policy=POLICY) == ()


def test_a_version_module_that_says_none_gets_the_version(tmp_path: Path) -> None:
    """As AMD publishes pjrt: it calls itself `0.12.0.dev<today>`."""
    name = "jax_plugins/xla_rocm7/version.py"
    module = b"_version = '0.9.1'\n_release_version: str | None = None\n_git_hash = None\n"
    made = wheels.pjrt()
    path = made.but(files={**made.files, name: File(module)}).write(tmp_path)
    (after,) = reversion([path], tmp_path / "out", post=1)
    assert "_release_version: str | None = '0.9.1.post1'\n_git" in text(after, name)
    assert verify(after, policy=POLICY) == ()


@pytest.mark.parametrize("module", [b"x = 1\n", b"_release_version = '0.8.0'\n"])
def test_a_version_that_cannot_be_written_is_reported(module: bytes, tmp_path: Path) -> None:
    made = wheels.pjrt()
    files = {**made.files, "jax_plugins/xla_rocm7/version.py": File(module)}
    (plan,) = plan_reversion([made.but(files=files).write(tmp_path)], NewVersion(post=1))
    assert len(plan.notes) == 1
    assert "version.py keeps" in plan.notes[0]


def test_a_pin_that_cannot_admit_the_new_version_is_refused(tmp_path: Path) -> None:
    path = wheels.plugin(requires=("jax-rocm7-pjrt!=0.9.1.post1",)).write(tmp_path)
    with pytest.raises(WheelError, match=r"cannot admit 0\.9\.1\.post1"):
        plan_reversion([path], NewVersion(post=1))


def test_versions_are_edited_by_their_place(tmp_path: Path) -> None:
    """A name that ends like its version, and bounds that the old version does not have."""
    paths = [
        wheels.Wheel(project="foo2", version="2", tag="py3-none-any").write(tmp_path),
        wheels.Wheel(
            project="jax", version="2", tag="py3-none-any",
            requires=("foo2==2", "foo2<=2,>=1", 'foo2==1; extra == "minimum-foo2"', "foo==2"),
        ).write(tmp_path),
    ]  # fmt: skip
    _, made = reversion(paths, tmp_path / "out", post=1)
    before, after = text(paths[1], "/METADATA").splitlines(), text(made, "/METADATA").splitlines()
    assert [new for old, new in zip(before, after, strict=True) if old != new] == [
        "Version: 2.post1", "Requires-Dist: foo2==2.post1", "Requires-Dist: foo2<=2.post1,>=1",
    ]  # fmt: skip


def test_a_version_that_was_lowered_lowers_its_bounds(tmp_path: Path) -> None:
    pins = ("jax-rocm7-pjrt>=0.9.1", "jax-rocm7-pjrt==0.9.*", "jax-rocm7-pjrt~=0.9.1")
    paths = [wheels.pjrt().write(tmp_path), wheels.plugin(requires=pins).write(tmp_path)]
    _, made = reversion(paths, tmp_path / "out", version="0.8.2")
    assert "jax-rocm7-pjrt>=0.8.2\n" in text(made, "/METADATA")
    assert "jax-rocm7-pjrt==0.8.*\n" in text(made, "/METADATA")
    assert "jax-rocm7-pjrt~=0.8.2\n" in text(made, "/METADATA")


def test_two_versions_of_one_project_are_no_set(tmp_path: Path) -> None:
    paths = [made.write(tmp_path) for made in (wheels.pjrt(), wheels.pjrt(version="0.9.2"))]
    for change in (NewVersion(post=1), NewVersion(version="1.0"), NewVersion(local="rocm7")):
        with pytest.raises(WheelError, match=r"0\.9\.1 and 0\.9\.2"):
            plan_reversion(paths, change)


@pytest.mark.parametrize("name", ["METADATA", "WHEEL", "version.py"])
def test_a_wheel_whose_record_contradicts_a_text_is_not_renamed(name: str, tmp_path: Path) -> None:
    entries = wheels.entries(wheels.plugin())
    (entry,) = (item for item in entries if item.name.decode().endswith(f"/{name}"))
    entry.content += b"Summary: another\n" if name != "version.py" else b"x = 1\n"
    path = tmp_path / wheels.plugin().name
    path.write_bytes(wheels.Zip(entries).to_bytes())
    with pytest.raises(WheelError, match=f"{name}: differs from RECORD"):
        plan_retag([path], platform="manylinux_2_35_x86_64")
    with pytest.raises(WheelError, match=f"{name}: differs from RECORD"):
        plan_reversion([path], NewVersion(post=1))


def test_a_record_with_a_line_break_in_a_name_is_refused(tmp_path: Path) -> None:
    made = wheels.plugin()
    record = made.members()[f"{made.dist_info}/RECORD"].content
    path = made.but(record=b'"a\nb",,\n' + record).write(tmp_path)
    for plan in (
        lambda: plan_retag([path], platform="any"), lambda: plan_reversion([path], NewVersion(post=1)),
    ):  # fmt: skip
        with pytest.raises(WheelError, match="RECORD: line 1 has a control character"):
            plan()


def test_a_tag_that_is_given_twice_is_there_once(tmp_path: Path) -> None:
    path = wheels.plugin().write(tmp_path)
    made = retag(path, tmp_path / "out", platform="linux_x86_64.any.linux_x86_64")
    assert made.name.endswith("-linux_x86_64.any.whl")
    assert text(made, "/WHEEL").count("Tag: ") == 2


def test_a_wheel_that_changed_since_the_plan_is_not_written(tmp_path: Path) -> None:
    path = wheels.plugin().write(tmp_path)
    plans = plan_retag([path], platform="any")
    (tmp_path / "other").mkdir()
    wheels.plugin(summary="another").write(tmp_path / "other").replace(path)
    with pytest.raises(WheelError, match="was changed while it was read"):
        rename.apply(plans, tmp_path / "out")
    assert not list((tmp_path / "out").glob("*"))


@pytest.mark.parametrize(
    ("pin", "expected"),
    [
        ("jax-rocm7-pjrt==0.9.1", "jax-rocm7-pjrt==0.9.1.post1"),
        ("jax-rocm7-pjrt (==0.9.1)", "jax-rocm7-pjrt (==0.9.1.post1)"),
        ("jax_rocm7_pjrt == 0.9.1 ; python_version > '3'", "jax_rocm7_pjrt == 0.9.1.post1 ; python_version > '3'"),
        ("jax-rocm7-pjrt==0.9.1.*", "jax-rocm7-pjrt==0.9.1.*"),
        ("jax-rocm7-pjrt>=0.9,<0.10", "jax-rocm7-pjrt>=0.9,<0.10"),
        ("jax-rocm7-pjrt>=0.9,<=0.9.1", "jax-rocm7-pjrt>=0.9,<=0.9.1.post1"),
        ("jax-rocm7-pjrt<=0.9.1,>=0.8.2", "jax-rocm7-pjrt<=0.9.1.post1,>=0.8.2"),
        ("jax-rocm7-pjrt[x]>=0.9 , <0.9.1.post1", "jax-rocm7-pjrt[x]>=0.9 , <=0.9.1.post1"),
        ("jax-rocm7-pjrt ===0.9.1", "jax-rocm7-pjrt ===0.9.1.post1"),
        ("jax-rocm7-pjrt~=0.9.1", "jax-rocm7-pjrt~=0.9.1"),
        ("jax-rocm7-pjrt==0.9.0", "jax-rocm7-pjrt==0.9.0"),
        ("jax-rocm7-pjrt==0.8.2; extra == '0.9.1'", "jax-rocm7-pjrt==0.8.2; extra == '0.9.1'"),
        ("jax-rocm7-pjrt==0.9.1; extra == '0.9.1'", "jax-rocm7-pjrt==0.9.1.post1; extra == '0.9.1'"),
        ("jax-rocm7-pjrt @ https://x/0.9.1", "jax-rocm7-pjrt @ https://x/0.9.1"),
        ("jax-rocm7-pjrt", "jax-rocm7-pjrt"),
        ("jax-rocm60-pjrt==0.9.1", "jax-rocm60-pjrt==0.9.1"),
        ("numpy==0.9.1", "numpy==0.9.1"),
    ],
)  # fmt: skip
def test_a_pin_is_rewritten_only_where_it_must_be(pin: str, expected: str, tmp_path: Path) -> None:
    paths = [wheels.pjrt().write(tmp_path), wheels.plugin(requires=(pin, "x==1")).write(tmp_path)]
    _, plugin = reversion(paths, tmp_path / "out", post=1)
    assert f"Requires-Dist: {expected}\nRequires-Dist: x==1\n" in text(plugin, "/METADATA")


texts = st.binary(max_size=50).filter(lambda content: not content.startswith(b"\x7fELF"))
version_numbers = st.builds("{}.{}.{}".format, *[st.integers(0, 30)] * 3)
locals_ = st.sampled_from(("rocm7", "rocm7.10.0a20251120", "devrocm7.10.0.dev0efed3c", "x.1"))


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), old=version_numbers, number=st.sampled_from(("7", "10", "60", "100")))
def test_any_set_stays_installable_and_comes_back(data, old, number, tmp_path_factory) -> None:
    folder = tmp_path_factory.mktemp("set")
    changes = data.draw(
        st.one_of(
            st.builds(lambda n: {"post": n}, st.integers(0, 99)),
            st.builds(lambda text: {"local": text}, locals_),
            st.builds(lambda text: {"version": text}, version_numbers),
        )
    )
    files = {
        name: File(data.draw(texts), mode=data.draw(st.sampled_from((0o644, 0o755))))
        for name in (f"jax_rocm{number}_plugin/a.py", f"jax_rocm{number}_plugin/ü.txt")
    }
    plugin = wheels.plugin(number=number, version=old)
    plugin = plugin.but(
        files={**plugin.files, **files},
        directories=data.draw(st.booleans()),
        dist_info_first=data.draw(st.booleans()),
        comment=data.draw(st.binary(max_size=9)),
    )
    paths = [wheels.pjrt(number=number, version=old).write(folder), plugin.write(folder)]
    made = reversion(paths, folder / "out", **changes)
    reports = [inspect(path, hashes=True) for path in made]
    assert not any(report.rows or report.digests for report in reports)
    new = reports[0].version
    assert str(Version(new)) == new == reports[1].version
    (pin,) = (Requirement(item) for item in reports[1].requires)
    assert pin.specifier.contains(new, prereleases=True)
    with ZipArchive(paths[1]) as before, ZipArchive(made[1]) as after:
        assert [(m.mode, m.stamp, m.method, m.flags) for m in before.members] == [
            (m.mode, m.stamp, m.method, m.flags) for m in after.members
        ]
    back = reversion(made, folder / "back", version=old)
    for first, last in zip(paths, back, strict=True):
        assert last.name == first.name
        assert not [item for item in diff(first, last) if item.member]


def test_data_folders_and_licences_move_with_the_version(tmp_path: Path) -> None:
    made = Wheel(
        files={
            "demo/__init__.py": File(),
            "demo-1.0.data/scripts/demo": File(b"#!python\n", mode=0o755),
            "demo-1.0.dist-info/licenses/LICENSE": File(b"Apache"),
            "demo-1.0.dist-info-not/x": File(b""),
        }
    )
    (path,) = reversion([made.write(tmp_path)], tmp_path / "out", version="2.0")
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == [
            "demo/__init__.py",
            "demo-2.0.data/scripts/demo",
            "demo-2.0.dist-info/licenses/LICENSE",
            "demo-1.0.dist-info-not/x",
            "demo-2.0.dist-info/METADATA",
            "demo-2.0.dist-info/WHEEL",
            "demo-2.0.dist-info/RECORD",
        ]
    report = inspect(path, hashes=True)
    assert (report.rows, report.digests) == ((), ())


def test_one_bad_wheel_of_a_set_stops_the_whole_set(tmp_path: Path) -> None:
    good, bad = wheels.pjrt().write(tmp_path), wheels.plugin().write(tmp_path)
    bad.write_bytes(bad.read_bytes()[:-1])
    with pytest.raises(WheelError):
        plan_reversion([good, bad], NewVersion(post=1))
    out = tmp_path / "out"
    out.mkdir()
    (out / "jax_rocm7_plugin-0.9.1.post1-cp312-cp312-manylinux_2_27_x86_64.whl").write_bytes(b"x")
    with pytest.raises(WheelError, match="exists with other content"):
        reversion([good, wheels.plugin().write(tmp_path)], out, post=1)
    assert len(list(out.iterdir())) == 1


def test_running_again_finishes_and_changes_nothing(tmp_path: Path) -> None:
    paths = [wheels.pjrt().write(tmp_path), wheels.plugin().write(tmp_path)]
    made = reversion(paths, tmp_path / "out", post=1)
    bytes_before = [path.read_bytes() for path in made]
    made[0].unlink()  # as if the first run had been killed between the two
    assert reversion(paths, tmp_path / "out", post=1) == made
    assert [path.read_bytes() for path in made] == bytes_before


def test_a_signed_wheel_is_refused(tmp_path: Path) -> None:
    made = wheels.plugin()
    signed = made.but(files={**made.files, f"{made.dist_info}/RECORD.jws": File(b"{}")})
    with pytest.raises(WheelError, match=r"RECORD\.jws: a signed wheel"):
        plan_reversion([signed.write(tmp_path)], NewVersion(post=1))


def test_a_dist_info_of_another_name_is_refused(tmp_path: Path) -> None:
    path = wheels.plugin().write(tmp_path)
    other = path.rename(tmp_path / path.name.replace("0.9.1", "0.9.2"))
    with pytest.raises(WheelError, match=r"dist-info folder is jax_rocm7_plugin-0\.9\.1"):
        plan_retag([other], platform="linux_x86_64")


def test_a_version_module_too_large_to_be_edited_is_refused(tmp_path: Path) -> None:
    made = wheels.plugin()
    content = b"_release_version = '0.9.1'\n" + b"# x\n" * 400_000
    path = made.but(files={**made.files, "jax_rocm7_plugin/version.py": File(content)}).write(
        tmp_path
    )
    with pytest.raises(WheelError, match=r"version\.py: 1600027 bytes, too large to be edited"):
        plan_reversion([path], NewVersion(post=1))


@pytest.mark.parametrize(
    ("tags", "said", "hint"),
    [
        *(({"platform": text}, f"{text!r}: not a platform tag", "") for text in (
            "many linux", "a-b", "../x", "x/y", "foo", "manylinux", "manylinux2020_x86_64",
            "manylinux_2_28", "linux", "Linux_x86_64", "cp312", "manylinux_99999_1_x86_64",
            "manylinux_2_999_x86_64", "manylinux_2_028_x86_64", "musllinux_9_2_x86_64",
            "manylinux_2_99_x86_64",
        )),
        ({"platform": "a..b"}, "not a platform tag", ""),
        ({"python": "../x"}, "'../x': not a python tag", ""),
        # the dot of a version is none between tags
        ({"python": "cp3.12"}, "'cp3.12': not a python tag", "write cp312"),
        ({"abi": "cp3.12.abi3"}, "'cp3.12.abi3': not a ABI tag", "write cp312.abi3"),
        ({"python": "cp3.11.cp3.12"}, "not a python tag", "write cp311.cp312"),
        ({"platform": "manylinux_2.28_x86_64"}, "not a", "write manylinux_2_28_x86_64"),
        ({"python": "cp312.313"}, "'313': not a python tag", "write for example cp312"),
    ],
)  # fmt: skip
def test_tags_that_no_installer_ever_asks_for_are_refused(tags, said, hint, tmp_path: Path) -> None:
    path = wheels.plugin().write(tmp_path)
    with pytest.raises(ConfigError) as caught:
        plan_retag([path], **tags)
    assert said in str(caught.value)
    assert hint in caught.value.hint
