"""The external repositories that wheels depend on, as the sources define them: `needed`.

Bazel is asked after a build, with the options of that build: all is loaded and analysed then, so
that nothing is fetched, and the answer is the same whatever lay in a cache or in the output base.
"""

from __future__ import annotations

import ast
import base64
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeAlias

from rocwheel.bazel.events import fields
from rocwheel.bazel.invocation import BAZEL_WITH_MODULES, BazelInvocation
from rocwheel.download.urls import without_secrets
from rocwheel.errors import CommandError
from rocwheel.model import WheelKind
from rocwheel.process import Runner

Definition: TypeAlias = tuple[str, Mapping[str, Any]]  # class of the rule, its attributes
FETCHED, CONFIGURED, NOT_KNOWN = "fetched", "configured", "not known"
_NAMED: Final = re.compile(r"^@@?([^/@]+)//", re.MULTILINE)  # of a label
_CALL: Final = re.compile(r"^([\w.]+)(\(\n.*?^\))$", re.MULTILINE | re.DOTALL)
_HERE: Final = frozenset({"local_repository", "new_local_repository"})
_BAZELS_OWN: Final = "bazel_tools"
# Options that decide what repositories are: with other ones Bazel would make them anew. Those that
# name files to be written or carry secrets do not.
_LOADING: Final = re.compile(
    r"--(?![^=]*(?:_log|remote|header|credential|profile|build_event))(?:no)?"
    r"(?:allow_yanked|distdir|downloader_|enable_|experimental_|incompatible_|lockfile_|override_"
    r"|registry|repo_|repository_|vendor_)"
)
_WORKSPACE: Final = ("--output=build", "//external:*")
_PINNED: Final = re.compile(r"([\w.-]+)(?:\[.*?])?==([\w.!+-]+)")


class Repository(NamedTuple):
    """One repository, and what its definition names; "" where it names none.

    `fetched`: from an address; `configured`: by a rule that names none, of what the machine has or
    of addresses that it computes; `not known`: Bazel shows no definition.
    """

    role: str
    name: str
    version: str = ""  # a commit, or a release of a package
    purl: str = ""


def needed(
    of: BazelInvocation, parsed: Sequence[str], runner: Runner
) -> dict[WheelKind, tuple[Repository, ...]]:
    """Return what each wheel of a finished build depends on, without folders of this machine.

    `parsed` are the options that the build had, those of rc files too. Raises CommandError.
    """
    has_modules = of.spec.bazel.release >= BAZEL_WITH_MODULES
    form = ("--output=label", *(("--consistent_labels",) if has_modules else ()))
    used = {}
    for kind, label in of.targets.items():
        labels = runner.capture(of.ask("cquery", *of.options, *form, f'deps("{label}")'))
        used[kind] = {*_NAMED.findall(labels)} - {_BAZELS_OWN}
    defined = _definitions(of, sorted({*itertools.chain(*used.values())}), parsed, runner)
    here = {text.partition("=")[2].partition("=")[0] for text in parsed if "override_repo" in text}
    return {
        kind: tuple(
            _repository(name, defined.get(name))
            for name in sorted(names - here)
            if defined.get(name, ("",))[0] not in _HERE
        )
        for kind, names in used.items()
    }


def _definitions(
    of: BazelInvocation, names: Sequence[str], parsed: Sequence[str], runner: Runner
) -> dict[str, Definition]:
    """Return the definitions of repositories, WORKSPACE's before those of modules."""
    flags = base64.b64decode(runner.capture(of.ask("help", "flags-as-proto")))
    infos = [[*fields(flag)] for _, flag in fields(flags)]  # FlagInfo in bazel_flags.proto
    known = {dict(info)[1].decode() for info in infos if (4, b"query") in info}
    shared = [each for each in parsed if _LOADING.match(each) and _names(each) & known]
    if of.spec.bazel.release < BAZEL_WITH_MODULES:
        return dict(_read(runner.capture(of.ask("query", *shared, *_WORKSPACE))))
    found = dict[str, Definition]()
    with suppress(CommandError):  # Bazel 9 has no WORKSPACE
        found.update(_read(runner.capture(of.ask("query", *shared, *_WORKSPACE))))
    if others := [f"@@{name}" for name in names if name not in found]:
        with suppress(CommandError):  # where modules are off
            found.update(_read(runner.capture(of.ask("mod", "show_repo", *shared, *others))))
    return found


def _names(option: str) -> set[str]:
    """Return the flags that an option may set: `--noexperimental_x` is one of `experimental_x`."""
    name = option.removeprefix("--").partition("=")[0]
    return {name, name.removeprefix("no")}


def _read(text: str) -> Iterator[tuple[str, Definition]]:
    """Yield names and definitions of what Bazel prints as calls in the language of BUILD files."""
    for rule, call in _CALL.findall(text):
        with suppress(SyntaxError, ValueError):
            words = getattr(ast.parse(f"f{call}", mode="eval").body, "keywords", ())
            values = {each.arg: ast.literal_eval(each.value) for each in words}
            yield str(values.get("name")), (rule, values)


def _repository(name: str, definition: Definition | None) -> Repository:
    from packageurl import PackageURL

    if definition is None:
        return Repository(NOT_KNOWN, name)
    has = {key: value for key, value in definition[1].items() if value}
    url = next(iter(has.get("urls", ())), has.get("url", ""))
    digest, commit = has.get("sha256", ""), ""
    if has.get("integrity", "").startswith("sha256-"):
        digest = base64.b64decode(has["integrity"].partition("-")[2]).hex()
    if "remote" in has:
        commit = next((has[key] for key in ("commit", "tag", "branch") if key in has), "")
    asked = {
        "checksum": f"sha256:{digest.lower()}" if digest else "",
        "download_url": without_secrets(url),
        "vcs_url": f"git+{without_secrets(has['remote'])}" if "remote" in has else "",
    }
    said = {key: text for key, text in asked.items() if text}
    if pinned := _PINNED.match(has.get("requirement", "")):
        purl = PackageURL("pypi", name=pinned[1], version=pinned[2], qualifiers=said)
    elif url or "remote" in has:
        purl = PackageURL("generic", name=name, version=commit or None, qualifiers=said)
    else:
        return Repository(CONFIGURED, name)
    return Repository(FETCHED, name, purl.version or "", str(purl))
