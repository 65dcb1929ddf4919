"""How a runtime image gets to users: pushed once, recorded once, moving tags last.

Each step can be repeated: what is there already is compared and left alone. A moving tag is pointed
at a recorded image by writing that image's own manifest under it (OCI distribution specification,
"pushing manifests"), so the bytes are those that were tried, and no engine is needed to go back.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from rocwheel.console import Console
from rocwheel.container import ContainerEngine
from rocwheel.errors import ConfigError, PromotionError, StoreError
from rocwheel.image import registry
from rocwheel.image.found import INPUTS
from rocwheel.places import Place
from rocwheel.process import HostRunner
from rocwheel.release.operations import Who
from rocwheel.runtime import record
from rocwheel.runtime.making import ImagePlan, MadeImage
from rocwheel.runtime.record import ImageRecord, TagMove


@dataclass(frozen=True, kw_only=True)
class Registry:
    """A registry, and how it is talked to."""

    name: str  # host, or host/organisation
    environ: Mapping[str, str]  # proxies, certificates, and where credentials are kept

    def repository(self, name: str) -> str:
        return f"{self.name}/{name}"


def refuse_untried(
    plan: ImagePlan, made: MadeImage, place: Place
) -> Mapping[str, record.ImageVerdict]:
    """Return the verdicts that let an image through. Raises PromotionError for what holds it up."""
    found = record.verdicts(place, made.image.config)
    refused = tuple(record.refusals(found, plan.subject.recipe.suites))
    if refused:
        raise PromotionError(
            f"{plan.subject.reference}: not pushed: {'; '.join(refused)}",
            hint="run it with --test; an image that failed is never pushed, build another",
        )
    return found


def refuse_taken(plan: ImagePlan, to: Registry) -> None:
    """Raise StoreError when the tag is another image's, before hours go into one for it."""
    repository, tag = to.repository(plan.subject.repository), plan.subject.tag
    there = registry.look(repository, tag, environ=to.environ)
    if there and there.labels.get(INPUTS) != plan.digest:
        raise StoreError(
            f"{repository}:{tag}: is there, made from other inputs",
            hint="nobody overwrites a tag: change the scheme in ci/images.yaml, or the repository",
        )


def push(
    plan: ImagePlan,
    made: MadeImage,
    to: Registry,
    *,
    engine: ContainerEngine,
    runner: HostRunner,
    console: Console,
) -> tuple[registry.RemoteImage, bool]:
    """Push under a tag that is written once. Raises StoreError for a tag with other bytes."""
    return registry.push(
        made.image,
        to.repository(plan.subject.repository),
        plan.subject.tag,
        engine=engine,
        runner=runner,
        environ=to.environ,
        console=console,
    )


def describe(
    plan: ImagePlan,
    made: MadeImage,
    remote: registry.RemoteImage,
    verdicts: Mapping[str, record.ImageVerdict],
    *,
    sbom: str,
    who: Who,
) -> ImageRecord:
    """Return the record of an image that lies in a registry."""
    subject = plan.subject
    return ImageRecord(
        reference=f"{remote.repository}:{subject.tag}",
        digest=remote.digest,
        config=remote.config,
        inputs=plan.digest,
        manifest=subject.manifest.sha256,
        released=subject.is_released,
        recipe=subject.recipe.name,
        profile=subject.profile,
        python=str(subject.python),
        base=plan.base.reference,
        base_config=plan.base.config,
        rocm=str(plan.rocm.version),
        rocm_sha256=plan.rocm.sha256,
        layers=made.layers,
        blobs=remote.layers,
        packages={pin.filename: pin.sha256 for pin in plan.pins},
        sbom=sbom,
        verdicts=tuple(sorted(verdicts)),
        time=who.now.isoformat(),
        by=who.by,
        tool=plan.tool,
    )


def trend(place: Place, found: ImageRecord) -> str:
    """Return how its size compares with the last one of its kind; "" for the first."""

    def kind(item: ImageRecord) -> tuple[str, ...]:
        return item.recipe, item.profile, item.python, item.base_name

    before = [
        item
        for item in record.records(place)
        if kind(item) == kind(found) and item.config != found.config
    ]
    if not before or not before[-1].size:
        return ""
    last = before[-1]
    return f"{100 * (found.size - last.size) / last.size:+.1f} % against {last.reference}"


def recorded(plan: ImagePlan, place: Place, to: Registry) -> ImageRecord | None:
    """Return the record of the image of these inputs there; None where there is none."""
    wanted = f"{to.repository(plan.subject.repository)}:{plan.subject.tag}"
    return next(
        (item for item in record.records(place, {wanted}) if item.inputs == plan.digest),
        None,
    )


def move(place: Place, to: Registry, tag: str, found: ImageRecord, who: Who) -> bool:
    """Point a moving tag at a recorded image; False when it points there already.

    The move is noted first, so that one that was cut short is seen and finished by the next.
    Raises ConfigError for an image of a set that is only staged, StoreError.
    """
    if not found.released:
        raise ConfigError(
            f"{found.reference}: made of a set that is not released",
            hint="moving tags name released sets only: promote it first",
        )
    before = record.moves(place, found.repository, tag)
    known = before[-1].config if before else ""
    if known != found.config:
        record.add_move(
            place,
            TagMove(
                repository=found.repository,
                tag=tag,
                number=len(before),
                config=found.config,
                digest=found.digest,
                by=who.by,
                reason=who.reason,
                time=who.now.isoformat(),
            ),
        )
    there = registry.look(found.repository, tag, environ=to.environ)
    if there is not None and there.digest == found.digest:
        return known != found.config
    registry.point(found.repository, tag, found.digest, environ=to.environ)
    return True


@dataclass(frozen=True, kw_only=True)
class Withdrawal:
    """What a rollback does to moving tags: where each goes, and the images that remain."""

    moves: tuple[tuple[TagMove, ImageRecord], ...]
    stuck: tuple[TagMove, ...]  # nowhere to go
    images: tuple[ImageRecord, ...]


def withdrawal(place: Place, manifest: str, *, listed: Collection[str]) -> Withdrawal:
    """Return where moving tags go that point at images of a set that is taken back.

    `listed` are the sets that are released now: a tag goes to no image of another.
    """
    known = {(item.repository, item.config): item for item in record.records(place)}
    images = tuple(item for item in known.values() if item.manifest == manifest)
    bad = {item.config for item in images}
    found, stuck = [], []
    for last in record.moved_tags(place):
        if last.config not in bad:
            continue
        history = record.moves(place, last.repository, last.tag)
        earlier = (known.get((item.repository, item.config)) for item in reversed(history))
        good = (item for item in earlier if item and item.manifest in {*listed} - {manifest})
        target = next(good, None)
        if target:
            found.append((last, target))
        else:
            stuck.append(last)
    return Withdrawal(moves=tuple(found), stuck=tuple(stuck), images=images)
