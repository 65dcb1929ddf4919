"""The runtime images of a night: of which sets, what each is called, and which there are already.

Recipes and tags are those of `runtime_images`. An image is there when its record is
(`runtime.record`): that is written after the push, and no registry has to answer for a plan.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from rocwheel.base.values import Plain
from rocwheel.base.versions import PythonVersion
from rocwheel.image import runtime_recipe as image_recipe
from rocwheel.image.runtime_recipe import ImagedSet, RuntimeBase, RuntimeRecipe
from rocwheel.night import runtime_record as record
from rocwheel.night.settings import ImageSettings, NightSettings
from rocwheel.records.places import Place
from rocwheel.release.ledger.nights import WheelRecipe


class NightImage(Plain, frozen=True, kw_only=True):
    """An entry of `images` in the settings of a night, with its recipe and its base."""

    settings: ImageSettings
    recipe: RuntimeRecipe
    base: RuntimeBase

    @property
    def repository(self) -> str:
        return f"{self.settings.push}/{self.recipe.repository}"

    def reference(self, wheels: ImagedSet, python: str) -> str:
        """Return where the image of a set is pushed: registry, repository and tag."""
        version, profile = PythonVersion.parse(python), self.settings.profile
        return f"{self.repository}:{self.recipe.tag_of(wheels, version, self.base, profile)}"

    def lacks(self, wheels: WheelRecipe, python: str) -> str:
        """Return why there is no image of that set with this CPython; "" where there can be one."""
        if python not in wheels.pythons:
            return f"{wheels.name} has no CPython {python}"
        return "" if python in self.base.pythons else f"{self.base.name} has no CPython {python}"


def load(settings: NightSettings, ci: Path, families: Collection[str]) -> tuple[NightImage, ...]:
    """Return every entry with its recipe. Raises ConfigError for a name that nothing has."""
    settings.check_families(families)
    made = []
    for entry in settings.images:
        recipe = image_recipe.load(ci / "images.yaml", entry.recipe)
        base = recipe.base(entry.base)
        for python in entry.pythons:
            base.python(python)
        made.append(NightImage(settings=entry, recipe=recipe, base=base))
    return tuple(made)


def wanted(
    images: Iterable[NightImage], wheels: WheelRecipe, family: str
) -> Iterator[tuple[NightImage, str]]:
    """Yield the images that are wanted of one set for one family, each with its CPython."""
    for image in images:
        if image.settings.wants(wheels.name, family):
            for python in map(str, image.settings.pythons or wheels.pythons):
                yield image, python


def recorded(
    place: Place, wheels: ImagedSet, asked: Iterable[tuple[NightImage, str]]
) -> Mapping[tuple[str, str], str]:
    """Return which of the asked images were made of this very set: name and CPython -> reference.

    A record is written after the moving tags were pointed at its image.
    """
    names = {image.reference(wheels, python): (image, python) for image, python in asked}
    return {
        (names[item.reference][0].settings.label, names[item.reference][1]): item.pinned
        for item in (record.records(place, names) if names else ())
        if item.manifest == wheels.set_id
    }
