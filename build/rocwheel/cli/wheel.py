"""`wheel`: look at wheels, judge them, rename, repair and compare them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rocwheel.cli.app import App, common_options, dry_run_option

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rocwheel.wheel.policy import WheelPolicy
    from rocwheel.wheel.rename import Rename
    from rocwheel.wheel.verify.rules import Finding

POLICY = Path(__file__).resolve().parents[3] / "ci" / "wheel_policy.yaml"

_wheels = click.argument(
    "wheels", nargs=-1, required=True, metavar="WHEEL...", type=click.Path(path_type=Path)
)
_policy = click.option(
    "--policy",
    type=click.Path(path_type=Path),
    help="Policy file; default: ci/wheel_policy.yaml of this checkout.",
)
_output = click.option(
    "--output",
    required=True,
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Folder for the new wheels; a file that is there is never overwritten.",
)


@click.group()
def wheel() -> None:
    """Inspect, verify, rename, repair and compare wheels without unpacking them."""


@wheel.command()
@_wheels
@common_options
@click.pass_obj
def inspect(app: App, wheels: tuple[Path, ...]) -> None:
    """Show names, sizes, shared objects, GPU code, provenance."""
    import shutil

    from rocwheel.wheel.inspect import inspect as read
    from rocwheel.wheel.inspect import with_manifest
    from rocwheel.wheel.show import document, lines

    reports = [with_manifest(read(app.cwd / path)) for path in wheels]
    width = shutil.get_terminal_size().columns
    app.emit(
        {"wheels": [document(report) for report in reports]},
        "\n\n".join("\n".join(lines(report, width=width)) for report in reports),
    )


@wheel.command()
@_wheels
@_policy
@click.option(
    "--gfx-targets", metavar="LIST", help="gfx targets there must be GPU code for, and no others."
)
@click.option(
    "--rocm-root",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="ROCm tree that must have every ROCm library the wheels need.",
)
@common_options
@click.pass_obj
def verify(
    app: App,
    *,
    wheels: tuple[Path, ...],
    policy: Path | None,
    gfx_targets: str | None,
    rocm_root: Path | None,
) -> int:
    """Say whether wheels or a wheelhouse may ship, and why not.

    Exit status 0 says that they may, 6 that they may not. A wheelhouse is judged by its manifest;
    wheels that are given together are judged as a set: their pins must hold within it.
    """
    from collections import Counter

    from rocwheel.errors import WheelError
    from rocwheel.wheel.show import ships, verdict_document, verdict_lines
    from rocwheel.wheel.verify import Expectation

    expected = Expectation(
        gfx_targets=frozenset(gfx_targets.split(",")) if gfx_targets else None,
        rocm_sonames=_libraries(app.cwd / rocm_root) if rocm_root else None,
    )
    by_path = _verified([app.cwd / path for path in wheels], _load_policy(app, policy), expected)
    names = Counter(path.name for path in by_path)
    found = {
        path.name if names[path.name] == 1 else str(path): findings
        for path, findings in by_path.items()
    }
    app.emit(verdict_document(found), "\n".join(verdict_lines(found)))
    return 0 if ships(found) else WheelError.exit_code


@wheel.command()
@_wheels
@click.option("--python-tag", default="", metavar="TAG", help="New interpreter tag: cp312, py3.")
@click.option("--abi-tag", default="", metavar="TAG", help="New ABI tag: cp312, cp314t, none.")
@click.option(
    "--platform-tag", default="", metavar="TAG", help="New platform tag: manylinux_2_28_x86_64."
)
@_output
@dry_run_option
@common_options
@click.pass_obj
def retag(
    app: App,
    *,
    wheels: tuple[Path, ...],
    python_tag: str,
    abi_tag: str,
    platform_tag: str,
    output: Path,
    dry_run: bool,
) -> None:
    """Give wheels other tags.

    Everything but WHEEL and RECORD is copied as it is compressed.
    """
    from rocwheel.wheel.rename import plan_retag

    if not (python_tag or abi_tag or platform_tag):
        raise click.UsageError("give --platform-tag, --python-tag or --abi-tag")
    plans = plan_retag(
        [app.cwd / path for path in wheels],
        python=python_tag,
        abi=abi_tag,
        platform=platform_tag,
    )
    _rename(app, plans, app.cwd / output, dry_run=dry_run)


@wheel.command()
@_wheels
@click.option("--version", "version", default="", metavar="V", help="The whole new version.")
@click.option("--post-release", type=click.IntRange(0), metavar="N", help="Make it .postN.")
@click.option("--local", default="", metavar="L", help="Make it +L, for example rocm7.10.0.")
@_output
@dry_run_option
@common_options
@click.pass_obj
def reversion(
    app: App,
    *,
    wheels: tuple[Path, ...],
    version: str,
    post_release: int | None,
    local: str,
    output: Path,
    dry_run: bool,
) -> None:
    """Give wheels of a set another version; all or none.

    The pins of the wheels on each other follow; everything else is copied as it is compressed.
    """
    from rocwheel.wheel.rename import NewVersion, plan_reversion

    if (bool(version), post_release is not None, bool(local)).count(True) != 1:
        raise click.UsageError("give one of --version, --post-release and --local")
    change = NewVersion(version=version, post=post_release, local=local)
    plans = plan_reversion([app.cwd / path for path in wheels], change)
    _rename(app, plans, app.cwd / output, dry_run=dry_run)


@wheel.command()
@_wheels
@_policy
@_output
@click.option(
    "--library-path",
    multiple=True,
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Where libraries to graft are looked for, before the system's folders; repeatable.",
)
@dry_run_option
@common_options
@click.pass_obj
def repair(
    app: App,
    *,
    wheels: tuple[Path, ...],
    policy: Path | None,
    output: Path,
    library_path: tuple[Path, ...],
    dry_run: bool,
) -> None:
    """Make wheels fit to ship: tag, RUNPATH, allowed grafts.

    The platform tag becomes the oldest manylinux level that holds. A wheel that lacks nothing is
    copied.
    """
    from rocwheel.wheel.repair import apply, plan_repair
    from rocwheel.wheel.show import plan_document, result_document

    rules = _load_policy(app, policy)
    plans = [plan_repair(app.cwd / path, policy=rules) for path in wheels]
    if dry_run:
        documents = [plan_document(plan) for plan in plans]
        app.emit(
            {"dry_run": True, "wheels": documents}, "\n".join(f"would repair {p}" for p in plans)
        )
        return
    folders = tuple(app.cwd / folder for folder in library_path)
    results = [
        apply(plan, app.cwd / output, runner=app.runner, console=app.console, library_path=folders)
        for plan in plans
    ]
    documents = [result_document(*both) for both in zip(plans, results, strict=True)]
    app.emit({"wheels": documents}, "\n".join(str(result.path) for result in results))


@wheel.command()
@click.argument("first", metavar="A", type=click.Path(path_type=Path))
@click.argument("second", metavar="B", type=click.Path(path_type=Path))
@click.option("--exit-code", is_flag=True, help="End with status 6 when they differ.")
@common_options
@click.pass_obj
def diff(app: App, *, first: Path, second: Path, exit_code: bool) -> int:
    """Show what differs, down to symbols and GPU code objects.

    Prints nothing for two builds of one input.
    """
    from dataclasses import asdict

    from rocwheel.errors import WheelError
    from rocwheel.wheel.diff import diff as compare

    differences = compare(app.cwd / first, app.cwd / second)
    app.emit(
        {"differences": [asdict(item) for item in differences]},
        "\n".join(map(str, differences)) if differences else None,
    )
    return WheelError.exit_code if differences and exit_code else 0


def _load_policy(app: App, path: Path | None) -> WheelPolicy:
    from rocwheel.wheel.policy import load

    return load(app.cwd / path if path else POLICY)


def _libraries(root: Path) -> frozenset[str]:
    """File names of shared libraries below a ROCm root: SONAMEs are links among them."""
    from rocwheel.errors import RocmError

    names = frozenset(path.name for path in root.glob("lib/**/*.so*"))
    if not names:
        raise RocmError(f"{root}: no shared library below lib/", hint="name a ROCm tree")
    return names


def _verified(
    paths: Sequence[Path], policy: WheelPolicy, expected: Any
) -> Mapping[Path, tuple[Finding, ...]]:
    from rocwheel.errors import WheelError
    from rocwheel.manifest import MANIFEST, Manifest
    from rocwheel.wheel.verify import verify_set, verify_wheelhouse

    found: dict[Path, tuple[Finding, ...]] = {}
    for folder in (path for path in paths if path.is_dir()):
        if (folder / MANIFEST).exists():
            found |= verify_wheelhouse(folder, Manifest.load(folder), policy=policy)
            continue
        inside = sorted(folder.glob("*.whl"))
        if not inside:
            raise WheelError(f"{folder}: no wheels in it", hint="name a wheelhouse or wheels")
        found |= verify_set(inside, policy=policy, expected=expected, whole=True)
    files = [path for path in paths if not path.is_dir()]
    return found | dict(verify_set(files, policy=policy, expected=expected))


def _rename(app: App, plans: tuple[Rename, ...], folder: Path, *, dry_run: bool) -> None:
    from rocwheel.wheel.rename import apply

    for plan in plans:
        for note in plan.notes:
            app.console.warn(note)
    documents = [
        {
            "source": str(plan.source),
            "path": str(folder / str(plan.after)),
            "rewritten": sorted(plan.path(name) for name in plan.edits),
        }
        for plan in plans
    ]
    if dry_run:
        text = "\n".join(f"would write {folder / str(plan.after)} from {plan}" for plan in plans)
        app.emit({"dry_run": True, "wheels": documents}, text)
        return
    made = apply(plans, folder)
    app.emit({"wheels": documents}, "\n".join(map(str, made)))
