"""Every line that installs a set, by who takes it, and what comes of it: a table of the docs.

`tests/records/test_install_lines_real.py` runs what is run, `tests/cli/test_printed_lines.py` holds the page
against it.
"""

from __future__ import annotations

from collections.abc import Iterator

from rocwheel.base.values import replace
from rocwheel.records.install import Install, Package

ALL, NO_JAX, PROJECT = "exactly the set", "exactly the set, without jax", "the set, in a project"
RUN = {"pip": ALL, "uv": ALL, "pip, by hash": NO_JAX, "poetry": PROJECT}
ROCM = {"ROCm, pip": "ROCm for the GPUs of the set", "ROCm, tarball": "ROCm in /opt/rocm"}
COMPARED = {
    "pixi": "its text is compared: no package index has pixi",
    "ROCm, /opt/rocm": "a comment",
}
SET = Install(
    index="https://rocm.nightlies.amd.com/v2/gfx94X-dcgpu/",
    ours=tuple(
        Package(project=name, version="0.11.0+rocm7.10.0", hashes=("…",))
        for name in ("jax-rocm7-pjrt", "jax-rocm7-plugin")
    ),
    upstream=(Package(project="jaxlib", version="0.11.0"),),
    jax="0.11.0",
)
BY_TARBALL = replace(
    SET, rocm="7.10.0a20251120", rocm_origin="tarball",
    rocm_url="https://example.com/therock-dist-linux-gfx94X-dcgpu-7.10.0a20251120.tar.gz",
)  # fmt: skip
BY_PIP = replace(
    SET, rocm="7.15.0a20260630", rocm_origin="pip", rocm_url="https://example.com/rocm/",
    targets=("gfx942",),
)  # fmt: skip


def of(install: Install) -> dict[str, tuple[str, ...]]:
    """Return the lines of a set by the client that takes them."""
    rocm = {f"ROCm, {way}": (line,) for way, line in install.rocm_lines().items()}
    return {
        "pip": install.pip,
        "uv": install.uv,
        "pip, by hash": install.by_hash("rocm.txt", "upstream.txt"),
        "poetry": install.poetry,
        "pixi": tuple(install.pixi.splitlines()),
        **rocm,
    }


def rows(*installs: Install) -> Iterator[str]:
    """Yield the rows of the page: client, line, outcome."""
    lines = {client: each for install in installs for client, each in of(install).items()}
    for client, outcome in (RUN | ROCM | COMPARED).items():
        for line in lines[client]:
            shown = line.replace("|", "\\|")
            yield f"| {client} | `{shown}` | {outcome} |"
