"""`dist_wheels`, `rocm fetch` (its first stage by itself) and `wheel rebuild`."""

from __future__ import annotations

import platform
import shlex
import sys
from dataclasses import replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click

from rocwheel.base.download import shown_setting
from rocwheel.base.errors import DIFFERENT, RocmError
from rocwheel.cli import known
from rocwheel.cli.app import App
from rocwheel.cli.build_options import (
    ALLOW_DIRTY,
    CACHE,
    CONTAINER,
    FOLDERS,
    PROGRAMS,
    REMOTE,
    ROCM,
    THEROCK,
    build,
    build_of,
)
from rocwheel.cli.options import PATH, command, dry_run, group, option
from rocwheel.cli.target import Target, TargetOptions, key_of, signer_option, target_of
from rocwheel.records.build_options import BuildOptions

if TYPE_CHECKING:  # rooms are imported where they are used: --help is three times as quick
    from rocwheel import dist


def rocm_source(options: BuildOptions) -> str:
    """Return the ROCm that the options name. Raises UsageError for none or for two."""
    if options.therock and options.devices:
        raise click.UsageError("--rocm-devices is for --therock-index-url without --therock-path")
    if options.therock:
        return options.therock
    if not options.therock_index:
        raise click.UsageError(
            "give --therock-path: a URL, a tarball, a directory or pip:REQUIREMENT;"
            " or --therock-index-url"
        )
    from rocwheel.rocm import by_pip

    return by_pip.requirement(options.rocm_version, options.devices or ("all",))


def rocm_index(app: App, options: BuildOptions) -> str:
    """Return the pip index with ROCm: where a stream of TheRock's has the version asked for."""
    named, version = options.therock_index, options.rocm_version or ""
    if not named:
        return ""
    from rocwheel.rocm import therock

    return therock.address(named, "packages", version=version, ci=app.home.ci, cwd=app.cwd)


@group("rocm")
def rocm_group() -> None:
    """Fetch, check and cache a ROCm tree."""


@rocm_group.command("fetch")
@build_of(ROCM, CACHE)
@dry_run
@click.pass_obj
def fetch_rocm(app: App, build: BuildOptions, dry_run: bool) -> None:
    """Fetch, check and cache a ROCm tree; print the path of its root."""
    from rocwheel import rocm

    plan = rocm.plan(
        rocm_source(build),
        index=rocm_index(app, build),
        sha256=build.therock_sha256,
        version=build.rocm_version,
        cache=build.rocm_cache or build.cache or app.cache,
        cwd=app.cwd,
    )
    rocm.check_local(plan)
    if dry_run:
        return app.emit(plan.document(), str(plan))
    with app.console.step("ROCm", key="rocm"):
        budget = build.cache_budget
        root = rocm.fetch(plan, console=app.console, budget_bytes=budget, env=app.environ)
    asked = plan.targets or root.facts.targets[:1]
    if refused := rocm.uncompiled(root.root, asked, runner=app.runner):
        raise RocmError(
            f"{root.name}: its own clang compiles nothing for {refused[0]}",
            hint="the tree is incomplete: fetch another release",
        )
    return app.emit({**root.document(), "seconds": app.console.seconds["rocm"]}, str(root.root))


def request_from(
    app: App, options: BuildOptions, *, therock: str, resolve: bool = True
) -> dist.Request:
    """Return the request that options make here and now, a branch by its commit with `resolve`."""
    from rocwheel import dist

    request = dist.Request.of(
        options,
        therock=therock,
        therock_index=rocm_index(app, options),
        cache=options.cache or app.cache,
        home=app.home,
        cwd=app.cwd,
        environ=app.environ,
        command_line=shlex.join(shown_setting("", word) for word in sys.argv),
        started=app.now().isoformat(timespec="seconds"),
        host=platform.node(),
    )
    return dist.resolved(request, runner=app.runner) if resolve else request


FETCH_ONLY = option(
    "--fetch-only",
    section="Output",
    metavar="FOLDER",
    type=PATH,
    rare=True,
    help="Build nothing; fetch all that this build needs into one folder.",
)
OFFLINE = option(
    "--offline",
    section="Output",
    metavar="FOLDER",
    type=PATH,
    rare=True,
    help="Build without a network, from a folder that --fetch-only filled for the same options.",
)
COST = option(
    "--cost",
    section="Output",
    is_flag=True,
    rare=True,
    help="A dry run that also counts Bazel's actions, and those that the cache has.",
)


