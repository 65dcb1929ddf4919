"""Wheels: read, judged, renamed, repaired and compared without unpacking them.

`inspect` reads a wheel once and flat in memory, `verify` judges it by `ci/wheel_policy.yaml`,
`rename` changes its names and `repair` makes it fit to ship by splicing new texts between the
compressed members of the old archive. No step holds more than a few MiB of a wheel in memory.
"""

from typing import Final, NamedTuple


class Limits(NamedTuple):
    """Budgets for one wheel; every reader refuses a wheel beyond them."""

    # The archive.
    directory: int = 16 << 20  # bytes of the central directory, and of all local headers
    total: int = 16 << 30  # bytes of all members, inflated
    total_ratio: int = 50  # all members inflated to the file's size, above `total_from` bytes
    total_from: int = 256 << 20
    ratio: int = 200  # inflated to compressed, for members above `ratio_from` bytes
    ratio_from: int = 16 << 20
    text: int = 2 << 20  # bytes of a member that is read as a whole
    record: int = 16 << 20  # bytes of RECORD, which has a line for each file
    # Texts.
    entry_points: int = 64 << 10  # bytes of entry_points.txt; numpy has 200
    provenance: int = 8  # version.py and commit_info.py, or SBOMs; published wheels have 2
    sbom: int = 256 << 10  # bytes of one file below dist-info/sboms; of 120 repositories: 42 KiB
    specifier: int = 4096  # characters of a version or a requirement; 100 were published
    brackets: int = 16  # of a requirement: packaging's time doubles with each; 2 were published
    # Tables of all ELF files together.
    elf_entries: int = 500_000  # dynamic entries, symbols, needed versions
    elf_names: int = 64 << 20  # bytes of all names; triton has 15 MB
    bundle_fronts: int = 10_000  # places that look like a bundle of GPU code
    code_objects: int = 200_000  # in bundles
    code: int = 64 << 30  # bytes of unpacked GPU code, with --thorough; pjrt 0.11.2 has 3.8 GB
    run_memory: int = 32 << 30  # bytes of address space of a process of --runs


LIMITS: Final = Limits()
SOME_CODE: Final = 256 << 20  # bytes of unpacked GPU code that are read without --thorough
