"""Reading and splicing archives of every shape that a wheel may have."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.wheels import Entry, Wheel, Zip

from rocwheel.base.errors import WheelError
from rocwheel.wheel.zip_reader import ZipArchive
from rocwheel.wheel.zip_writer import Outbox, ZipPart

names = st.text(
    st.characters(codec="utf-8", categories=("L", "N"), include_characters="_- +"),
    min_size=1,
    max_size=12,
).filter(lambda text: text.strip() == text and text not in (".", ".."))
contents = st.one_of(
    st.just(b""), st.binary(max_size=200), st.builds(lambda n: b"\0" * n, st.integers(0, 300_000))
)


@st.composite
def archives(draw) -> Zip:
    """Any sound archive: methods, zip64, descriptors, comments, extra fields, odd orders."""
    found = draw(st.lists(names, min_size=1, max_size=8, unique_by=lambda name: name.casefold()))
    entries = []
    for name in found:
        is_folder = draw(st.integers(0, 5)) == 0
        content = b"" if is_folder else draw(contents)
        zip64 = draw(st.booleans())
        descriptors = ["", "signed64", "plain64"] if zip64 else ["", "signed", "plain"]
        raw = f"p/{name}/".encode() if is_folder else f"p/{name}".encode()
        method = 0 if is_folder else draw(st.sampled_from((0, 8)))
        entries.append(
            Entry(
                raw,
                content,
                method=method,
                flags=0 if raw.isascii() else 0x800,
                mode=0o40755 if is_folder else draw(st.sampled_from((0o100644, 0o100755, 0))),
                made_by=draw(st.sampled_from((0, 3))),
                zip64=zip64,
                descriptor=draw(st.sampled_from(descriptors)) if method else "",
                extra=draw(st.sampled_from((b"", b"UT\x05\0\x03abcd"))),
                local_extra=draw(st.sampled_from((b"", b"UT\x05\0\x03abcd"))),
                member_comment=draw(st.sampled_from((b"", b"a note"))),
            )
        )
    order = range(len(entries))
    return Zip(
        entries,
        comment=draw(st.binary(max_size=20).filter(lambda text: b"PK" not in text)),
        order=draw(st.one_of(st.just(order), st.permutations(order))),
    )


def places(archive: ZipArchive) -> list[int]:
    """Which member lies first, second …: the directory may list them in another order."""
    starts = [item.start for item in archive.members]
    return sorted(range(len(starts)), key=starts.__getitem__)


every_shape = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


@every_shape
@given(made=archives())
def test_every_sound_archive_reads_as_python_reads_it(made: Zip, tmp_path_factory) -> None:
    path = tmp_path_factory.mktemp("zip") / "a.zip"
    path.write_bytes(made.to_bytes())
    with ZipArchive(path) as ours, zipfile.ZipFile(path) as theirs:
        assert [member.name for member in ours.members] == theirs.namelist()
        for member in ours.members:
            assert b"".join(ours.stream(member)) == theirs.read(member.name)
        assert ours.comment == theirs.comment


@every_shape
@given(made=archives())
def test_an_archive_of_kept_members_is_the_same_file(made: Zip, tmp_path_factory) -> None:
    folder = tmp_path_factory.mktemp("zip")
    path = folder / "a.zip"
    path.write_bytes(made.to_bytes())
    with ZipArchive(path) as archive, Outbox(folder / "out") as box:
        parts = [ZipPart(member=item, name=item.name) for item in archive.members]
        box.write("a.zip", parts, archive)
    assert (folder / "out" / "a.zip").read_bytes() == path.read_bytes()


@every_shape
@given(made=archives(), data=st.data())
def test_what_is_not_renamed_or_rewritten_keeps_every_property(made, data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("zip")
    path = folder / "a.zip"
    path.write_bytes(made.to_bytes())
    with ZipArchive(path) as archive, Outbox(folder / "out") as box:
        parts = []
        for item in archive.members:
            kind = data.draw(st.sampled_from(("keep", "rename", "rewrite")))
            if kind == "rewrite" and not item.is_dir:
                parts.append(ZipPart(member=item, name=item.name, content=b"new content\n" * 9))
            else:
                name = item.name if kind == "keep" else "longer-" + item.name
                parts.append(ZipPart(member=item, name=name))
        box.write("a.zip", parts, archive)
    with ZipArchive(path) as old, ZipArchive(folder / "out" / "a.zip") as new:
        assert places(old) == places(new)
        for before, after, part in zip(old.members, new.members, parts, strict=True):
            assert after.name == part.name
            assert (after.mode, after.stamp, after.method) == (
                before.mode,
                before.stamp,
                before.method,
            )
            if part.content is None:
                assert after.flags == before.flags
                assert b"".join(new.raw(after.data, after.end)) == b"".join(
                    old.raw(before.data, before.end)
                )
            else:
                assert b"".join(new.stream(after)) == b"new content\n" * 9
    with zipfile.ZipFile(folder / "out" / "a.zip") as theirs:
        assert theirs.testzip() is None


def test_more_than_65534_members_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    path.write_bytes(Zip([Entry(b"p/first", b"x")]).to_bytes())
    with (  # noqa: PT012
        pytest.raises(WheelError, match="more than a wheel has"),
        ZipArchive(path) as archive,
        Outbox(tmp_path / "out") as box,
    ):
        names = map("p/{}".format, range(65_535))
        box.write(
            "a.zip",
            [ZipPart(member=archive.members[0], name=x, content=b"") for x in names],
            archive,
        )
    assert list((tmp_path / "out").iterdir()) == []


def test_what_is_not_complete_is_hidden_and_other_bytes_stay(tmp_path: Path) -> None:
    path = Wheel().write(tmp_path)
    with ZipArchive(path) as archive, Outbox(tmp_path / "out") as box:
        box.write("a.whl", kept(archive), archive)
        (hidden,) = (tmp_path / "out").iterdir()
        assert hidden.name.startswith(".unfinished-")
    assert [item.name for item in (tmp_path / "out").iterdir()] == ["a.whl"]
    with (
        pytest.raises(WheelError, match=r"a\.whl: exists"),
        ZipArchive(path) as archive,
        Outbox(tmp_path / "out") as box,
    ):
        box.write("a.whl", kept(archive)[:1], archive)
    assert (tmp_path / "out" / "a.whl").read_bytes() == path.read_bytes()


def kept(archive: ZipArchive) -> list[ZipPart]:
    return [ZipPart(member=item, name=item.name) for item in archive.members]


def test_nothing_appears_when_the_block_fails(tmp_path: Path) -> None:
    path = Wheel().write(tmp_path)
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt), ZipArchive(path) as archive, Outbox(out) as box:  # noqa: PT012
        box.write("a.whl", kept(archive), archive)
        raise KeyboardInterrupt
    assert list(out.iterdir()) == []


def test_a_new_wheel_has_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    path = Wheel().write(tmp_path)
    with ZipArchive(path) as archive, Outbox(tmp_path / "out") as box:
        box.write("a.whl", kept(archive), archive)
    mask = os.umask(0)
    os.umask(mask)
    assert (tmp_path / "out" / "a.whl").stat().st_mode & 0o777 == 0o666 & ~mask
