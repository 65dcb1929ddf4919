"""What Bazel is asked about an invocation: what it costs, and what its wheels depend on.

The cost: Bazel names the actions (`aquery`). Whether a cache has one cannot be asked without
computing the digest of every input, which only a build does. So each build leaves what it was made
from beside the disk cache; the build that differs least from an invocation says what is left of it.

The external repositories of wheels, as the sources define them, are asked for after a build, with
its options: all is loaded and analysed then, so that nothing is fetched. The answer does not depend
on caches or on the output base.
"""

import ast
import base64
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeAlias

from rocwheel.base.console import count, duration
from rocwheel.base.download.urls import without_secrets
from rocwheel.base.errors import CommandError
from rocwheel.base.files import read_json, write_json
from rocwheel.base.process import Runner
from rocwheel.base.versions import WheelKind
from rocwheel.bazel.events import fields
from rocwheel.bazel.invocation import BAZEL_WITH_MODULES, BazelInvocation
from rocwheel.records.manifest import InvocationRecord

BUILDS: Final = "rocwheel-builds.json"  # in the disk cache, and gone with it
KEPT: Final = 64  # builds
SUMMARY_SINCE: Final = (5,)  # Bazel that counts actions itself: aquery --output=summary
SHOWN: Final = 5  # mnemonics
UNRUN: Final = frozenset({"Middleman", "Runfiles", "SourceSymlinkManifest"})  # start no process
# What may differ from an earlier build -> what of it a build has in common all the same. All else
# is part of every compile: its command line, or its inputs.
SHARED: Final = {
    "JAX": "what did not change since",
    "XLA": "what did not change since",
    "wheels": "what its wheels have in common with these",
    "CPython": "all but what each CPython has of its own",
}
REMOTE: Final = (
    "remote cache: not looked at; it answers by the digest of an action's inputs, which only a "
    "build computes"
)


def estimate(invocation: BazelInvocation, runner: Runner) -> Iterator[str]:
    """Yield lines on what an invocation costs. Bazel loads and analyses it. Raises CommandError."""
    wanted = " + ".join(f"deps({label})" for label in invocation.targets.values())
    has_summary = invocation.spec.bazel.release >= SUMMARY_SINCE
    form = ("--output=summary",) if has_summary else ("--output=text", "--noinclude_commandline")
    summary = runner.capture(
        invocation.ask("aquery", *invocation.options, *form, wanted, timeout=3600)
    )
    actions = counted(summary)
    total = sum(actions.values())
    most = [f"{number:,} {name}" for name, number in actions.most_common(SHOWN)]
    others = total - sum(number for _, number in actions.most_common(SHOWN))
    yield f"{invocation.title}: at most {total:,} actions"
    yield f"  {', '.join([*most, *([f'{others:,} others'] if others else [])])}"
    builds = earlier(invocation, runner)
    comparison, is_cold = compared(invocation, builds)
    yield f"  disk cache: {comparison}"
    if invocation.spec.remote.cache:
        yield f"  {REMOTE}"
    timed = max(builds, key=lambda row: int(row["executed"]), default={"executed": 0})
    if not timed["executed"]:
        yield "  time: no estimate, since no build here has run an action"
    elif is_cold:
        each = timed["milliseconds"] / timed["executed"] / 1000
        yield (
            f"  time: about {duration(total * each)}, at {each:.2f} s an action, as in the build "
            f"of {timed['when']} ({count(timed['executed'], 'action')})"
        )


def counted(summary: str) -> Counter[str]:
    """Return the number of actions by mnemonic, of either form of aquery's output."""
    listed = summary.partition("Mnemonics:\n")[2].partition("\n\n")[0]
    by_name = re.findall(r"^  (\S+): (\d+)$", listed, re.MULTILINE)
    own = Counter({name: int(number) for name, number in by_name})
    own = own or Counter(re.findall(r"^  Mnemonic: (\S+)$", summary, re.MULTILINE))
    return Counter({name: number for name, number in own.items() if name not in UNRUN})


def compared(invocation: BazelInvocation, builds: list[dict[str, Any]]) -> tuple[str, bool]:
    """Say what the disk cache has of an invocation, and whether that is nothing."""
    if invocation.spec.caches.disk is None:
        return "none is used", True
    now, wheels = _facts(invocation), {kind.value for kind in invocation.kinds}
    for row in builds:  # one of more wheels has all of these
        if {*row["facts"]["wheels"].split()} >= wheels:
            row["facts"]["wheels"] = now["wheels"]
    rows = [
        (sum(name not in SHARED for name in names), len(names), names, row)
        for row in reversed(builds)
        if row["facts"].keys() == now.keys()
        for names in [[name for name in now if row["facts"][name] != now[name]]]
    ]
    if not rows:
        return "no build of these wheels is known in it", True
    cold, _, names, row = min(rows, key=lambda item: item[:2])
    about = f"the build of {row['when']} ({count(row['actions'], 'action')})"
    if not names:
        return f"has {about}, made from the same", False
    other = f"{about} differs in {', '.join(names)}"
    if cold:
        part = next(name for name in names if name not in SHARED)
        return f"{other}, so none of it can be reused: every compile depends on {part}", True
    return f"{other}: has {SHARED[names[0]]}", False


