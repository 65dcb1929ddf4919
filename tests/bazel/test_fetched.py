"""What Bazel fetched, as Bazel 7 and later say it: its log, its events and its repository cache.

No Bazel after 4.2.3 runs here, so a program stands in for one. It writes what these sources of
Bazel's write: workspace_log.proto (the log, one message after another, each after its length),
`FetchId` in build_event_stream.proto, `storeCacheValue` in DownloadCache.java (`file`, and
`id-` with the SHA-256 of the canonical id) and `get_default_canonical_id` in
tools/build_defs/repo/cache.bzl (the URLs, joined by blanks). Bazel 4.2.3 itself is asked in
tests/bazel/test_build.py.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from hashlib import sha256, sha512
from pathlib import Path

import pytest

from rocwheel import bazel
from rocwheel.base.values import replace
from rocwheel.base.versions import WheelKind
from rocwheel.bazel import BazelBinary, Caches
from rocwheel.bazel.events import read_asked
from tests.bazel.test_invocations import spec

DOWNLOAD, DOWNLOAD_AND_EXTRACT, EXECUTE = 4, 5, 3
INTEGRITY = {DOWNLOAD: 5, DOWNLOAD_AND_EXTRACT: 6}
UPSTREAM = "https://github.com/openxla/llvm.tar.gz"
MIRROR = "https://storage.googleapis.com/mirror.tensorflow.org/github.com/openxla/llvm.tar.gz"
# in place of Bazel: copies what a test prepared to where the options say
PROGRAM = """#!{python}
import pathlib, shutil, sys
if "build" in sys.argv:
    for name, option in (("log", "experimental_workspace_rules_log_file"),
                         ("events", "build_event_json_file")):
        start = "--" + option + "="
        (path,) = [word[len(start):] for word in sys.argv if word.startswith(start)]
        shutil.copyfile("{here}/" + name, path)
    for file in pathlib.Path("{here}/repositories").glob("content_addressable/*/*/file"):
        if not file.with_name("old").exists():
            file.touch()
"""


def number(value: int) -> bytes:
    """A varint."""
    more, low = value >> 7, value & 0x7F
    return bytes([low | 0x80]) + number(more) if more else bytes([low])


def field(tag: int, value: bytes | str | int) -> bytes:
    if isinstance(value, int):
        return number(tag << 3) + number(value)
    data = value.encode() if isinstance(value, str) else value
    return number(tag << 3 | 2) + number(len(data)) + data


def event(repository: str, kind: int, *parts: bytes) -> bytes:
    """A WorkspaceEvent, after its length."""
    own = field(1, "/jax/third_party/repo.bzl:1:2") + field(2, f"repository @@{repository}")
    whole = own + field(kind, b"".join(parts))
    return number(len(whole)) + whole


def asks(
    repository: str, *urls: str, kind: int = DOWNLOAD_AND_EXTRACT, body: bytes = b"", sri: str = ""
) -> bytes:
    """A download that names the digest of `body`, as `sha256`, or as `sri` spells it."""
    digest = [field(3, sha256(body).hexdigest().upper())] if body else []
    asked = [field(1, url) for url in urls]
    return event(repository, kind, *asked, *digest, field(4, 1), field(INTEGRITY[kind], sri))


class World:
    """A stand-in for Bazel, with what it is going to say, and where it works."""

    def __init__(self, folder: Path, runner, console) -> None:
        self.folder, self.runner, self.console = folder, runner, console
        self.cache = folder / "repositories"
        program = folder / "bazel"
        program.write_text(PROGRAM.format(python=sys.executable, here=folder))
        program.chmod(0o755)
        (folder / "jax").mkdir()
        (folder / "wheel.whl").write_bytes(b"wheel")
        self.spec = replace(
            spec(),
            kinds=(WheelKind.PJRT,),
            workspace=folder / "jax",
            bazel=BazelBinary(path=program, version="7.7.0", origin="flag"),
            caches=Caches(output_user_root=folder / "root", disk=None, repository=self.cache),
        )
        Path(self.spec.output_base).mkdir(parents=True)

    def stored(self, body: bytes, *, urls: tuple[str, ...] = (), old: bool = False) -> None:
        """Put a file into the repository cache, with the mark of the URLs it was asked from."""
        entry = self.cache / "content_addressable/sha256" / sha256(body).hexdigest()
        entry.mkdir(parents=True)
        names = ["file", *(["old"] if old else [])]
        names += [f"id-{sha256(' '.join(urls).encode()).hexdigest()}"] if urls else []
        for name in names:
            (entry / name).write_bytes(body)

    def build(self, *log: bytes, fetched: tuple[str, ...] = ()) -> dict:
        (self.folder / "log").write_bytes(b"".join(log))
        (invocation,) = bazel.invocations(self.spec)
        (label,) = invocation.targets.values()
        uri = (self.folder / "wheel.whl").as_uri()
        done = {"success": True, "outputGroup": [{"name": "default", "fileSets": [{"id": "0"}]}]}
        files = {"files": [{"name": "wheel.whl", "uri": uri}]}
        told = [
            {"id": {"fetch": {"url": url, "downloader": "HTTP"}}, "fetch": {"success": True}}
            for url in fetched
        ]
        told += [
            {"id": {"namedSet": {"id": "0"}}, "namedSetOfFiles": files},
            {"id": {"targetCompleted": {"label": label}}, "completed": done},
            {"id": {"buildFinished": {}}, "lastMessage": True},
        ]
        (self.folder / "events").write_text("".join(json.dumps(item) + "\n" for item in told))
        folders = {"folder": self.folder / "logs", "into": self.folder / "out"}
        made = bazel.build(invocation, **folders, runner=self.runner, console=self.console)
        assert not [*(self.folder / "logs").glob("*.rules")], "it holds the environment"
        return made.fetched


@pytest.fixture
def world(tmp_path, runner, console):
    return World(tmp_path, runner, console)


def digest_of(body: bytes) -> dict[str, str]:
    return {"sha256": sha256(body).hexdigest()}


def test_url_and_digest_are_paired(world):
    """By what a rule asks; where the URLs are rewritten (JAX does), by how the mirror's ends."""
    world.stored(b"llvm")
    urls = ("https://other.test/llvm.tar.gz", UPSTREAM)
    environment = field(4, field(1, "TOKEN") + field(2, "secret"))
    log = [
        event("llvm-raw", EXECUTE, field(2, "uname"), environment),
        asks("llvm-raw", *urls, body=b"llvm"),
        asks("llvm-raw", *urls, body=b"llvm"),  # rules are begun anew
        asks("one", "https://user:word@a.test/one?token=x", kind=DOWNLOAD, body=b"one"),
    ]
    fetched = (MIRROR, "https://user:word@a.test/one?token=x")
    assert world.build(*log, fetched=fetched) == {
        "repository @@llvm-raw": {MIRROR: digest_of(b"llvm")},
        "repository @@one": {"https://a.test/one": digest_of(b"one")},
    }


