"""What programs of an image answer: asked once, and again where nothing was answered."""

from __future__ import annotations

import pytest

from rocwheel.errors import CommandError
from rocwheel.image.contents import ImageFacts, ImagePrograms
from rocwheel.process import Command, HostRunner


class Image:
    """This machine in the place of a container that starts; a folder is all its PATH."""

    def __init__(self, folder):
        self.path, self.file, self.started = folder / "bin", folder / "cache" / "answers.json", 0
        self.path.mkdir()

    def add(self, name, script):
        (self.path / name).write_text(f"#!/bin/sh\n{script}\n")
        (self.path / name).chmod(0o755)

    def start(self):
        self.started += 1
        return HostRunner({"PATH": str(self.path)})

    @property
    def programs(self):
        """As a new run has them."""
        return ImagePrograms(self.file, self.start)


@pytest.fixture
def image(tmp_path):
    return Image(tmp_path)


def test_what_a_program_answered_is_not_asked_again(image):
    image.add("clang", 'echo "said $1"')
    ask = Command(argv=("clang", "-print-prog-name=ld.lld"))
    assert [image.programs.answer(ask) for _ in range(3)] == ["said -print-prog-name=ld.lld\n"] * 3
    assert [image.programs.has("clang") for _ in range(3)] == [True] * 3
    assert image.started == 2


def test_other_words_are_another_question(image):
    image.add("clang", 'echo "$1"')
    words = ("-dumpversion", "-print-prog-name=ld.gold")
    assert [image.programs.answer(Command(argv=("clang", word))) for word in words] == [
        f"{word}\n" for word in words
    ]


def test_what_is_missing_is_looked_for_again(image):
    """An engine that failed must not have taken a program from an image for ever."""
    assert not image.programs.has("readelf")
    image.add("clang", "exit 3")
    with pytest.raises(CommandError):
        image.programs.answer(Command(argv=("clang",)))
    image.add("readelf", "true")
    image.add("clang", "echo 19")
    assert image.programs.has("readelf")
    assert image.programs.answer(Command(argv=("clang",))) == "19\n"


@pytest.mark.parametrize("text", ["", "[]", '{"a": 1}', "{"])
def test_answers_of_another_version_are_asked_for_again(image, text):
    image.add("clang", "echo 19")
    image.file.parent.mkdir()
    image.file.write_text(text)
    assert image.programs.has("clang")
    assert image.programs.has("clang")
    assert image.started == 1


def test_what_lies_in_a_mounted_folder_is_none_of_the_image(image):
    """The same image is given another ROCm, whose clang a build may be told to use."""
    image.add("clang", "echo 19")
    there = f"{image.path}/clang"
    for answer in ("19\n", "20\n"):
        programs = ImagePrograms(image.file, image.start, mounted=[image.path])
        assert programs.has(there)
        assert programs.answer(Command(argv=(there,))) == answer
        image.add("clang", "echo 20")
    (image.path / "clang").unlink()
    assert not ImagePrograms(image.file, image.start, mounted=[image.path]).has(there)


def test_answers_that_cannot_be_kept_are_given_all_the_same(image):
    image.add("clang", "echo 19")
    image.file.parent.write_text("a file where the cache should be")
    for _ in range(2):
        assert image.programs.answer(Command(argv=("clang",))) == "19\n"
        assert image.programs.has("clang")


def test_where_nothing_shall_be_kept_nothing_is_written(image):
    image.add("clang", "echo 19")
    programs = ImagePrograms(image.file, image.start, remember=False)
    assert programs.has("clang")
    assert not image.file.parent.exists()


@pytest.mark.parametrize("said", ["{}", "[]", '{"implementation": "cpython", "version": [1]}'])
def test_what_is_no_answer_of_a_cpython_is_none_of_the_image(said):
    facts = ImageFacts(
        architecture="", glibc="", tool="", bazels=(), compilers=(),
        pythons=(said,),
    )  # fmt: skip
    assert facts.interpreters == ()