def earlier(invocation: BazelInvocation, runner: Runner) -> list[dict[str, Any]]:
    """Return the builds that the disk cache is known to have, oldest first."""
    disk = invocation.spec.caches.disk
    return list(read_json(runner.host(disk) / BUILDS).get("builds", ())) if disk else []


def remember(
    invocation: BazelInvocation, done: InvocationRecord, runner: Runner, *, when: str
) -> None:
    """Add a build that made something to what is known of the disk cache."""
    actions = done.actions_executed + done.cache_hits
    if invocation.spec.caches.disk is None or not actions:
        return
    row = {
        "facts": _facts(invocation),
        "actions": actions,
        "executed": done.actions_executed,
        "milliseconds": done.milliseconds,
        "when": when,
    }
    folder = runner.host(invocation.spec.caches.disk)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / BUILDS, {"builds": [*earlier(invocation, runner), row][-KEPT:]})


def _facts(invocation: BazelInvocation) -> dict[str, str]:
    spec, compiler = invocation.spec, invocation.spec.compiler
    rocm = {"ROCm": f"{spec.rocm} {spec.rocm_root}", "gfx targets": ",".join(spec.gfx_targets)}
    return {
        **(rocm if any(kind.needs_rocm for kind in invocation.kinds) else {}),
        "compiler": f"{compiler.kind} {compiler.cc or ''} {compiler.digest[:12]}",
        "Bazel": spec.bazel.version,
        "set of Bazel options": " ".join((spec.cpu_features, *spec.options)),
        "JAX": spec.git_hash or f"{spec.jax_version} {spec.workspace}",
        "XLA": str(spec.xla_dir or ""),
        "wheels": " ".join(kind.value for kind in invocation.kinds),
        "CPython": str(invocation.python),
    }


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
    invocation: BazelInvocation, parsed: Sequence[str], runner: Runner
) -> dict[WheelKind, tuple[Repository, ...]]:
    """Return what each wheel of a finished build depends on, without folders of this machine.

    `parsed` are the options that the build had, those of rc files too. Raises CommandError.
    """
    with_modules = invocation.spec.bazel.release >= BAZEL_WITH_MODULES
    form = ("--output=label", *(("--consistent_labels",) if with_modules else ()))
    here = {text.split("=")[1] for text in parsed if text.startswith("--override_repository=")}
    used = {}
    for kind, label in invocation.targets.items():
        labels = runner.capture(
            invocation.ask("cquery", *invocation.options, *form, f'deps("{label}")')
        )
        used[kind] = sorted({*_NAMED.findall(labels)} - here - {"bazel_tools"})
    flags = base64.b64decode(runner.capture(invocation.ask("help", "flags-as-proto")))
    infos = [[*fields(flag)] for _, flag in fields(flags)]  # FlagInfo in bazel_flags.proto
    known = {dict(info)[1].decode() for info in infos if (4, b"query") in info}
    names = ((text, _LOADING.match(text)) for text in parsed)
    shared = [text for text, flag in names if flag and {*flag.groups()} & known]
    defined = dict[str, Definition]()
    # Bazel 9 has no WORKSPACE, and a tree of WORKSPACE has no modules.
    with suppress(*((CommandError,) if with_modules else ())):
        text = runner.capture(invocation.ask("query", *shared, "--output=build", "//external:*"))
        defined.update(_read(text))
    others = {f"@@{name}" for name in itertools.chain(*used.values()) if name not in defined}
    if with_modules and others:
        with suppress(CommandError):
            text = runner.capture(invocation.ask("mod", "show_repo", *shared, *sorted(others)))
            defined.update(_read(text))
    listed = {name: _repository(name, defined.get(name)) for own in used.values() for name in own}
    return {
        kind: tuple(each for name in own if (each := listed[name])) for kind, own in used.items()
    }


def _read(text: str) -> Iterator[tuple[str, Definition]]:
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
    qualifiers = {key: text for key, text in asked.items() if text}
    purl = PackageURL(kind, name=own, version=version or None, qualifiers=qualifiers)
    return Repository("fetched", name, version, str(purl))
