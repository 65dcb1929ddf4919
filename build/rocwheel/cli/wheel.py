"""`wheel`: inspects, verifies, renames, repairs and compares wheels."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

import amdgpu_family_matrix as matrix
from rocwheel.base import parallel
from rocwheel.base.choices import ALL
from rocwheel.base.errors import DIFFERENT, ConfigError, WheelError, named
from rocwheel.base.versions import gfx_target
from rocwheel.cli import known
from rocwheel.cli.app import App
from rocwheel.cli.build_options import family_options
from rocwheel.cli.options import PATH, dry_run, group, option

if TYPE_CHECKING:  # each command imports only what it needs: `retag` takes as long as its imports
    from rocwheel.records.manifest import Manifest
    from rocwheel.wheel import rename
    from rocwheel.wheel import wheel_policy as policies


def _there(wheels: Iterable[Path]) -> list[Path]:
    there = [path.parent if path.name == "manifest.json" else path for path in wheels]
    for path in there:
        # A misspelt path says nothing about a wheel: it has not the exit code of a bad one.
        with named(path, ConfigError, hint="name an existing wheel"):
            path.stat()
    return there


def _policy(app: App, path: Path | None) -> policies.WheelPolicy:
    from rocwheel.base import yaml_file
    from rocwheel.wheel import wheel_policy as policies

    return yaml_file.read(path or app.home.ci / "wheel_policy.yaml", policies.WheelPolicy)


wheels_argument = click.argument("wheels", metavar="WHEEL...", type=PATH, nargs=-1, required=True)
output_option = option(
    "--output",
    "folder",
    metavar="DIR",
    type=PATH,
    required=True,
    help="Folder for the new wheels; existing files are never overwritten.",
)
policy_option = option(
    "--policy",
    type=PATH,
    help="Policy file; default: wheel_policy.yaml of the data in use.",
)


@group("wheel", also={"rebuild": "rocwheel.cli.dist:rebuild"})
def wheel() -> None:
    """Inspect, verify, rename, repair and compare wheels without unpacking them."""


@wheel.command("inspect")
@wheels_argument
@option("--thorough", is_flag=True, help="Unpack all GPU code, and show which compilers made it.")
@click.pass_obj
def inspect(app: App, wheels: tuple[Path, ...], thorough: bool) -> None:
    """Show names, sizes, shared objects, GPU code, provenance."""
    import shutil

    from rocwheel.wheel import inspect as inspection
    from rocwheel.wheel import show

    look = partial(inspection.inspect_with_manifest, thorough=thorough)
    reports = parallel.each(look, _there(wheels))
    width = shutil.get_terminal_size().columns
    app.emit(
        {"wheels": [show.document(report) for report in reports]},
        "\n\n".join("\n".join(show.lines(report, width=width)) for report in reports),
    )


@wheel.command("verify")
@wheels_argument
@policy_option
@family_options("Demand code for all GPUs of these families.")
@option(
    "--gfx-targets",
    metavar="LIST",
    type=known.ListOf(known.gfx_targets),
    default=None,
    help="Demand GPU code for exactly these gfx targets.",
)
@option(
    "--rocm-root",
    metavar="DIR",
    type=PATH,
    help="Demand that this ROCm tree has every ROCm library the wheels need.",
)
@option(
    "--thorough",
    is_flag=True,
    help="Unpack and check all GPU code; by default only the first 256 MiB.",
)
@option(
    "--installs",
    is_flag=True,
    help="Also install them with pip and with uv, into scratch folders.",
)
@option(
    "--runs",
    is_flag=True,
    help="Also run their code, in a sandbox: import every module, start the plugin, compute.",
)
@click.pass_obj
def verify(
    app: App,
    *,
    wheels: tuple[Path, ...],
    policy: Path | None,
    family: tuple[tuple[str, ...], ...],
    family_file: Path | None,
    gfx_targets: tuple[str, ...] | None,
    rocm_root: Path | None,
    thorough: bool,
    installs: bool,
    runs: bool,
) -> int:
    """Check whether wheels or a wheelhouse may ship, and print why not.

    The exit status is 0 if they may and 6 if not. A wheelhouse is judged by its manifest. Wheels
    given together are judged as a set: their pins must hold within it.
    """
    from rocwheel.wheel import show
    from rocwheel.wheel import verify as judging

    wanted = _gpu_code(family, family_file, gfx_targets)
    given = _there(wheels)
    if rocm_root:
        wanted |= judging.of_rocm(rocm_root, given, app.runner)
    if thorough:
        wanted["code"] = judging.LIMITS.code
    expected = judging.Expectation(**wanted)
    tried = judging.Installers(app.runner) if installs else None
    rules = _policy(app, policy)
    with app.console.progress("running") as bar:
        run = judging.Running(app.runner, rules, progress=bar) if runs else None
        verdicts = judging.verify_given(given, rules, expected, installers=tried, runs=run)
    unseen = () if run else ("whether modules import and the plugin starts (--runs)",)
    for what in unseen:
        app.console.info(f"not looked at: {what}")
    text = "\n".join(show.verdict_lines(verdicts, tried))
    app.emit(show.verdict_document(verdicts, tried, unseen), text)
    return 0 if show.ships(verdicts) else WheelError.exit_code


def _gpu_code(
    names: tuple[tuple[str, ...], ...], file: Path | None, gfx_targets: tuple[str, ...] | None
) -> dict[str, Any]:
    """Return what --gfx-targets and --family expect.

    Raises UsageError for nothing, ConfigError for what there is not, or where they disagree.
    """
    from rocwheel.records import families

    targets = frozenset(map(gfx_target, gfx_targets or ()))
    if gfx_targets is not None and not targets:
        raise click.UsageError("--gfx-targets names no target: leave it out, or write gfx942")
    asked = {name for each in names for name in each}
    of_families = {item.name: item.targets for item in families.chosen(asked, file)}
    if targets:
        families.refuse_lacking(of_families, targets)
    spared = matrix.LEFT_OUT_BY_AMD if asked == {ALL} and not file else frozenset()
    return {"gfx_targets": targets or None, "families": of_families, "spared": spared}


@wheel.command("retag")
@wheels_argument
@output_option
@option("--python-tag", metavar="TAG", help="New interpreter tag: cp312, py3.")
@option("--abi-tag", metavar="TAG", help="New ABI tag: cp312, cp314t, none.")
@option("--platform-tag", metavar="TAG", help="New platform tag: manylinux_2_28_x86_64.")
@dry_run
@click.pass_obj
def retag(
    app: App,
    *,
    wheels: tuple[Path, ...],
    folder: Path,
    python_tag: str,
    abi_tag: str,
    platform_tag: str,
    dry_run: bool,
) -> None:
    """Give wheels other tags.

    Only WHEEL and RECORD change. From a wheelhouse, it makes a new one.
    """
    from rocwheel.wheel import rename

    if not (python_tag or abi_tag or platform_tag):
        raise click.UsageError("give --platform-tag, --python-tag or --abi-tag")
    parent, given = _set_of(wheels)
    if parent and (python_tag or abi_tag):
        raise click.UsageError("a set keeps its CPythons: give --platform-tag alone")
    plans = rename.plan_retag(given, python=python_tag, abi=abi_tag, platform=platform_tag)
    _rename(app, plans, folder, "retag", parent=parent, dry_run=dry_run)


@wheel.command("reversion")
@wheels_argument
@output_option
@option("--version", metavar="V", help="The whole new version.")
@option("--post-release", metavar="N", type=click.IntRange(0), help="Make it .postN.")
@option("--local", metavar="L", help="Make it +L, for example rocm7.10.0.")
@dry_run
@click.pass_obj
def reversion(
    app: App,
    *,
    wheels: tuple[Path, ...],
    folder: Path,
    version: str,
    post_release: int | None,
    local: str,
    dry_run: bool,
) -> None:
    """Give wheels of a set another version; all or none.

    Their pins on each other follow; everything else stays. From a wheelhouse, it makes a new one,
    whose manifest names the old one.
    """
    from rocwheel.wheel import rename

    if (bool(version), post_release is not None, bool(local)).count(True) != 1:
        raise click.UsageError("give one of --version, --post-release and --local")
    change = rename.NewVersion(version, post_release, local)
    parent, given = _set_of(wheels)
    plans = rename.plan_reversion(given, change)
    _rename(app, plans, folder, "reversion", parent=parent, dry_run=dry_run)


@wheel.command("repair")
@wheels_argument
@output_option
@policy_option
@dry_run
@click.pass_obj
def repair(
    app: App, wheels: tuple[Path, ...], folder: Path, policy: Path | None, dry_run: bool
) -> None:
    """Make wheels fit to ship: tag, RUNPATH, modes, version modules.

    The platform tag becomes the oldest manylinux level that the wheel fits. A wheel without a bill
    of materials gets one.
    """
    from rocwheel.wheel import repair as repairing
    from rocwheel.wheel import show

    plans = parallel.each(
        partial(repairing.plan_repair, policy=_policy(app, policy)), _there(wheels)
    )
    by: dict[str, Any] = {"out": folder, "runner": app.runner, "console": app.console}
    names = [str(plan.after) for plan in plans]
    for name in (each for each in names if names.count(each) > 1):
        raise WheelError(f"{name}: two of the wheels would get this name", hint="repair them apart")
    if dry_run:
        parallel.each(partial(repairing.check, **by), plans)
        document = {"dry_run": True, "wheels": [show.plan_document(plan) for plan in plans]}
        return app.emit(document, "\n".join(f"would repair {plan}" for plan in plans))
    results = parallel.each(partial(repairing.apply, **by), plans)
    documents = [show.result_document(*both) for both in zip(plans, results, strict=True)]
    return app.emit({"wheels": documents}, "\n".join(str(result.path) for result in results))


@wheel.command("diff")
@click.argument("wheels", metavar="A B", type=PATH, nargs=-1)
@option("--exit-code", is_flag=True, help=f"End with status {DIFFERENT} when they differ.")
@click.pass_obj
def diff(app: App, wheels: tuple[Path, ...], exit_code: bool) -> int:
    """Show how two wheels differ, down to the GPU code of shared objects.

    Prints nothing for two builds of one input.
    """
    from rocwheel.wheel import diff as comparing

    if len(wheels) != 2:  # noqa: PLR2004
        raise click.UsageError(f"{len(wheels)} given: name the two wheels to compare")
    differences = comparing.diff(*_there(wheels))
    app.emit(
        {"differences": [item._asdict() for item in differences]},
        "\n".join(map(str, differences)) if differences else None,
    )
    return DIFFERENT if differences and exit_code else 0


def _set_of(wheels: tuple[Path, ...]) -> tuple[Manifest | None, list[Path]]:
    given = _there(wheels)
    folders = [path for path in given if path.is_dir()]
    if not folders:
        return None, given
    if len(given) > 1:
        raise click.UsageError(f"{folders[0]}: name one wheelhouse, or wheels")
    from rocwheel.dist import wheelhouse
    from rocwheel.records.manifest import Manifest

    manifest = Manifest.load(folders[0])
    wheelhouse.check(folders[0], manifest)
    return manifest, [folders[0] / entry.filename for entry in manifest.built]


def _rename(
    app: App,
    plans: tuple[rename.Rename, ...],
    folder: Path,
    by: Literal["reversion", "retag"],
    *,
    parent: Manifest | None,
    dry_run: bool,
) -> None:
    """Show or carry out what `retag` and `reversion` plan; a set becomes a set."""
    from rocwheel.wheel import rename

    for note in (note for plan in plans for note in plan.notes):
        app.console.warn(note)
    documents = [plan.document(folder) for plan in plans]
    if parent:
        from rocwheel.wheel import derive

        derive.check(plans)
    if dry_run:
        rename.check(plans, folder)
        text = "\n".join(f"would write {folder / str(plan.after)} from {plan}" for plan in plans)
        return app.emit({"dry_run": True, "wheels": documents}, text)
    if not parent:
        return app.emit({"wheels": documents}, "\n".join(map(str, rename.apply(plans, folder))))
    from rocwheel.dist import wheelhouse
    from rocwheel.records.install import Install
    from rocwheel.wheel.derive import derived

    with wheelhouse.assembling(folder) as scratch:
        rename.apply(plans, scratch)
        manifest = derived(parent, plans, scratch, by)
        made, _ = wheelhouse.publish(scratch, manifest, None)
    lines = Install.of(manifest, "", folder=str(made)).pip
    document = {
        "wheelhouse": str(made),
        "manifest_sha256": manifest.sha256,
        "wheels": [plan.document(made) for plan in plans],
        "install": [*lines],
    }
    return app.emit(document, "\n".join([str(made), *lines]))
