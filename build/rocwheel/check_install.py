"""Whether installed ROCm JAX wheels work here: `rocwheel check-install`, or this file alone.

    python check_install.py [--json] [--no-run]

Standard library only, so that users run it with the Python they installed the wheels for. Each line
is ok, bad (with what to do) or not looked at (with why); the exit status is 8 where one is bad.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import struct
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

BAD_STATUS = 8
SECONDS = 300  # for JAX to import and to run one kernel
PLUGIN = re.compile(r"jax-rocm(\d+)-(plugin|pjrt)$")
ROCM_LIBRARY = re.compile(r"lib(amd|hip|hsa|roc|rccl|MIOpen)")  # librocm_sysdeps_* among them
PT_LOAD, PT_DYNAMIC = 1, 2
DT_NEEDED, DT_STRTAB, DT_RPATH, DT_RUNPATH = 1, 5, 15, 29
KERNEL = """
import json, jax, jax.numpy as jnp
total = float((jnp.arange(8.0) * 2).sum())
print(json.dumps([jax.default_backend(), [d.device_kind for d in jax.devices()], total]))
"""
EXPECTED = 56.0
FREE_SINCE = (0, 9, 1)  # the jaxlib from which on plugins of ROCm are not compared by version
WSL = "dev/dxg"  # the GPU of Windows below WSL 2
NODES = "sys/class/kfd/kfd/topology/nodes"  # where plugins count GPUs
INSTALL = "install the whole set with the index's lines"


class Line(NamedTuple):
    """One thing that was looked at: its state, what was found, and what to do about it."""

    state: str  # ok, bad, not looked at
    what: str
    found: str
    todo: str = ""


def look(root: Path, *, run: bool) -> Iterator[Line]:
    """Look at everything; `root` is the file system, "/" but in tests."""
    is_passed_through = any((root / NODES).glob("*/properties"))  # a GPU that WSL hands on
    nodes = list(wsl(root) if (root / WSL).exists() and not is_passed_through else devices(root))
    yield from nodes
    versions = _versions()
    yield from _packages(versions)
    yield from _rocm(root)
    if not run:
        yield Line("not looked at", "backend", "--no-run was given", "drop it to start JAX")
        return
    yield from _backend(has_gpu=all(line.state == "ok" for line in nodes))


def wsl(root: Path) -> Iterator[Line]:
    """Look at what WSL has in place of a driver: its device, and no topology of kfd."""
    yield _node(root / WSL, f"/{WSL}", "WSL: open to this user", "its group")
    todo = (
        "take a plugin that finds GPUs by HIP; with ROCm before 7.13 also set "
        "HSA_ENABLE_DXG_DETECTION=1; else run Linux itself"
    )
    yield Line("bad", "kfd topology", "WSL has none: plugins that count GPUs there see none", todo)


def devices(root: Path) -> Iterator[Line]:
    """Look at the driver and the files by which a user reaches GPUs."""
    driver = root / "sys/module/amdgpu"
    if driver.is_dir():
        version = driver / "version"
        text = version.read_text().strip() if version.is_file() else "of the kernel"
        yield Line("ok", "amdgpu driver", text)
    else:
        yield Line("bad", "amdgpu driver", "not loaded", "modprobe amdgpu, or install the driver")
    nodes = [root / "dev/kfd", *sorted((root / "dev/dri").glob("renderD*"))]
    for node in nodes:
        name = f"/{node.relative_to(root)}"
        if not node.exists():
            todo = "load the driver; give a container --device=/dev/kfd --device=/dev/dri"
            if driver.is_dir():  # which /sys shows in a container, too
                todo = "the host has a GPU: give this container --device=/dev/kfd --device=/dev/dri"
            yield Line("bad", name, "not there", todo)
        else:
            yield _node(node, name, "open to this user", "the groups render and video")
    if len(nodes) == 1:
        told = "no render node"
        if any((root / "sys/class/drm").glob("renderD*")):
            told = "the host has render nodes that were not shared with this container"
        yield Line("bad", "/dev/dri", told, "give the container --device=/dev/dri")


def _node(node: Path, name: str, good: str, groups: str) -> Line:
    if os.access(node, os.R_OK | os.W_OK):
        return Line("ok", name, good)
    return Line("bad", name, "not open to this user", f"add the user to {groups}, and log in again")


def _versions() -> dict[str, str]:
    """Return the versions of JAX's packages in this environment, by normalised name."""
    versions: dict[str, str] = {}
    for item in metadata.distributions():
        name = re.sub(r"[-_.]+", "-", (item.metadata.get_all("Name") or [""])[0]).lower()
        if name in ("jax", "jaxlib") or PLUGIN.match(name):
            versions.setdefault(name, item.version)
    return versions


