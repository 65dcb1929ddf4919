"""What an invocation costs before it runs: its actions, what the disk cache has of them, the time.

Bazel names the actions (`aquery`). Whether a cache has one cannot be asked without computing the
digest of every input, which only a build does. So each build leaves what it was made from beside
the disk cache; the build that differs least from an invocation says what is left of it to do.
"""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from rocwheel.base.console import count, duration
from rocwheel.base.files import read_json, write_json
from rocwheel.base.process import Runner
from rocwheel.bazel.invocation import BazelInvocation
from rocwheel.records.build_record import InvocationRecord

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


def estimate(of: BazelInvocation, runner: Runner) -> Iterator[str]:
    """Yield lines on what an invocation costs. Bazel loads and analyses it. Raises CommandError."""
    wanted = " + ".join(f"deps({label})" for label in of.targets.values())
    has_summary = of.spec.bazel.release >= SUMMARY_SINCE
    form = ("--output=summary",) if has_summary else ("--output=text", "--noinclude_commandline")
    said = runner.capture(of.ask("aquery", *of.options, *form, wanted, timeout=3600))
    actions = counted(said)
    total = sum(actions.values())
    most = [f"{number:,} {name}" for name, number in actions.most_common(SHOWN)]
    others = total - sum(number for _, number in actions.most_common(SHOWN))
    yield f"{of.title}: at most {total:,} actions"
    yield f"  {', '.join([*most, *([f'{others:,} others'] if others else [])])}"
    builds = earlier(of, runner)
    said, is_cold = compared(of, builds)
    yield f"  disk cache: {said}"
    if of.spec.remote.cache:
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


def counted(said: str) -> Counter[str]:
    """Return the number of actions by mnemonic, of either form of aquery's output."""
    listed = said.partition("Mnemonics:\n")[2].partition("\n\n")[0]
    by_name = re.findall(r"^  (\S+): (\d+)$", listed, re.MULTILINE)
    own = Counter({name: int(number) for name, number in by_name})
    own = own or Counter(re.findall(r"^  Mnemonic: (\S+)$", said, re.MULTILINE))
    return Counter({name: number for name, number in own.items() if name not in UNRUN})


def compared(of: BazelInvocation, builds: list[dict[str, Any]]) -> tuple[str, bool]:
    """Say what the disk cache has of an invocation, and whether that is nothing."""
    if of.spec.caches.disk is None:
        return "none is used", True
    now, wheels = _facts(of), {kind.value for kind in of.kinds}
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
        return f"{other}: nothing of it serves, since every compile depends on {part}", True
    return f"{other}: has {SHARED[names[0]]}", False


def earlier(of: BazelInvocation, runner: Runner) -> list[dict[str, Any]]:
    """Return the builds that the disk cache is known to have, oldest first."""
    disk = of.spec.caches.disk
    return list(read_json(runner.host(disk) / BUILDS).get("builds", ())) if disk else []


def remember(of: BazelInvocation, done: InvocationRecord, runner: Runner, *, when: str) -> None:
    """Add a build that made something to what is known of the disk cache."""
    actions = done.actions_executed + done.cache_hits
    if of.spec.caches.disk is None or not actions:
        return
    row = {
        "facts": _facts(of),
        "actions": actions,
        "executed": done.actions_executed,
        "milliseconds": done.milliseconds,
        "when": when,
    }
    folder = runner.host(of.spec.caches.disk)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / BUILDS, {"builds": [*earlier(of, runner), row][-KEPT:]})


def _facts(of: BazelInvocation) -> dict[str, str]:
    spec, compiler = of.spec, of.spec.compiler
    rocm = {"ROCm": f"{spec.rocm} {spec.rocm_root}", "gfx targets": ",".join(spec.gfx_targets)}
    return {
        **(rocm if any(kind.needs_rocm for kind in of.kinds) else {}),
        "compiler": f"{compiler.kind} {compiler.cc or ''} {compiler.major}",
        "Bazel": spec.bazel.version,
        "set of Bazel options": " ".join((spec.cpu_features, *spec.options)),
        "JAX": spec.git_hash or f"{spec.jax_version} {spec.workspace}",
        "XLA": str(spec.xla_dir or ""),
        "wheels": " ".join(kind.value for kind in of.kinds),
        "CPython": str(of.python),
    }
