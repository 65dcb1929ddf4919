"""Wheels made to harm or to confuse: each is refused with one clear error, and nothing is written."""

from __future__ import annotations

import struct
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import wheels
from support.hostile import CORPUS, DEEP, GOOD, NAME, SOUND, good, restated
from support.wheels import POLICY, File, NoRunner, Zip, make_elf

from rocwheel.base.errors import WheelError
from rocwheel.wheel import Limits, rename, zip_reader
from rocwheel.wheel.rename import NewVersion, plan_retag, plan_reversion
from rocwheel.wheel.repair import apply, plan_repair
from rocwheel.wheel.verify import verify
from rocwheel.wheel.verify.rules import Severity
from rocwheel.wheel.zip_reader import ZipArchive


def test_the_corpus_is_large_and_its_model_is_sound(tmp_path: Path) -> None:
    assert len(CORPUS) >= 100
    path = tmp_path / NAME
    path.write_bytes(SOUND)
    assert verify(path, policy=POLICY) == ()


@pytest.mark.parametrize("title", CORPUS)
def test_a_hostile_wheel_is_refused_and_nothing_is_written(title: str, tmp_path: Path, console):
    data, message = CORPUS[title]
    path, out = tmp_path / NAME, tmp_path / "out"
    path.write_bytes(data)
    findings = verify(path, policy=POLICY)
    assert any(item.severity is Severity.ERROR for item in findings)
    with pytest.raises(WheelError, match=message or "path") as refusal:
        apply(plan_repair(path, policy=POLICY), out, runner=NoRunner(), console=console)
    assert "\n" not in str(refusal.value)
    assert refusal.value.hint
    assert NAME in str(refusal.value)
    assert not out.exists()
    assert path.read_bytes() == data


@pytest.mark.parametrize(
    "title", [title for title in CORPUS if title not in DEEP and not title.startswith("ELF")]
)
def test_what_the_structure_shows_is_refused_before_renaming(title: str, tmp_path: Path) -> None:
    data, message = CORPUS[title]
    path = tmp_path / NAME
    path.write_bytes(data)
    with pytest.raises(WheelError, match=message or "path"):
        plan_retag([path], platform="manylinux_2_35_x86_64")
    with pytest.raises(WheelError, match=message or "path"):
        plan_reversion([path], NewVersion(post=1))


def test_what_is_rewritten_must_agree_with_record(tmp_path: Path) -> None:
    path = tmp_path / NAME
    members = good()
    members[2].content += b"Extra: line\n"  # METADATA, after RECORD was made
    path.write_bytes(Zip(members).to_bytes())
    with pytest.raises(WheelError, match="METADATA: differs from RECORD"):
        plan_reversion([path], NewVersion(post=1))


def test_true_64_bit_sizes_that_nothing_asks_for_are_read_and_kept(tmp_path: Path) -> None:
    """protobuf's wheels have them; the corpus has those that are not true."""
    path = tmp_path / NAME
    path.write_bytes(Zip(good(local_extra=restated())).to_bytes())
    assert not [item for item in verify(path, policy=POLICY) if item.rule == "archive"]
    (plan,) = plan_retag([path], platform="manylinux_2_35_x86_64")
    made = rename.apply([plan], tmp_path / "out")[0]
    with zipfile.ZipFile(made) as archive:
        assert archive.testzip() is None
    with ZipArchive(made) as archive:
        assert archive.members[0].local.endswith(restated())


def test_each_limit_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / NAME
    path.write_bytes(SOUND)
    for limits in (
        Limits(directory=10),
        Limits(total=100),
        Limits(record=10),
    ):
        monkeypatch.setattr(zip_reader, "LIMITS", limits)
        with pytest.raises(WheelError), ZipArchive(path) as archive:
            archive.read(f"{GOOD.dist_info}/RECORD")


def read_all(path: Path) -> None:
    """Use everything that reads; a WheelError is a fine outcome, any other exception is not."""
    for action in (
        lambda: verify(path, policy=POLICY),
        lambda: plan_retag([path], platform="manylinux_2_35_x86_64"),
        lambda: plan_reversion([path], NewVersion(post=1)),
    ):
        with suppress(WheelError):
            action()


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    flips=st.lists(st.tuples(st.integers(0, len(SOUND) - 1), st.integers(0, 255)), max_size=6),
    cut=st.integers(0, len(SOUND)),
    insert=st.binary(max_size=8),
)
def test_a_damaged_archive_never_breaks_the_reader(flips, cut, insert, tmp_path_factory) -> None:
    data = bytearray(SOUND)
    for at, value in flips:
        data[at] = value
    path = tmp_path_factory.mktemp("fuzz") / NAME
    path.write_bytes(bytes(data[:cut]) + insert + bytes(data[cut:]))
    read_all(path)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_damaged_elf_file_never_breaks_the_reader(data, tmp_path_factory) -> None:
    sound = make_elf(
        needed=("libamdhip64.so.7",),
        runpath="/opt/rocm/lib",
        versions={"libc.so.6": ("GLIBC_2.17",)},
        exports=("GetPjrtApi",),
        bundles=(
            wheels.make_bundle(("gfx942",)),
            wheels.pack_bundle(wheels.make_bundle(("gfx90a",))),
        ),
    )
    image = bytearray(sound)
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, len(image) - 8))
        image[at : at + 8] = data.draw(
            st.one_of(st.binary(min_size=8, max_size=8), st.integers(0, 2**64 - 1).map(_qword))
        )
    made = GOOD.but(files={"demo/x.so": File(bytes(image), mode=0o755)})
    read_all(made.write(tmp_path_factory.mktemp("fuzz")))


def _qword(value: int) -> bytes:
    return struct.pack("<Q", value)