def _packages(versions: dict[str, str]) -> Iterator[Line]:
    numbers = sorted({match[1] for match in map(PLUGIN.match, versions) if match})
    kinds = [f"jax-rocm{number}-{kind}" for number in numbers for kind in ("plugin", "pjrt")]
    wanted = ["jax", "jaxlib", *(kinds or ["jax-rocm<major>-plugin", "jax-rocm<major>-pjrt"])]
    base = _release(versions.get("jaxlib", ""))
    for name in wanted:
        version = versions.get(name)
        if version is None:
            major = "; <major> is your ROCm's, see `rocwheel compat`" if "<" in name else ""
            yield Line("bad", name, "not installed", INSTALL + major)
        elif name != "jax" and base and not _goes_with(_release(version), base):
            text = f"{version}, and jaxlib is {versions['jaxlib']}"
            yield Line("bad", name, text, "install the versions of one set together")
        else:
            yield Line("ok", name, version)
    for number in numbers:
        pair = [versions.get(f"jax-rocm{number}-{kind}") for kind in ("plugin", "pjrt")]
        if None not in pair and pair[0] != pair[1]:
            text = f"plugin {pair[0]}, pjrt {pair[1]}"
            yield Line("bad", f"rocm{number}", text, "install the two of one set")
    if len(numbers) > 1:
        text = f"plugins for {', '.join(f'rocm{number}' for number in numbers)}"
        yield Line("bad", "plugins", text, "uninstall all but those of your ROCm")
    if "jax" in versions and base and _release(versions["jax"]) < base:
        text = f"jax {versions['jax']} is older than jaxlib {versions['jaxlib']}"
        yield Line("bad", "jax", text, f"pip install jax=={versions['jaxlib'].partition('+')[0]}")


def _goes_with(plugin: tuple[int, ...], jaxlib: tuple[int, ...]) -> bool:
    """Return whether a jaxlib takes a plugin of ROCm, by version.

    JAX compares none of ROCm's since 0.9.1 (jaxlib/plugin_support.py): a jaxlib that was only
    repaired, 0.12.0.1, goes with a plugin of the release, and its post-releases.
    """
    return plugin == jaxlib or (jaxlib >= FREE_SINCE and plugin[:3] == jaxlib[:3])


