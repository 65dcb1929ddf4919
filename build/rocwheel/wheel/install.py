"""Where an installer puts each file of a wheel: the schemes of its `.data` folder, resolved.

`demo-1.0.data/purelib/x.py` lands where `x.py` does, so rules look at landings, not at names in
the archive. The schemes are those of the wheel format that pip and uv both know
(https://packaging.python.org/en/latest/specifications/binary-distribution-format/#the-data-directory);
pip takes any top-level folder that ends with `.data`, uv only the wheel's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

LIBRARY: Final = "lib"  # site-packages, purelib and platlib alike: they are one folder in practice
SCHEMES: Final = {
    "purelib": LIBRARY, "platlib": LIBRARY, "scripts": "scripts", "headers": "headers",
    "data": "data",
}  # fmt: skip
SCRIPT_GROUPS: Final = ("console_scripts", "gui_scripts")  # entry points that become programs


def sound_mode(mode: int) -> int:
    """Permission bits with which everybody can use a file, and only its owner changes it.

    A mode that is so already stays; so does 0, of an archive without modes. pip and uv set their
    own, what unpacks a wheel otherwise (Bazel, distributions) takes the archive's.
    """
    bits = mode & 0o7777
    sound = (bits | 0o444) & ~0o7002
    if not bits or sound == bits:
        return mode
    return mode & ~0o7777 | sound | (0o111 if bits & 0o111 else 0)


class Landing(NamedTuple):
    """Where a member lands; `problem` says why nowhere."""

    member: str
    scheme: str = ""  # of SCHEMES' values
    path: str = ""  # below the scheme's folder
    problem: str = ""

    @property
    def place(self) -> str:
        return f"{self.scheme}/{self.path}"


def landings(names: Iterable[str], stem: str) -> Iterator[Landing]:
    """Where every file goes; `stem` is what the wheel's own `.data` folder begins with."""
    for name in names:
        if not name.endswith("/"):
            yield _landing(name, f"{stem}.data")


def _landing(name: str, data: str) -> Landing:
    top, _, rest = name.partition("/")
    if not top.lower().endswith(".data"):
        return Landing(name, LIBRARY, name)
    if top != data:
        return Landing(name, problem=f"the data folder of this wheel is {data}")
    key, _, path = rest.partition("/")
    if key not in SCHEMES or not path:
        return Landing(name, problem=f"no installer knows where it goes; there are {_KNOWN}")
    return Landing(name, SCHEMES[key], path)


_KNOWN: Final = ", ".join(SCHEMES)


def scripts(entry_points: Mapping[str, Iterable[str]]) -> Iterator[Landing]:
    """Where the programs go that an installer writes for entry points."""
    for group in SCRIPT_GROUPS:
        for line in entry_points.get(group, ()):
            program = line.partition("=")[0].strip()
            yield Landing(f"[{group}] {program}", "scripts", program)