@pytest.mark.parametrize("kind", [DOWNLOAD, DOWNLOAD_AND_EXTRACT])
@pytest.mark.parametrize("make", [sha256, sha512])
def test_a_digest_may_be_spelt_as_an_integrity(world, kind, make):
    sri = f"{make().name}-{base64.b64encode(make(b'x').digest()).decode()}"
    said = world.build(asks("x", UPSTREAM, kind=kind, sri=sri), fetched=(UPSTREAM,))
    assert said == {"repository @@x": {UPSTREAM: {make().name: make(b"x").hexdigest()}}}


def test_what_comes_out_of_the_cache_has_the_url_that_is_asked_first(world):
    world.stored(b"llvm")
    assert world.build(asks("llvm-raw", MIRROR, UPSTREAM, body=b"llvm")) == {
        "repository @@llvm-raw": {MIRROR: digest_of(b"llvm")}
    }


def test_the_mark_in_the_cache_says_the_digest_that_a_rule_does_not(world):
    """Only where it is that of the same URLs in the same order; another says nothing."""
    urls = ("https://a.test/x.zip", "https://b.test/x.zip")
    world.stored(b"x", urls=urls)
    world.stored(b"of another build at the same time", urls=urls[::-1])
    log = (asks("x", *urls), asks("y", "https://c.test/y.zip"))
    assert world.build(*log, fetched=(urls[1], "https://c.test/y.zip")) == {
        "repository @@x": {urls[1]: digest_of(b"x")},
        "repository @@y": {"https://c.test/y.zip": {}},
    }


def test_what_no_rule_asks_for_is_named_without_a_digest(world):
    """Such as what a registry of modules says; and another build's file in the cache is not."""
    world.stored(b"another build's")
    registry = "https://bcr.bazel.build/modules/rules_cc/0.0.9/MODULE.bazel"
    assert world.build(fetched=(registry,)) == {"": {registry: {}}}


def test_a_download_that_may_fail_and_did_is_nothing_that_was_fetched(world):
    world.stored(b"earlier", old=True)  # it lies there since long, and was not used
    old = world.cache / "content_addressable/sha256" / sha256(b"earlier").hexdigest() / "file"
    os.utime(old, (1, 1))
    assert world.build(asks("maybe", UPSTREAM, body=b"earlier"), asks("no", UPSTREAM)) == {}


def test_fetches_stay_known_until_their_repository_is_fetched_again(world):
    both = (asks("a", "https://a/1", body=b"1"), asks("b", "https://b/1", body=b"2"))
    first = world.build(*both, fetched=("https://a/1", "https://b/1"))
    assert len(first) == 2
    assert world.build() == first, "a build that fetches nothing"
    second = world.build(asks("b", "https://b/2", body=b"3"), fetched=("https://b/2",))
    assert second == {**first, "repository @@b": {"https://b/2": digest_of(b"3")}}
    (world.folder / "root").rename(world.folder / "away")  # an output base that is gone
    Path(world.spec.output_base).mkdir(parents=True)
    assert world.build() == {}


def test_what_no_rule_asked_for_stays_known_after_another_build_fetched_more(world):
    modules = [f"https://bcr.bazel.build/modules/{name}/MODULE.bazel" for name in ("a", "b")]
    world.build(fetched=modules[:1])
    assert world.build(fetched=modules[1:]) == {"": {modules[0]: {}, modules[1]: {}}}


def test_a_damaged_log_fails_no_build(world):
    log = b"".join(asks(str(turn), f"https://a/{turn}", body=b"x") for turn in range(3))
    urls = tuple(f"https://a/{turn}" for turn in range(3))
    path = world.folder / "cut"
    for end in range(len(log)):
        path.write_bytes(log[:end])
        whole = [*read_asked(path)]
        assert len(whole) <= 3
        assert [item[1] for item in whole] == [(url,) for url in urls[: len(whole)]]
    undecoded = event("a", DOWNLOAD, field(1, b"https://\xff"), field(3, "1" * 64))
    for data in (
        undecoded,
        asks("a", UPSTREAM, sri="sha256-x"),
        b"\xff" * 40,
        b"\x00" * 40,
        bytes(range(256)),
        log[1:],
    ):
        path.write_bytes(data)
        assert isinstance([*read_asked(path)], list)
    said = world.build(log[: len(log) // 2], fetched=urls)
    assert {url for urls in said.values() for url in urls} == set(urls)