def _release(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()


def _rocm(root: Path) -> Iterator[Line]:
    """Find the HIP runtime as the loader will: LD_LIBRARY_PATH, RUNPATH, then its cache."""
    roots = [Path(path) for path in sys.path if path]
    plugins = [
        item for folder in roots for item in sorted(folder.glob("jax_plugins/xla_rocm*/*.so"))
    ]
    if not plugins and any(name.endswith("-pjrt") for name in _versions()):
        yield Line("bad", "ROCm", "pjrt's files are gone", "install the pjrt wheel again")
    elif not plugins:
        yield Line("not looked at", "ROCm", "no pjrt plugin is installed to say where it looks")
    for plugin in plugins:
        try:
            needed, runpath = dynamic(plugin.read_bytes())
        except (OSError, ValueError, StopIteration, RuntimeError, struct.error):
            yield Line("bad", "ROCm", f"{plugin}: no ELF library", "install the pjrt wheel again")
            continue
        folder = str(plugin.parent)
        places = os.environ.get("LD_LIBRARY_PATH", "").split(":") + runpath
        places = [p.replace("$ORIGIN", folder).replace("${ORIGIN}", folder) for p in places if p]
        places = [p if p.startswith(folder) else str(root / p.lstrip("/")) for p in places]
        lines = [_library(name, places, root) for name in needed if ROCM_LIBRARY.match(name)]
        if len(lines) > 1 and all(line.state == "bad" for line in lines):  # there is no ROCm at all
            text = f"none of {len(lines)} libraries, such as {lines[-1].what}: {lines[-1].found}"
            lines = [lines[-1]._replace(what="ROCm", found=text)]
        yield from (x for x in lines if x.state == "bad" or x.what.startswith("libamdhip64"))


def _library(name: str, places: list[str], root: Path) -> Line:
    where = next((place for place in places if Path(place, name).is_file()), "")
    if where:
        base = Path(where).resolve().parent
        version = base / ".info/version"
        text = version.read_text().strip() if version.is_file() else "of unknown version"
        return Line("ok", name, f"ROCm {text}, {base}")
    if root == Path("/"):
        try:
            listing = ["/sbin/ldconfig", "-p"]
            cache = subprocess.run(listing, capture_output=True, text=True, check=False).stdout
        except OSError:  # a system without it
            cache = ""
        line = next((line for line in cache.splitlines() if line.split()[:1] == [name]), "")
        if line:
            return Line("ok", name, f"{line.rpartition('=> ')[2]}, by the loader's cache")
    todo = "install the ROCm that the wheels are for in /opt/rocm, or by pip"
    if name.startswith("librocm_sysdeps"):
        todo += "; where that lacks it, a set built for another ROCm: 7.13.0 goes with JAX 0.11.1"
    shown = f"in none of {len(places)} places, the last is {places[-1]}" if places else "nowhere"
    return Line("bad", name, shown, todo)


def dynamic(data: bytes) -> tuple[list[str], list[str]]:
    """Return DT_NEEDED and the places of RUNPATH (or RPATH) of an ELF file of 64 bits.

    Raises ValueError, struct.error.
    """
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not ELF of 64 bits, little endian")
    start, size, count = struct.unpack_from("<Q14xHH", data, 32)
    headers = [struct.unpack_from("<IIQQQQ", data, start + i * size) for i in range(count)]
    table = next((header for header in headers if header[0] == PT_DYNAMIC), None)
    if table is None:
        raise ValueError("no dynamic section")
    entries = [struct.unpack_from("<qQ", data, table[2] + i) for i in range(0, table[5], 16)]
    strings = next(value for tag, value in entries if tag == DT_STRTAB)
    load = next(h for h in headers if h[0] == PT_LOAD and h[3] <= strings < h[3] + h[5])
    offset = strings - load[3] + load[2]

    def text(value: int) -> str:
        return data[offset + value : data.index(b"\0", offset + value)].decode()

    paths = {tag: text(value).split(":") for tag, value in entries if tag in (DT_RPATH, DT_RUNPATH)}
    needed = [text(value) for tag, value in entries if tag == DT_NEEDED]
    return needed, paths.get(DT_RUNPATH, paths.get(DT_RPATH, []))


def _backend(*, has_gpu: bool) -> Iterator[Line]:
    """Start JAX in a process of its own, as a program without settings would, with one kernel."""
    argv = [sys.executable, "-c", KERNEL]
    env = {name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS"}
    try:
        done = subprocess.run(
            argv, env=env, capture_output=True, text=True, check=False, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        yield Line("bad", "backend", f"no answer in {SECONDS} s", "look into dmesg for amdgpu")
        return
    said = done.stderr.strip().splitlines()
    if done.returncode:
        reason = said[-1] if said else f"JAX ended with {done.returncode}"
        yield Line("bad", "backend", reason, "mend the lines above first")
        return
    backend, kinds, total = json.loads(done.stdout.splitlines()[-1])
    if backend not in ("rocm", "gpu"):
        why = "start JAX with JAX_PLATFORMS=rocm to see its error"
        why = why if has_gpu else "mend the lines above"
        yield Line("bad", "backend", f"JAX fell back to {backend} without an error", why)
        yield Line("not looked at", "kernel", f"it would run on {backend}")
        return
    yield Line("ok", "backend", f"{backend}: {', '.join(kinds)}")
    todo = "" if total == EXPECTED else "look into dmesg; try another GPU"
    yield Line("ok" if total == EXPECTED else "bad", "kernel", f"{total:g}", todo)


def main(argv: list[str] | None = None) -> int:
    """Print the lines; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="one JSON document")
    parser.add_argument("--no-run", action="store_true", help="do not start JAX")
    parser.add_argument("--root", type=Path, default=Path("/"), help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    lines = list(look(options.root, run=not options.no_run))
    bad = any(line.state == "bad" for line in lines)
    if options.json:
        document: dict[str, Any] = {"checks": [line._asdict() for line in lines], "ok": not bad}
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    else:
        width = max(len(line.what) for line in lines) + 2
        for line in lines:
            sys.stdout.write(f"{line.state:14}{line.what:{width}}{line.found}\n")
            if line.todo:
                sys.stdout.write(f"{'':14}to do: {line.todo}\n")
    return BAD_STATUS if bad else 0


if __name__ == "__main__":
    sys.exit(main())
