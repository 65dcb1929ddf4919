"""Every invocation of a build, one after the other, and what they did together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from rocwheel.bazel.build import BazelResult, build
from rocwheel.bazel.invocation import BazelInvocation
from rocwheel.bazel.profile import SLOWEST, line
from rocwheel.build_record import InvocationRecord, TimedAction
from rocwheel.console import Console, count, size
from rocwheel.process import Runner


@dataclass(frozen=True, kw_only=True)
class Runs:
    """Invocations with their results, in the order they ran."""

    done: tuple[tuple[BazelInvocation, BazelResult], ...]

    @property
    def outputs(self) -> tuple[Path, ...]:
        return tuple(path for _, result in self.done for path in result.outputs.values())

    @property
    def actions_executed(self) -> int:
        return sum(result.actions_executed for _, result in self.done)

    @property
    def cache_hits(self) -> int:
        return sum(result.cache_hits for _, result in self.done)

    @property
    def slowest(self) -> tuple[TimedAction, ...]:
        """The slowest actions of all invocations, slowest first."""
        found = [action for _, result in self.done for action in result.details.slowest]
        return tuple(sorted(found, key=lambda action: -action.milliseconds)[:SLOWEST])

    def lines(self) -> Iterator[str]:
        """For a person: what was rebuilt, what took longest, where to read more."""
        invocations = count(len(self.done), "invocation")
        if not self.actions_executed and not self.cache_hits:
            yield f"Nothing was rebuilt: Bazel ran 0 actions in {invocations}."
            return
        total = self.actions_executed + self.cache_hits
        made = sum(result.bytes_made for _, result in self.done)
        yield (
            f"Bazel ran {count(self.actions_executed, 'action')} in {invocations}, "
            f"{self.cache_hits} came from a cache ({100 * self.cache_hits // total} %), "
            f"{size(made)} made."
        )
        if self.slowest:
            yield "slowest actions:"
            yield from map(line, self.slowest)
        yield f"logs and profiles: {self.done[0][1].profile.parent}"

    @property
    def document(self) -> dict[str, Any]:
        """For a program."""
        return {
            "invocations": len(self.done),
            "actions_executed": self.actions_executed,
            "cache_hits": self.cache_hits,
            "slowest_actions": to_builtins(self.slowest),
        }

    @property
    def records(self) -> tuple[InvocationRecord, ...]:
        """For `build.json`: one entry for each invocation."""
        return tuple(
            InvocationRecord(
                command=str(invocation.command_line()),
                actions_executed=result.actions_executed,
                cache_hits=result.cache_hits,
                bytes_made=result.bytes_made,
                bytes_cached=result.bytes_cached,
                notes=tuple(result.notes),
                warnings=tuple(result.warnings),
                milliseconds=round(result.seconds * 1000),
                critical_path_milliseconds=round(result.details.critical_seconds * 1000),
                critical_path=result.details.critical_path,
                slowest_actions=result.details.slowest,
                log=str(result.log),
                profile=str(result.profile),
            )
            for invocation, result in self.done
        )


def build_all(
    invocations: Sequence[BazelInvocation],
    *,
    folder: Path,
    into: Path,
    runner: Runner,
    console: Console,
) -> Runs:
    """Run one invocation after the other; each has a folder of its own below `into`.

    `folder` gets logs, build events and profiles. Raises BazelError at the first that fails.
    """
    done = []
    for number, invocation in enumerate(invocations, 1):
        with console.step(f"Bazel: {invocation.title}", key="bazel"):
            result = build(
                invocation,
                folder=folder,
                into=into / str(number),
                runner=runner,
                console=console,
            )
            console.info(f"   {result.summary}")
            for line in result.details.critical_lines():
                console.detail(f"   {line}")
            done.append((invocation, result))
    return Runs(done=tuple(done))
