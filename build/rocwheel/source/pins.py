"""Reads `ci/pins.yaml` and `ci/layouts.yaml`: which JAX releases are built, and how.

Every mistake is a ConfigError with file, line, key and the nearest valid name.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

from packaging.version import InvalidVersion, Version

from rocwheel.base import yaml_file
from rocwheel.base.errors import ConfigError
from rocwheel.base.values import Commit, Count, Plain, Sha256, Value, replace
from rocwheel.base.versions import suggest
from rocwheel.base.yaml_file import CPythons, FieldError
from rocwheel.records.source_layout import CONDITIONS, PLACEHOLDER, VALUES, Layout

ADD: Final = "rocwheel pins add"
Layouts = Mapping[str, Layout]


class _Layout(Layout, frozen=True, kw_only=True):
    def __post_init__(self) -> None:
        features = frozenset[str]().union(*(item.features for item in self.classes))
        values = VALUES.union(*(item.values for item in self.classes))
        known = {"when": CONDITIONS | features, "options": values}
        used = set[str]()
        for place, step in enumerate(self.recipe):
            used |= {*step.when}
            named = [("when", number, name, repr(name)) for number, name in enumerate(step.when)]
            for number, template in enumerate(step.options):
                names = PLACEHOLDER.findall(template)
                named += [("options", number, name, f"{{{name}}}") for name in names]
            for key, number, name, shown in named:
                if name not in known[key]:
                    raise FieldError(
                        f"unknown value {shown}", "recipe", place, key, number,
                        hint=suggest(name, sorted(known[key])),
                    )  # fmt: skip
        for unread in sorted(features - used):
            raise FieldError(
                f"no step asks for the feature {unread!r}", "classes", hint="remove it"
            )


class _LayoutFile(Value, frozen=True, kw_only=True):
    schema: Literal[1]
    layouts: Mapping[str, _Layout]


def load_layouts(path: Path) -> Layouts:
    """Read every layout, by name. Raises ConfigError."""
    entries = yaml_file.read(path, _LayoutFile).layouts
    return {name: replace(entry, name=name) for name, entry in entries.items()}


class PinnedWheel(Value, frozen=True, kw_only=True):
    """A jaxlib of the Python package index: identified by its bytes, not by where it lies."""

    filename: str
    size: Count
    sha256: Sha256


class PinnedJaxlib(Value, frozen=True, kw_only=True):
    """The jaxlib of a release on the Python package index, by CPython."""

    origin: Literal["built", "upstream"]  # what is done where no option says otherwise
    requires_python: str
    wheels: Mapping[str, PinnedWheel]


class Pin(Value, frozen=True, kw_only=True):
    """One JAX release: where its sources are and what belongs to them."""

    name: str = ""  # its key in the file: the version, or the branch of a fork
    version: str = ""  # of JAX, where the key is not it
    repository: str
    ref: str  # what people call the commit
    commit: Commit
    xla_commit: Commit | None = None  # None where only the tree says it, as of an unverified pin
    layout: str
    bazel: str
    pythons: CPythons
    jaxlib: PinnedJaxlib
    default: bool = False
    unverified: str = ""  # what was not compared with the sources; "" for a pin like any other

    def __post_init__(self) -> None:
        if self.xla_commit is None and not self.unverified:
            raise FieldError("'xla_commit' is missing", hint="add `xla_commit:` here")
        if self.default and self.unverified:
            raise FieldError(
                "an unverified pin is never the default", "default", hint="leave it out"
            )
        wanted = list(map(str, self.pythons))
        for name in self.jaxlib.wheels:
            if name not in wanted:
                raise FieldError(
                    "unknown key", "jaxlib", "wheels", name, hint=suggest(name, wanted)
                )
        for name in wanted:
            if name not in self.jaxlib.wheels:
                raise FieldError(
                    f"{name!r} is missing", "jaxlib", "wheels", hint=f"add `{name}:` here"
                )

    @property
    def adding(self) -> str:
        """Return the command that makes this pin of its sources and wheels."""
        fork = f" --repository {self.repository} --ref {self.ref}"
        return f"`{ADD} {self.version}{'' if self.name == self.version else fork}`"


class _File(Value, frozen=True, kw_only=True):
    schema: Literal[1]
    pins: Mapping[str, Pin]

    def __post_init__(self) -> None:
        for name, pin in self.pins.items():
            try:
                Version(pin.version or name)
            except InvalidVersion:
                raise FieldError(
                    f"{pin.version or name!r} is not a version", "pins", name,
                    hint='write for example "0.9.1", or `version:` below the name of a branch',
                ) from None  # fmt: skip
        count = sum(pin.default for pin in self.pins.values())
        if count != 1:
            hint = "write `default: true` at exactly one"
            raise FieldError(f"{count} pins are marked default", "pins", hint=hint)


class Pins(Plain, frozen=True, kw_only=True):
    """Every pin, oldest release first."""

    path: str
    pins: tuple[Pin, ...]
    layouts: Layouts

    def find(self, version: str, *, allow_unverified: bool = False) -> Pin:
        """Return the pin of this name, an unverified one only where it is allowed.

        Raises ConfigError that says how the release would be built, and how a pin is added.
        """
        if (pin := next((pin for pin in self.pins if pin.name == version), None)) is None:
            known = tuple(pin.name for pin in self.pins)
            built_as = self._class(version)
            raise ConfigError(
                f"JAX {version}: no pin in {self.path}{built_as}",
                hint=f"`{ADD} {version}` makes one" if built_as else suggest(version, known),
            )
        if pin.unverified and not allow_unverified:
            raise ConfigError(
                f"JAX {version}: its pin is unverified: {pin.unverified}",
                hint=f"build it all the same: --allow-unverified-pin; verify it: {pin.adding}",
            )
        return pin

    @property
    def default(self) -> Pin:
        """Return the release that is built where none is named."""
        return next(pin for pin in self.pins if pin.default)

    def _class(self, version: str) -> str:
        """Return which class of the upstream layout a release would be built as, for a hint."""
        try:
            wanted = Version(version)
        except InvalidVersion:
            return ""
        version_class = self.layouts["upstream"].version_class(wanted)
        if version_class is None or wanted <= max(Version(pin.version) for pin in self.pins):
            return ""
        return f"; it would get the layout of {version_class}, but its sources may have another"


def load(path: Path, *, layouts: Layouts, text: str = "") -> Pins:
    """Read the pins, of a text in place of the file's; `layouts` must know theirs."""
    document = yaml_file.parse(text, name=str(path)) if text else yaml_file.load(path)
    entries = document.to(_File).pins
    pins = []
    for name, entry in entries.items():
        pin = replace(entry, name=name, version=entry.version or name)
        if mistake := _mistake(pin, layouts):
            raise document.error(str(mistake), "pins", name, *mistake.at, hint=mistake.hint)
        pins.append(pin)
    ordered = sorted(pins, key=lambda pin: (Version(pin.version), pin.name))
    return Pins(path=str(path), pins=tuple(ordered), layouts=layouts)


def of(ci: Path) -> Pins:
    """Read the pins of a folder of data, with the layouts there. Raises ConfigError."""
    return load(ci / "pins.yaml", layouts=load_layouts(ci / "layouts.yaml"))


def _mistake(entry: Pin, layouts: Layouts) -> FieldError | None:
    layout: Layout | None = layouts.get(entry.layout)
    if layout is None:
        hint = suggest(entry.layout, tuple(layouts))
        return FieldError(f"unknown value {entry.layout!r}", "layout", hint=hint)
    if layout.version_class(Version(entry.version)) is None:
        problem = f"no class of layout {layout.name!r} holds JAX {entry.version}"
        return FieldError(problem, "layout", hint="add one to ci/layouts.yaml")
    for python in entry.pythons:
        name = entry.jaxlib.wheels[str(python)].filename
        start = f"jaxlib-{entry.version}-{python.interpreter}-{python.abi}-"
        if not (name.startswith(start) and name.endswith(".whl")):
            return FieldError(
                f"{name} does not start with {start}",
                *("jaxlib", "wheels", str(python), "filename"),
                hint="compare the two",
            )
    return None
