"""What Bazel says of the repositories that wheels depend on, in the words of several Bazels.

A program stands in for Bazel 6 and later; 4.2.3 is asked in tests/bazel/test_build.py.
"""

from __future__ import annotations

import base64
import sys
from hashlib import sha256
from pathlib import Path

import pytest
from packageurl import PackageURL
from support.trust import INVOCATION

from rocwheel import bazel
from rocwheel.base.errors import CommandError
from rocwheel.base.values import replace
from rocwheel.base.versions import PythonVersion, WheelKind
from rocwheel.bazel import BazelBinary, Caches, queries
from rocwheel.bazel.queries import Repository, needed
from tests.bazel.test_fetched import field
from tests.bazel.test_invocations import spec

BODY = sha256(b"body")
SRI = f"sha256-{base64.b64encode(BODY.digest()).decode()}"
# in place of Bazel: prints the file of its command, and writes down how it was called
PROGRAM = """#!{python}
import pathlib, sys
here = pathlib.Path("{here}")
(command,) = [word for word in sys.argv if word in ("cquery", "help", "query", "mod")]
(here / (command + ".argv")).write_text("\\n".join(sys.argv))
if not (here / command).exists():
    sys.exit("ERROR: no " + command)
print((here / command).read_text())
"""
ARCHIVE = f'http_archive(\n  name = "{{}}",\n  urls = ["https://a.test/x", "https://b.test/x"],\n  sha256 = "{BODY.hexdigest().upper()}",\n)\n'


class World:
    """A stand-in for a Bazel that says what a test wrote."""

    def __init__(self, folder: Path, runner) -> None:
        self.folder, self.runner = folder, runner
        program = folder / "bazel"
        program.write_text(PROGRAM.format(python=sys.executable, here=folder))
        program.chmod(0o755)
        (folder / "jax").mkdir()
        self.says("help", base64.b64encode(b"".join(map(flag, FLAGS))).decode())

    def says(self, command: str, text: str) -> None:
        (self.folder / command).write_text(text)

    def needed(self, *parsed: str, version: str = "7.7.0") -> list[Repository]:
        binary = BazelBinary(path=self.folder / "bazel", version=version, origin="flag")
        made = replace(spec(), kinds=(WheelKind.PJRT,), workspace=self.folder / "jax", bazel=binary)
        (invocation,) = bazel.invocations(made)
        (found,) = needed(invocation, parsed, self.runner).values()
        return [*found]

    def argv(self, command: str) -> list[str]:
        return (self.folder / f"{command}.argv").read_text().splitlines()


FLAGS = {"repo_env": "query", "experimental_x": "query", "copt": "build", "remote_header": "query"}
FLAGS |= {"experimental_y": "build", "repo_log": "query"}


def flag(name: str) -> bytes:
    """A FlagInfo of bazel_flags.proto."""
    info = field(1, name) + field(2, 1) + field(4, "build")
    return field(1, info + (field(4, "query") if FLAGS[name] == "query" else b""))


@pytest.fixture
def world(tmp_path, runner):
    return World(tmp_path, runner)


def said(each: Repository) -> dict[str, str]:
    return dict(PackageURL.from_string(each.purl).qualifiers)


def test_labels_name_repositories_and_definitions_their_sources(world):
    world.says(
        "cquery",
        "@@//jaxlib:w (1a)\n//x:y (null)\n@@bazel_tools//a:b (1)\n"
        + "".join(f"@@{name}//:z (1)\n" for name in ("x", "git", "pip", "sri", "rule", "none")),
    )
    world.says(
        "query",
        "# /jax/WORKSPACE:1:1\n"
        + ARCHIVE.format("x").replace("https://a.test", "https://user:word@a.test")
        + f'fetch(\n  name = "sri",\n  url = "https://a.test/s",\n  integrity = "{SRI}",\n)\n'
        'git_repository(\n  name = "git",\n  remote = "https://g.test/r",\n  commit = "c0",\n)\n'
        'whl_library(\n  name = "pip",\n  requirement = "numpy[x]==2.1 --hash=sha256:0",\n)\n'
        'configure(\n  name = "rule",\n  text = "\\n)\\"",\n)\n' + ARCHIVE.format("unused"),
    )
    found = {each.name: each for each in world.needed()}
    roles = {name: each.role for name, each in found.items()}
    fetched = dict.fromkeys(("git", "pip", "sri", "x"), "fetched")
    assert roles == {**fetched, "none": "not known", "rule": "configured"}
    digest = f"sha256:{BODY.hexdigest()}"
    assert said(found["x"]) == {"checksum": digest, "download_url": "https://a.test/x"}
    assert said(found["sri"]) == {"checksum": digest, "download_url": "https://a.test/s"}
    assert said(found["git"]) == {"vcs_url": "git+https://g.test/r"}
    assert found["git"].purl.startswith("pkg:generic/git@c0?")
    assert found["pip"] == Repository("fetched", "pip", "2.1", "pkg:pypi/numpy@2.1")
    assert all(
        str(PackageURL.from_string(each.purl)) == each.purl for each in found.values() if each.purl
    )


