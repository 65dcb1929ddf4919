"""The external repositories that wheels depend on, as the sources define them: `needed`.

Bazel is asked after a build, with the options of that build: all is loaded and analysed then, so
that nothing is fetched. The answer does not depend on caches or on the output base.
"""

import ast
import base64
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeAlias

from rocwheel.base.download.urls import without_secrets
from rocwheel.base.errors import CommandError
from rocwheel.base.process import Runner
from rocwheel.base.versions import WheelKind
from rocwheel.bazel.events import fields
from rocwheel.bazel.invocation import BAZEL_WITH_MODULES, BazelInvocation

Definition: TypeAlias = tuple[str, Mapping[str, Any]]  # class of the rule, its attributes
NOT_KNOWN: Final = "not known"
_NAMED: Final = re.compile(r"^@@?([^/@]+)//", re.MULTILINE)  # of a label
_CALL: Final = re.compile(r"^([\w.]+)(\(\n.*?^\))$", re.MULTILINE | re.DOTALL)
_HERE: Final = ("local_repository", "new_local_repository")
# Options that decide what repositories are: with others Bazel would make them again. Those that
# name files to be written or carry secrets do not.
_LOADING: Final = re.compile(
    r"--(?![^=]*(?:_log|remote|header|credential|profile|build_event))((?:no)?"
    r"((?:allow_yanked|distdir|downloader_|enable_|experimental_|incompatible_|lockfile_|override_"
    r"|registry|repo_|repository_|vendor_)\w*))"
)


class Repository(NamedTuple):
    """One repository, and what its definition names.

    Its role is `fetched`: from an address; `configured`: by a rule that names none; `not known`:
    Bazel shows no definition.
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
    with_modules = of.spec.bazel.release >= BAZEL_WITH_MODULES
    form = ("--output=label", *(("--consistent_labels",) if with_modules else ()))
    here = {text.split("=")[1] for text in parsed if text.startswith("--override_repository=")}
    used = {}
    for kind, label in of.targets.items():
        labels = runner.capture(of.ask("cquery", *of.options, *form, f'deps("{label}")'))
        used[kind] = sorted({*_NAMED.findall(labels)} - here - {"bazel_tools"})
    flags = base64.b64decode(runner.capture(of.ask("help", "flags-as-proto")))
    infos = [[*fields(flag)] for _, flag in fields(flags)]  # FlagInfo in bazel_flags.proto
    known = {dict(info)[1].decode() for info in infos if (4, b"query") in info}
    names = ((text, _LOADING.match(text)) for text in parsed)
    shared = [text for text, flag in names if flag and {*flag.groups()} & known]
    defined = dict[str, Definition]()
    # Bazel 9 has no WORKSPACE, and a tree of WORKSPACE has no modules.
    with suppress(*((CommandError,) if with_modules else ())):
        text = runner.capture(of.ask("query", *shared, "--output=build", "//external:*"))
        defined.update(_read(text))
    others = {f"@@{name}" for name in itertools.chain(*used.values()) if name not in defined}
    if with_modules and others:
        with suppress(CommandError):
            text = runner.capture(of.ask("mod", "show_repo", *shared, *sorted(others)))
            defined.update(_read(text))
    listed = {name: _repository(name, defined.get(name)) for own in used.values() for name in own}
    return {
        kind: tuple(each for name in own if (each := listed[name])) for kind, own in used.items()
    }


def _read(text: str) -> Iterator[tuple[str, Definition]]:
    """Yield names and definitions of what Bazel prints as calls in the language of BUILD files."""
    for rule, call in _CALL.findall(text):
        with suppress(SyntaxError, ValueError):
            words = getattr(ast.parse(f"f{call}", mode="eval").body, "keywords", ())
            values = {each.arg: ast.literal_eval(each.value) for each in words}
            yield str(values.get("name")), (rule, values)


def _repository(name: str, definition: Definition | None) -> Repository | None:
    from packageurl import PackageURL

    rule, attributes = definition or (NOT_KNOWN, {})
    if rule in (NOT_KNOWN, *_HERE):
        return Repository(NOT_KNOWN, name) if rule == NOT_KNOWN else None
    has = {key: value for key, value in attributes.items() if value}
    url, remote = next(iter(has.get("urls", ())), has.get("url", "")), has.get("remote", "")
    digest = has.get("sha256", "").lower()
    if has.get("integrity", "").startswith("sha256-"):
        digest = base64.b64decode(has["integrity"].partition("-")[2]).hex()
    pinned = re.match(r"([\w.-]+)(?:\[.*?])?==([\w.!+-]+)", has.get("requirement", ""))
    if not (url or remote or pinned):
        return Repository("configured", name)
    commit = next((has[key] for key in ("commit", "tag", "branch") if key in has), "")
    kind, own, version = ("pypi", *pinned.groups()) if pinned else ("generic", name, commit)
    asked = {
        "checksum": f"sha256:{digest}" if digest else "",
        "download_url": without_secrets(url),
        "vcs_url": f"git+{without_secrets(remote)}" if remote else "",
    }
    said = {key: text for key, text in asked.items() if text}
    purl = PackageURL(kind, name=own, version=version or None, qualifiers=said)
    return Repository("fetched", name, version, str(purl))
