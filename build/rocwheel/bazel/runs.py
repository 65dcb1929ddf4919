"""Every invocation of a build, one after the other, and what they did together."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from rocwheel.base.console import Console, count, size
from rocwheel.base.process import Runner
from rocwheel.base.values import Plain
from rocwheel.bazel.build import BazelResult, build
from rocwheel.bazel.events import SLOWEST, line
from rocwheel.bazel.invocation import BazelInvocation
from rocwheel.records.build_record import InvocationRecord, TimedAction


class Runs(Plain, frozen=True, kw_only=True):
    """Invocations with their results, in the order they ran."""

    done: tuple[tuple[BazelInvocation, BazelResult], ...]

    @property
    def outputs(self) -> tuple[Path, ...]:
        return tuple(path for _, result in self.done for path in result.outputs.values())

    @property
    def records(self) -> tuple[InvocationRecord, ...]:
        """For `build.json`: one entry for each invocation."""
        return tuple(result.record for _, result in self.done)

    @property
    def actions_executed(self) -> int:
        return sum(record.actions_executed for record in self.records)

    @property
    def cache_hits(self) -> int:
        return sum(record.cache_hits for record in self.records)

    @property
    def slowest(self) -> tuple[TimedAction, ...]:
        """The slowest actions of all invocations, slowest first."""
        actions = [action for record in self.records for action in record.slowest_actions]
        return tuple(sorted(actions, key=lambda action: -action.milliseconds)[:SLOWEST])

    def lines(self) -> Iterator[str]:
        """Say to a person what was rebuilt, what took longest, where to read more."""
        invocations = count(len(self.done), "invocation")
        total = self.actions_executed + self.cache_hits
        if not total:
            yield f"Nothing was rebuilt: Bazel ran 0 actions in {invocations}."
            return
        made = sum(record.bytes_made for record in self.records)
        yield (
            f"Bazel ran {count(self.actions_executed, 'action')} in {invocations}, "
            f"{self.cache_hits} came from a cache ({100 * self.cache_hits // total} %), "
            f"{size(made)} made."
        )
        if self.slowest:
            yield "slowest actions:"
            yield from map(line, self.slowest)
        yield f"logs and profiles: {Path(self.records[0].profile).parent}"

    @property
    def document(self) -> dict[str, Any]:
        """For a program."""
        return {
            "invocations": len(self.done),
            "actions_executed": self.actions_executed,
            "cache_hits": self.cache_hits,
            "slowest_actions": to_builtins(self.slowest),
        }


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
                invocation, folder=folder, into=into / str(number), runner=runner, console=console
            )
            console.info(f"   {result.summary}")
            if path := result.record.critical_path:
                seconds = result.record.critical_path_milliseconds / 1000
                console.detail(f"   critical path {seconds:.1f} s:")
                for action in path:
                    console.detail(f"   {line(action)}")
            done.append((invocation, result))
    return Runs(done=tuple(done))
