"""`wheel`: look at wheels, judge them, rename, repair and compare them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from rocwheel.base.errors import ConfigError, WheelError, named
from rocwheel.base.option import OptionSet, listed
from rocwheel.cli.app import App
from rocwheel.cli.command import DryRun, command, group, own
from rocwheel.cli.imports import when_run
from rocwheel.records.build_options import FamilyOptions

with when_run():
    import shutil
    from pathlib import Path

    from rocwheel.base import parallel, yaml_file
    from rocwheel.base.versions import gfx_target
    from rocwheel.records import families

if TYPE_CHECKING:  # each command imports only what it needs: `retag` takes as long as its imports
    from rocwheel.wheel import rename
    from rocwheel.wheel import wheel_policy as policies

DIFFERENT: Final = 13  # the status of `diff --exit-code`, which no error has


class WheelsOptions(OptionSet):
    """The arguments that name wheels."""

    wheels: tuple[Path, ...] = own(
        "WHEEL...", param="wheels", is_path=True, nargs=-1, required=True, default=()
    )

    def paths(self) -> list[Path]:
        """Return the paths of the wheels, below the working directory. Raises ConfigError."""
        for path in self.wheels:
            # A misspelt path says nothing about a wheel: it has not the exit code of a bad one.
            with named(path, ConfigError, hint="name an existing wheel"):
                path.stat()
        return [*self.wheels]


class OutputOptions(WheelsOptions, DryRun):
    """What commands that write wheels have in common."""

    output: str = own(
        "--output DIR",
        "Folder for the new wheels; a file that is there is never overwritten.",
        values="FILE",
        required=True,
    )

    def folder(self, app: App) -> Path:
        """Return the folder for the new wheels. Raises UsageError for the empty text."""
        if not self.output:
            raise click.UsageError("--output: it names nothing; write ./ for this folder")
        return app.cwd / self.output


class PolicyOptions(OptionSet):
    """The option that names the policy wheels are judged by."""

    policy: Path | None = own(
        "--policy", "Policy file; default: wheel_policy.yaml of the data in use.", is_path=True
    )

    def load(self, app: App) -> policies.WheelPolicy:
        """Read the policy. Raises ConfigError."""
        from rocwheel.wheel import wheel_policy as policies

        path = self.policy or app.home.ci / "wheel_policy.yaml"
        return yaml_file.read(path, policies.WheelPolicy)


@group("wheel")
def wheel() -> None:
    """Inspect, verify, rename, repair and compare wheels without unpacking them."""


@command("inspect", WheelsOptions, parent=wheel)
def inspect(app: App, options: WheelsOptions) -> None:
    """Show names, sizes, shared objects, GPU code, provenance."""
    from rocwheel.wheel import inspect as inspection
    from rocwheel.wheel import show

    reports = parallel.each(inspection.inspect_with_manifest, options.paths())
    width = shutil.get_terminal_size().columns
    app.emit(
        {"wheels": [show.document(report) for report in reports]},
        "\n\n".join("\n".join(show.lines(report, width=width)) for report in reports),
    )


class WheelVerifyOptions(WheelsOptions, PolicyOptions, FamilyOptions):
    gfx_targets: str | None = own(
        "--gfx-targets LIST", "gfx targets there must be GPU code for, and no others.", default=None
    )
    rocm_root: Path | None = own(
        "--rocm-root DIR",
        "ROCm tree that must have every ROCm library the wheels need.",
        is_path=True,
    )
    thorough: bool = own(
        "--thorough",
        "Unpack and check all GPU code; without it, what takes a second or two.",
        default=False,
    )
    installs: bool = own(
        "--installs", "Also install them with pip and with uv, into scratch folders.", default=False
    )


@command("verify", WheelVerifyOptions, parent=wheel)
def verify(app: App, options: WheelVerifyOptions) -> int:
    """Say whether wheels or a wheelhouse may ship, and why not.

    Exit status 0 says that they may, 6 that they may not. A wheelhouse is judged by its manifest;
    wheels that are given together are judged as a set: their pins must hold within it.
    """
    from rocwheel.wheel import show
    from rocwheel.wheel import verify as judging
    from rocwheel.wheel.limits import LIMITS

    root = options.rocm_root
    rocm: dict[str, Any] = (
        {
            "rocm_sonames": judging.sonames_below(root),
            "compilers": judging.compilers_of(root, app.runner),
        }
        if root
        else {}
    )
    rocm |= {"code": LIMITS.code} if options.thorough else {}
    expected = judging.Expectation(**_gpu_code(options), **rocm)
    tried = judging.Installers(app.runner) if options.installs else None
    paths, policy = options.paths(), options.load(app)
    verdicts = judging.verify_given(paths, policy, expected, installers=tried)
    text = "\n".join(show.verdict_lines(verdicts, tried))
    app.emit(show.verdict_document(verdicts, tried), text)
    return 0 if show.ships(verdicts) else WheelError.exit_code


def _gpu_code(options: WheelVerifyOptions) -> dict[str, Any]:
    """Return what --gfx-targets and --family expect.

    Raises UsageError for nothing, ConfigError for what there is not, or where they disagree.
    """
    targets = frozenset(map(gfx_target, listed(options.gfx_targets)))
    if options.gfx_targets is not None and not targets:
        raise click.UsageError("--gfx-targets names no target: leave it out, or write gfx942")
    asked = families.chosen(options.families, options.own_families)
    of_families = {item.name: item.targets for item in asked}
    if targets:
        families.refuse_lacking(of_families, targets)
    return {"gfx_targets": targets or None, "families": of_families}


class WheelRetagOptions(OutputOptions):
    python_tag: str = own("--python-tag TAG", "New interpreter tag: cp312, py3.")
    abi_tag: str = own("--abi-tag TAG", "New ABI tag: cp312, cp314t, none.")
    platform_tag: str = own("--platform-tag TAG", "New platform tag: manylinux_2_28_x86_64.")


@command("retag", WheelRetagOptions, parent=wheel)
def retag(app: App, options: WheelRetagOptions) -> None:
    """Give wheels other tags.

    Everything but WHEEL and RECORD is copied as it is compressed.
    """
    from rocwheel.wheel import rename

    if not (options.python_tag or options.abi_tag or options.platform_tag):
        raise click.UsageError("give --platform-tag, --python-tag or --abi-tag")
    plans = rename.plan_retag(
        options.paths(),
        python=options.python_tag,
        abi=options.abi_tag,
        platform=options.platform_tag,
    )
    _rename(app, plans, options)


class WheelReversionOptions(OutputOptions):
    version: str = own("--version V", "The whole new version.")
    post_release: int | None = own(
        "--post-release N", "Make it .postN.", kind=click.IntRange(0), default=None
    )
    local: str = own("--local L", "Make it +L, for example rocm7.10.0.")


@command("reversion", WheelReversionOptions, parent=wheel)
def reversion(app: App, options: WheelReversionOptions) -> None:
    """Give wheels of a set another version; all or none.

    The pins of the wheels on each other follow; everything else is copied as it is compressed.
    """
    from rocwheel.wheel import rename

    given = (bool(options.version), options.post_release is not None, bool(options.local))
    if given.count(True) != 1:
        raise click.UsageError("give one of --version, --post-release and --local")
    change = rename.NewVersion(options.version, options.post_release, options.local)
    _rename(app, rename.plan_reversion(options.paths(), change), options)


class WheelRepairOptions(OutputOptions, PolicyOptions):
    """Options of `wheel repair`."""


@command("repair", WheelRepairOptions, parent=wheel)
def repair(app: App, options: WheelRepairOptions) -> None:
    """Make wheels fit to ship: tag, RUNPATH, modes, version modules.

    The platform tag becomes the oldest manylinux level that holds. A wheel that lacks nothing is
    copied.
    """
    from rocwheel.wheel import repair as repairing
    from rocwheel.wheel import show

    plans = parallel.each(partial(repairing.plan_repair, policy=options.load(app)), options.paths())
    by: dict[str, Any] = {"out": options.folder(app), "runner": app.runner, "console": app.console}
    names = [str(plan.after) for plan in plans]
    for name in (each for each in names if names.count(each) > 1):
        raise WheelError(f"{name}: two of the wheels would get this name", hint="repair them apart")
    if options.dry_run:
        parallel.each(partial(repairing.check, **by), plans)
        document = {"dry_run": True, "wheels": [show.plan_document(plan) for plan in plans]}
        return app.emit(document, "\n".join(f"would repair {plan}" for plan in plans))
    results = parallel.each(partial(repairing.apply, **by), plans)
    documents = [show.result_document(*both) for both in zip(plans, results, strict=True)]
    return app.emit({"wheels": documents}, "\n".join(str(result.path) for result in results))


class WheelDiffOptions(WheelsOptions):
    wheels: tuple[Path, ...] = own("A B", param="wheels", is_path=True, nargs=-1, default=())
    exit_code: bool = own(
        "--exit-code", f"End with status {DIFFERENT} when they differ.", default=False
    )


@command("diff", WheelDiffOptions, parent=wheel)
def diff(app: App, options: WheelDiffOptions) -> int:
    """Show what differs, down to what shared objects need and have GPU code for.

    Prints nothing for two builds of one input.
    """
    from rocwheel.wheel import diff as comparing

    if len(options.wheels) != 2:  # noqa: PLR2004
        raise click.UsageError(f"{len(options.wheels)} given: name the two wheels to compare")
    differences = comparing.diff(*options.paths())
    app.emit(
        {"differences": [item._asdict() for item in differences]},
        "\n".join(map(str, differences)) if differences else None,
    )
    return DIFFERENT if differences and options.exit_code else 0


def _rename(app: App, plans: tuple[rename.Rename, ...], options: OutputOptions) -> None:
    """Show or carry out what `retag` and `reversion` plan."""
    from rocwheel.wheel import rename

    folder = options.folder(app)
    for note in (note for plan in plans for note in plan.notes):
        app.console.warn(note)
    documents = [plan.document(folder) for plan in plans]
    if options.dry_run:
        rename.apply(plans, folder, keep=False)
        text = "\n".join(f"would write {folder / str(plan.after)} from {plan}" for plan in plans)
        return app.emit({"dry_run": True, "wheels": documents}, text)
    return app.emit({"wheels": documents}, "\n".join(map(str, rename.apply(plans, folder))))