@command("dist_wheels")
@build
@signer_option
@FETCH_ONLY
@OFFLINE
@COST
@dry_run
@click.pass_obj
def dist_wheels(
    app: App,
    build: BuildOptions,
    signer: str,
    *,
    fetch_only: Path | None,
    offline: Path | None,
    cost: bool,
    dry_run: bool,
) -> None:
    """Build, repair and verify a set of wheels, with a manifest; print the manifest's path.

    ROCm comes from --therock-path, JAX from a pin (--jax-version) or a folder (--jax-source-dir).
    The set appears, whole, in a new folder of --wheelhouse. The first digits of the manifest's
    SHA-256 name that folder; `current` points to the newest.
    """
    from rocwheel import dist
    from rocwheel.release import proof
    from rocwheel.tools import housekeeping

    if folder := offline or fetch_only:
        if (offline and fetch_only) or build.cache or build.rocm_cache:
            raise click.UsageError(
                f"{'--offline' if offline else '--fetch-only'}: the folder is the cache, so it "
                "goes with none of --cache-dir, --rocm-dir and the other one"
            )
        build = replace(build, cache=folder)
    asked = request_from(app, build, therock=rocm_source(build), resolve=not offline)
    planned = dist.plan_offline(asked) if offline else dist.plan(asked)
    key = key_of(app, signer)
    if dry_run or cost:
        lines = dist.dry_run(planned, app.here)
        return app.emit_plan(chain(lines, dist.cost(planned, app.here)) if cost else lines)
    with housekeeping.using(planned.request.cache):
        if fetch_only:
            path = dist.fill(planned, app.here)
            return app.emit({"fetched": str(path)}, str(path))
        result = dist.build(planned, app.here)
    if key:
        proof.state_build(result.wheelhouse, key)
    return show_built(app, result)


def show_built(app: App, result: dist.Result) -> None:
    """Print what was built, and the path of its manifest."""
    from rocwheel import dist

    for line in dist.lines(result, seconds=app.console.seconds):
        app.console.info(line)
    document = dist.document(result, seconds=app.console.seconds)
    app.emit(document, document["manifest"])


REBUILT = option(
    "--wheelhouse", section="Output", type=PATH, default="rebuilt", help="Folder for the set."
)


@command("rebuild")
@click.argument("wanted", metavar="MANIFEST", type=known.MANIFEST)
@target_of("GPU family of the set; needed with --channel or --store.")
@build_of(THEROCK, FOLDERS, PROGRAMS, CACHE, (REBUILT, ALLOW_DIRTY), REMOTE, CONTAINER)
@signer_option
@dry_run
@click.pass_obj
def rebuild(
    app: App,
    wanted: str,
    *,
    target: TargetOptions,
    build: BuildOptions,
    signer: str,
    dry_run: bool,
) -> int:
    """Build a wheel set again from its manifest, and compare it byte by byte.

    MANIFEST is a manifest.json, its wheelhouse, or the SHA-256 of a set in a store. If every wheel
    is the same, a statement in the new wheelhouse says so; --signer signs it. For a set in a store
    it goes there, otherwise `stage` uploads it. If wheels differ, the command prints how, and ends
    with 13.
    """
    from rocwheel import dist
    from rocwheel.records.manifest import Manifest
    from rocwheel.records.places import Place
    from rocwheel.release import proof
    from rocwheel.release.ledger import log, manifests
    from rocwheel.tools import housekeeping

    path, stores = app.cwd / wanted, tuple[Place, ...]()
    if target.channel or target.store:
        there = Target(app, target)
        before = there.manifest(app, wanted)
        pair = there.channel.pair(there.store, before, there.family.name)
        states = [(place, log.read(place)) for place in pair]
        stores = tuple(state.at(place, before.sha256) for place, state in states)
        listing = [stores[n] for n, (_, state) in enumerate(states) if state.lists(before.sha256)]
    else:
        before, listing = Manifest.load(path), []
    planned = dist.plan_rebuild(before, request_from(app, build, therock=build.therock))
    if dry_run:
        app.emit_plan(dist.dry_run(planned, app.here))
        return 0
    key, statement = key_of(app, signer), ""
    with housekeeping.using(planned.request.cache), TemporaryDirectory() as folder:

        def where(name: str) -> Path:
            sums = {w.filename: w.sha256 for w in before.built if w.filename == name}
            for place in listing[-1:]:
                manifests.bring(place, sums, Path(folder))
            return (Path(folder) if stores else path if path.is_dir() else path.parent) / name

        made = dist.rebuild(before, where, planned, app.here)
    if not made.wheels:
        file = proof.state_build(made.result.wheelhouse, key, again=before)
        keys = proof.add(stores[0], before.sha256, file.read_bytes()) if key and stores else ()
        statement = stores[0].store.locate(keys[0]) if keys else str(file)
    app.emit(made.to_json(statement), "\n".join(made.lines()))
    return DIFFERENT if made.wheels else 0
