"""How a runtime image gets to users: pushed once, moving tags pointed at it, recorded last.

Each step can be repeated: what is there already is compared and left alone. A moving tag is pointed
at an image by writing that image's own manifest under it (OCI distribution specification, "pushing
manifests"), so the bytes are those that were tried.
"""

from __future__ import annotations

from collections.abc import Mapping

from rocwheel.errors import PromotionError, StoreError
from rocwheel.image import registry
from rocwheel.image.found import INPUTS
from rocwheel.places import Place
from rocwheel.release.operations import Who
from rocwheel.runtime import record
from rocwheel.runtime.making import ImagePlan, MadeImage
from rocwheel.runtime.record import ImageRecord


def refuse_untried(
    plan: ImagePlan, made: MadeImage, place: Place
) -> Mapping[str, record.ImageVerdict]:
    """Return the verdicts that let an image through. Raises PromotionError for what holds it up."""
    verdicts = record.verdicts(place, made.image.config)
    refused = tuple(record.refusals(verdicts, plan.subject.recipe.suites))
    if refused:
        raise PromotionError(
            f"{plan.subject.reference}: not pushed: {'; '.join(refused)}",
            hint="run it with --test; an image that failed is never pushed, build another",
        )
    return verdicts


def refuse_taken(plan: ImagePlan, repository: str, *, environ: Mapping[str, str]) -> None:
    """Raise StoreError when the tag is another image's, before hours go into one for it."""
    there = registry.look(repository, plan.subject.tag, environ=environ)
    if there and there.labels.get(INPUTS) != plan.digest:
        raise StoreError(
            f"{repository}:{plan.subject.tag}: is there, made from other inputs",
            hint="no tag is overwritten: change the scheme in ci/images.yaml, or the repository",
        )


def describe(
    plan: ImagePlan,
    made: MadeImage,
    remote: registry.RemoteImage,
    verdicts: Mapping[str, record.ImageVerdict],
    *,
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
        verdicts=tuple(sorted(verdicts)),
        time=who.now.isoformat(),
        by=who.by,
        tool=plan.tool,
    )


def recorded(plan: ImagePlan, place: Place, repository: str) -> ImageRecord | None:
    """Return the record of the image of these inputs there; None where there is none."""
    wanted = f"{repository}:{plan.subject.tag}"
    return next(
        (item for item in record.records(place, {wanted}) if item.inputs == plan.digest),
        None,
    )
