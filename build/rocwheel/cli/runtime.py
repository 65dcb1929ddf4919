"""`runtime_images`: images that users pull, from a released wheel set; their list, a rollback."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from rocwheel.choices import IMAGE_PROFILES
from rocwheel.cli.app import App
from rocwheel.cli.command import (
    DryRun,
    command,
    group_command,
    once,
    option,
    section,
)
from rocwheel.cli.gate_run import SLOTS
from rocwheel.cli.image import EngineOptions
from rocwheel.cli.imports import when_run
from rocwheel.cli.page_file import page_path, write_page
from rocwheel.cli.target import (
    PersonOptions,
    Target,
    TargetOptions,
)
from rocwheel.errors import PromotionError

with when_run():
    from rocwheel import container
    from rocwheel.console import columns, size
    from rocwheel.container import EngineKind
    from rocwheel.ledger import log
    from rocwheel.ledger.state import Standing
    from rocwheel.places import Place
    from rocwheel.release import wheelset
    from rocwheel.runtime import job, listing, publishing
    from rocwheel.runtime.job import ImageRequest


@dataclass(frozen=True, kw_only=True)
class RuntimeOptions(TargetOptions, PersonOptions, EngineOptions, DryRun):
    """Options of `runtime_images`."""

    manifest: str | None
    python: str | None
    recipe: str
    base: str
    base_image: str | None
    profile: str
    rocm: str | None
    unreleased: bool
    build_network: str
    test: bool
    jax_tests: Path | None
    slots: Path
    push: str | None
    tags: tuple[str, ...]
    output: Path

    def check(self) -> None:
        """Raise UsageError for what is missing."""
        for name in ("manifest", "python", "family"):
            if not getattr(self, name):
                raise click.UsageError(f"give --{name}")
        if self.tags and not self.push:
            raise click.UsageError("--tag needs --push")


@group_command("runtime_images", RuntimeOptions)
@section(
    "Inputs",
    once("--manifest", metavar="SHA|PATH", help="The wheel set (required)."),
    once("--python", metavar="VERSION", help="CPython: 3.12 (required)."),
    once("--recipe", default="jax", show_default=True, help="Recipe of ci/images.yaml."),
    once("--base", default="", metavar="NAME", help="Base of ci/images.yaml; default: the first."),
    once(
        "--base-image",
        metavar="IMAGE",
        help="This image in place of the base's own: NAME@sha256:…, or a local one.",
    ),
    once(
        "--profile",
        type=click.Choice(IMAGE_PROFILES),
        default=IMAGE_PROFILES[0],
        show_default=True,
        help="What of ROCm: what the wheels need, or all of it.",
    ),
    once(
        "--rocm",
        metavar="SOURCE",
        help="ROCm as a tarball, URL or folder; default: the manifest's own.",
    ),
    option(
        "--unreleased",
        is_flag=True,
        help="Of a set that is only staged: to another repository, labelled so.",
    ),
    once(
        "--build-network",
        metavar="NAME",
        default="default",
        show_default=True,
        help="Network of the steps that install packages: default, host.",
    ),
)
@section(
    "Output",
    option("--test", is_flag=True, help="Run the recipe's suites in the image."),
    once(
        "--jax-tests",
        type=click.Path(path_type=Path),
        metavar="DIR",
        help="A JAX checkout at the set's commit; default: it is fetched.",
    ),
    option(
        "--slots",
        type=click.Path(path_type=Path),
        default=SLOTS,
        show_default=True,
        help="Lock files of the devices, shared by everything on this machine.",
    ),
    once(
        "--output",
        type=click.Path(path_type=Path),
        default=Path("gate-results/image"),
        show_default=True,
        help="Where results and logs go.",
    ),
)
@section(
    "Target",
    once("--push", metavar="REGISTRY", help="Push it there, tested; needs verdicts that pass."),
    option(
        "--tag", "tags", multiple=True, metavar="NAME", help="Then point this moving tag at it."
    ),
)
def runtime_images(app: App, options: RuntimeOptions) -> int:
    """Make, test and push a runtime image of a released wheel set.

    Base, ROCm, CPython and wheels are layers of their own; what users pull is what was tested.
    Unchanged inputs build and push nothing. Exit status 9 when verdicts hold the push up.
    """
    options.check()
    planned = job.plan(_request(app, options), home=app.home)
    if options.dry_run:
        app.emit_plan(planned.lines)
        return 0
    engine = container.ask(EngineKind(options.engine), environ=app.environ, runner=app.runner)
    done = job.make(planned, app, engine)
    app.emit(done.document, done.line)
    return done.status


def _request(app: App, options: RuntimeOptions) -> ImageRequest:
    """Return what the options ask for. Raises UsageError, ConfigError, StoreError."""
    target = Target(app, options)
    manifest = target.manifest(app, options.manifest or "")
    place = (target.store, target.family.name, wheelset.rocm_major(manifest))
    return ImageRequest(
        manifest=manifest,
        family=target.family,
        release=target.channel.release(*place),
        staging=target.channel.staging(*place),
        python=options.python or "",
        recipe=options.recipe,
        base=options.base,
        base_image=options.base_image or "",
        profile=options.profile,
        rocm=options.rocm or "",
        unreleased=options.unreleased,
        build_network=options.build_network,
        test=options.test,
        jax_tests=options.jax_tests,
        slots=options.slots,
        push=options.push or "",
        tags=options.tags,
        output=options.output,
        families=app.path(options.families),
        who=options.who(app, reason="runtime image"),
    )


@dataclass(frozen=True, kw_only=True)
class ListOptions(TargetOptions):
    """Options of `runtime_images list`."""

    html: Path | None


@command("list", ListOptions, parent=runtime_images)
@option(
    "--html",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write a page for people, too.",
)
def list_images(app: App, options: ListOptions) -> None:
    """List the images that were pushed: reference, digest, size, set, and moving tags."""
    page = page_path(app, options.html)
    target = Target(app, options)
    found = [item for pair in target.pairs() for place in pair for item in listing.listed(place)]
    rows = [
        (item["reference"], item["digest"][7:19], size(item["size"]), item["manifest"][:12],
         "released" if item["released"] else "staged", " ".join(item["tags"]))
        for item in found
    ]  # fmt: skip
    head = ("image", "digest", "size", "set", "state", "tags")
    app.emit({"images": found}, "\n".join(columns(head, rows)))
    if page:
        title = f"Runtime images of {target.family.name}"
        write_page(page, listing.page(found, title=title, now=app.now()))


@dataclass(frozen=True, kw_only=True)
class RollbackOptions(TargetOptions, PersonOptions, DryRun):
    """Options of `runtime_images rollback`."""

    manifest: str


@command("rollback", RollbackOptions, parent=runtime_images)
@section("Target", once("--manifest", required=True, metavar="SHA|PATH", help="The wheel set."))
def rollback(app: App, options: RollbackOptions) -> int:
    """Move tags away from the images of a set, to where they pointed before; name the images.

    Images are kept: who pulled one by digest can still pull it. Exit status 9 when a tag has
    nowhere to go.
    """
    place, sha256 = Target(app, options).release_of(app, options.manifest)
    sets = log.read(place).sets
    listed = {key for key, item in sets.items() if item.standing is Standing.LISTED}
    found = publishing.withdrawal(place, sha256, listed=listed)
    _withdraw(app, options, place, found)
    images = [item.pinned for item in found.images]
    document = {
        "moved": [f"{last.repository}:{last.tag}" for last, _ in found.moves],
        "stuck": [f"{last.repository}:{last.tag}" for last in found.stuck],
        "images": images,
        "dry_run": options.dry_run,
    }
    app.emit(document, "\n".join(images))
    return PromotionError.exit_code if found.stuck else 0


def _withdraw(
    app: App, options: RollbackOptions, place: Place, found: publishing.Withdrawal
) -> None:
    """Move each tag back, and tell of those that have nowhere to go."""
    who = options.who(app, reason="rollback")
    to = publishing.Registry(name="", environ=app.environ)
    for last, image in found.moves:
        app.console.info(f"{last.repository}:{last.tag} -> {image.reference}")
        if not options.dry_run:
            publishing.move(place, to, last.tag, image, who)
    for last in found.stuck:
        app.console.fail(
            PromotionError(
                f"{last.repository}:{last.tag}: points at {last.digest}, and at nothing before",
                hint="push another set under it, or remove the tag in the registry",
            )
        )