def test_folders_of_this_machine_are_nothing_that_was_fetched(world):
    world.says("cquery", "@@x//:a (1)\n@@xla//:a (1)\n@@here//:a (1)\n")
    local = 'new_local_repository(\n  name = "here",\n  path = "/home/me",\n)\n'
    world.says("query", ARCHIVE.format("x") + ARCHIVE.format("xla") + local)
    assert [each.name for each in world.needed("--override_repository=xla=/src/xla")] == ["x"]


def test_a_tree_of_modules_is_asked_for_those_that_workspace_does_not_define(world):
    world.says("cquery", "@@x//:a (1)\n@@rules_cc+//:a (1)\n@@_main~ext~p//:a (1)\n")
    world.says(
        "mod", f"## @@rules_cc+:\n{ARCHIVE.format('rules_cc+')}\n{ARCHIVE.format('_main~ext~p')}"
    )
    assert {each.name: each.role for each in world.needed()} == {
        "x": "not known", "rules_cc+": "fetched", "_main~ext~p": "fetched",
    }  # fmt: skip
    assert world.argv("mod")[-3:] == ["@@_main~ext~p", "@@rules_cc+", "@@x"]
    assert "--consistent_labels" in world.argv("cquery")
    world.says("query", ARCHIVE.format("x"))
    assert {each.role for each in world.needed()} == {"fetched"}
    assert world.argv("mod")[-2:] == ["@@_main~ext~p", "@@rules_cc+"]


def test_an_old_bazel_is_asked_in_its_words_and_one_that_fails_says_so(world):
    world.says("cquery", "@x//:a (1)\n")
    with pytest.raises(CommandError, match="query"):
        world.needed(version="4.2.3")
    world.says("query", ARCHIVE.format("x"))
    assert [each.name for each in world.needed(version="4.2.3")] == ["x"]
    assert "--consistent_labels" not in world.argv("cquery")
    assert not (world.folder / "mod.argv").exists()


def test_only_what_decides_on_repositories_is_passed_on(world):
    """Another option of a build is none of `query`'s; secrets and files stay where they are."""
    world.says("cquery", "@@x//:a (1)\n")
    world.says("query", ARCHIVE.format("x"))
    kept = ["--repo_env=X=remote_profile", "--noexperimental_x", "--experimental_x=1"]
    left = [
        "--copt=-O2",
        "--remote_header=a=b",
        "--experimental_y",
        "--repo_log=/x",
        "--config=rocm",
    ]
    world.needed(*kept, *left)
    own = world.argv("query")
    assert own[own.index("query") + 1 :] == [*kept, "--output=build", "//external:*"]


# What an invocation costs: its actions, and what the builds that filled a disk cache left of it.


SUMMARY = """4,014 total actions.

Mnemonics:
  CppCompile: 4012
  CppLink: 2
  Middleman: 9

Configurations:
  k8-opt: 4014
"""
TEXT = "action 'Compiling a.cc'\n  Mnemonic: CppCompile\n  Target: //:a\n\naction 'b'\n  Mnemonic: Middleman\n"


def test_actions_that_start_a_process_are_counted_of_both_forms():
    assert queries.counted(SUMMARY) == {"CppCompile": 4012, "CppLink": 2}
    assert queries.counted(TEXT) == {"CppCompile": 1}


@pytest.mark.parametrize(
    ("changes", "says", "is_cold"),
    [
        ({}, "made from the same", False),
        ({"kinds": (WheelKind.PLUGIN,)}, "made from the same", False),
        ({"pythons": (PythonVersion(3, 14),)}, "differs in CPython: has all but what", False),
        (
            {"git_hash": "2" * 40, "pythons": (PythonVersion(3, 14),)},
            "differs in JAX, CPython: has what did not change since",
            False,
        ),
        ({"rocm_root": "/other"}, "in ROCm, so none of it can be reused: every compile", True),
        ({"gfx_targets": ("gfx90a",)}, "in gfx targets, so none of it can be reused", True),
        ({"options": ("--copt=-g",)}, "in set of Bazel options, so none of it", True),
        ({"kinds": (WheelKind.JAXLIB,)}, "no build of these wheels is known", True),
    ],
)
def test_the_disk_cache_serves_what_a_build_has_in_common(changes, says, is_cold, runner, tmp_path):
    caches = Caches(output_user_root=tmp_path / "out", disk=tmp_path / "disk", repository=None)
    kinds = (WheelKind.PLUGIN, WheelKind.PJRT)
    made = replace(spec(), caches=caches, kinds=kinds, git_hash="1" * 40)
    queries.remember(bazel.invocations(made)[0], INVOCATION, runner, when="2026-11-26 22:10 UTC")
    now = bazel.invocations(replace(made, **changes))[0]
    said, cold = queries.compared(now, queries.earlier(now, runner))
    assert says in said
    assert cold is is_cold
