"""The folders of rocwheel's own data (ci, suites, examples), and which rocwheel this is.

In a checkout the data is the checkout's (`ci/`, `suites/`, `examples/`); an installed rocwheel
carries a copy in `rocwheel/share`, with the commit it was built from in `source.json`. A team can
have its own `ci` folder in place of either.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rocwheel.base.errors import ConfigError
from rocwheel.base.git import Source
from rocwheel.base.values import decoded, replace

PACKAGE: Final = Path(__file__).resolve().parents[1]
SHARE: Final = PACKAGE / "share"
MARK: Final = "pins.yaml"  # is in every `ci` folder
SUITES: Final = "suites"  # a folder of each


@dataclass(frozen=True, kw_only=True)
class Home:
    """Folders of data, each with what it holds below."""

    root: Path  # the checkout, or what was packaged: examples/, suites/
    ci: Path  # pins, layouts, policies, channels, suites, skips
    tests: Path  # what the folders that suites name are relative to

    @property
    def is_checkout(self) -> bool:
        """Return whether rocwheel runs from its sources."""
        return self.root != SHARE

    @property
    def sources(self) -> Path:
        """The checkout, whose files go into images. Raises ConfigError where there is none."""
        if not self.is_checkout:
            raise ConfigError(
                "images are made from a checkout of rocwheel, and this one is installed",
                hint="run build/ci_build of a checkout of the same version",
            )
        return self.root


def find(ci: Path | None) -> Home:
    """Return the data to use; `ci` is a team's own folder. Raises ConfigError."""
    checkout = PACKAGE.parents[1]
    root = checkout if (checkout / "ci" / MARK).is_file() else SHARE
    if ci is None:
        return Home(root=root, ci=root / "ci", tests=root)
    if not (ci / MARK).is_file():
        raise ConfigError(
            f"{ci}: has no {MARK}, so it is not a data folder of rocwheel",
            hint=f"start from a copy of {root / 'ci'}",
        )
    return Home(root=root, ci=ci, tests=ci.parent if (ci.parent / "suites").is_dir() else root)


def tool(home: Home, identify: Callable[[Path], Source]) -> Source:
    """Identify this rocwheel by its checkout, or by the commit it was built from.

    Where it was cloned from is left out, so that the same rocwheel always has one name.
    """
    if home.is_checkout:
        return replace(identify(home.root), repository="")
    file = SHARE / "source.json"
    return decoded(file.read_bytes(), Source, name=str(file))
