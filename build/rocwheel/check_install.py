"""Checks whether installed ROCm JAX wheels work: `rocwheel check_install`, or this file alone.

    python check_install.py [--json] [--no-run]

Standard library only, so that users run it with the Python they installed the wheels for. Each line
is ok, bad (with what to do) or not looked at (with why); the last one says what to do first. The
exit status is 8 if one is bad.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import re
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

BAD_STATUS = 8
SECONDS = 300  # for JAX to import and to run one kernel
PLUGIN = re.compile(r"jax-rocm(\d+)-(plugin|pjrt)$")
ROCM_LIBRARY = re.compile(r"lib(amd|hip|hsa|roc|rccl|MIOpen)")  # librocm_sysdeps_* among them
GFX = re.compile(rb"hip(?:v4)?-amdgcn-amd-amdhsa-[a-z]*-(gfx[0-9a-f]+(?:-generic)?)")
PACKED = b"CCOB"  # compressed GPU code
AMD = "0x1002"  # vendor in PCI
DISPLAYS = ("0x03", "0x12")  # classes in PCI: displays, accelerators
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
ROCM = "install the ROCm that the wheels are for in /opt/rocm, or by pip"


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
    lines = [*nodes]
    versions = _versions()
    lines += _packages(versions)
    lines += _rocm()
    lines += _code(root)
    if not run:
        lines.append(Line("not looked at", "backend", "--no-run was given", "drop it to start JAX"))
    elif any(
        line.state == "bad" and line.what in ("ROCm", "jaxlib", "jax", "packages") for line in lines
    ):
        why = "JAX cannot start before the lines above are ok"
        lines.append(Line("not looked at", "backend", why))
    else:
        lines += _backend(has_gpu=all(line.state == "ok" for line in nodes))
    yield from lines
    yield _conclusion(lines)


def _conclusion(lines: list[Line]) -> Line:
    """Return the one thing to do first: causes come before their consequences."""
    wrong = [line for line in lines if line.state == "bad"]
    if not wrong:
        unseen = [line.what for line in lines if line.state != "ok"]
        if unseen:
            return Line("not looked at", "conclusion", f"nothing bad; see {', '.join(unseen)}")
        return Line("ok", "conclusion", "JAX runs on this machine's GPUs")
    first = min(wrong, key=lambda line: line.what == "backend")
    more = f"; {len(wrong) - 1} more after it" if len(wrong) > 1 else ""
    return Line("bad", "conclusion", f"{first.what}: {first.found}{more}", first.todo)


def wsl(root: Path) -> Iterator[Line]:
    """Check WSL's device, which it has in place of a driver and of kfd."""
    yield _node(root / WSL, f"/{WSL}", "WSL: open to this user", "its group")
    todo = (
        "take a plugin that finds GPUs by HIP; with ROCm before 7.13 also set "
        "HSA_ENABLE_DXG_DETECTION=1; else run Linux itself"
    )
    yield Line("bad", "kfd topology", "WSL has none: plugins that count GPUs there see none", todo)


def devices(root: Path) -> Iterator[Line]:
    """Check the driver and the device files of GPUs."""
    if _has_no_card(root):
        yield Line("bad", "AMD GPU", "no AMD card in PCI", "run on a machine that has one")
        return
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
        found = "no render node"
        if any((root / "sys/class/drm").glob("renderD*")):
            found = "the host has render nodes that were not shared with this container"
        yield Line("bad", "/dev/dri", found, "give the container --device=/dev/dri")


def _has_no_card(root: Path) -> bool:
    """Return whether PCI is visible and none of its displays or accelerators is AMD's."""
    cards = list((root / "sys/bus/pci/devices").glob("*/vendor"))
    return bool(cards) and not any(
        vendor.read_text().strip() == AMD
        and (vendor.parent / "class").read_text().startswith(DISPLAYS)
        for vendor in cards
    )


def _node(node: Path, name: str, good: str, groups: str) -> Line:
    if os.access(node, os.R_OK | os.W_OK):
        return Line("ok", name, good)
    return Line("bad", name, "not open to this user", f"add the user to {groups}, and log in again")


def _versions() -> dict[str, str]:
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
    missing = [name for name in wanted if name not in versions]
    for name in (name for name in wanted if name in versions):
        yield Line("ok", name, versions[name])
    if missing:
        major = "; <major> is your ROCm's, see `rocwheel compat`" if "<" in missing[-1] else ""
        what = missing[0] if len(missing) == 1 else "packages"
        text = "not installed" if len(missing) == 1 else f"{', '.join(missing)} not installed"
        yield Line("bad", what, text, INSTALL + major)
    base = _release(versions.get("jaxlib", ""))
    others = [
        name
        for name in wanted[2:]
        if base and name in versions and not _goes_with(_release(versions[name]), base)
    ]
    for number in numbers:
        pair = [versions.get(f"jax-rocm{number}-{kind}") for kind in ("plugin", "pjrt")]
        if None not in pair and pair[0] != pair[1] and not others:
            text = f"plugin {pair[0]}, pjrt {pair[1]}"
            yield Line("bad", f"rocm{number}", text, "install the two of one set")
    known = _known_plugins()
    for number in (one for one in numbers if known and one not in known):
        text = f"jaxlib {versions.get('jaxlib')} takes them from rocm{', rocm'.join(known)} alone"
        todo = "install wheels for one of these, or a JAX for your ROCm: `rocwheel compat`"
        yield Line("bad", f"kernels of rocm{number}", text, todo)
    if others:
        text = ", ".join(f"{name} {versions[name]}" for name in ["jaxlib", *others])
        yield Line("bad", "versions", text, "install the versions of one set together")
    if len(numbers) > 1:
        text = f"plugins for {', '.join(f'rocm{number}' for number in numbers)}"
        yield Line("bad", "plugins", text, "uninstall all but those of your ROCm")
    if "jax" in versions and base and _release(versions["jax"]) < base:
        text = f"jax {versions['jax']} is older than jaxlib {versions['jaxlib']}"
        yield Line(
            "bad",
            "jax and jaxlib",
            text,
            f"pip install jax=={versions['jaxlib'].partition('+')[0]}",
        )


def _known_plugins() -> list[str]:
    """Return the numbers of the plugins in which the installed jaxlib looks for kernels."""
    files = (Path(place) / "jaxlib/plugin_support.py" for place in sys.path if place)
    text = next((x.read_text(encoding="utf-8") for x in files if x.is_file()), "")
    return re.findall(r"[\"']jax_rocm(\d+)_plugin[\"']", text)


def _goes_with(plugin: tuple[int, ...], jaxlib: tuple[int, ...]) -> bool:
    """Return whether a jaxlib takes a plugin of ROCm, by version.

    Since 0.9.1 JAX does not compare ROCm's (jaxlib/plugin_support.py). A jaxlib that was only
    repaired, 0.12.0.1, fits a plugin of the release and of its post-releases.
    """
    return plugin == jaxlib or (jaxlib >= FREE_SINCE and plugin[:3] == jaxlib[:3])


def _release(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()


def _rocm() -> Iterator[Line]:
    """Find ROCm for each plugin as the loader does."""
    plugins = [item for item in _libraries() if item.match("jax_plugins/xla_rocm*/*.so")]
    if not plugins and any(name.endswith("-pjrt") for name in _versions()):
        yield Line("bad", "pjrt", "its files are gone", "install the pjrt wheel again")
    elif not plugins:
        yield Line("not looked at", "ROCm", "no pjrt plugin is installed to say where it looks")
    for plugin in plugins:
        argv = ["ldd", str(plugin)]
        env = {**os.environ, "LC_ALL": "C"}
        try:
            done = subprocess.run(argv, capture_output=True, text=True, check=False, env=env)
        except OSError:
            yield Line("not looked at", "ROCm", "no `ldd` here to ask the loader")
            return
        found = [line.split() for line in done.stdout.splitlines() if "=>" in line]
        if found:
            yield from _loaded(found)
        else:
            why = "".join((done.stderr or done.stdout).strip().splitlines()[-1:])
            yield Line("bad", "pjrt", f"{plugin}: {why}", "install the pjrt wheel again")


def _loaded(found: list[list[str]]) -> Iterator[Line]:
    """Judge what ldd found: `name => path (address)`, or `name => not found`."""
    lost = list(dict.fromkeys(words[0] for words in found if words[-2:] == ["not", "found"]))
    rocm = [name for name in lost if ROCM_LIBRARY.match(name)]
    runtime = [x for x in found if x[0].startswith("libamdhip64") and x[0] not in lost]
    if rocm and not runtime:
        more = f" and {len(rocm) - 1} more" if rocm[1:] else ""
        yield Line("bad", "ROCm", f"the loader does not find {rocm[0]}{more}", ROCM)
    for words in runtime[:1]:
        name, library = words[0], words[2]
        version = Path(library).resolve().parent.parent / ".info/version"
        text = version.read_text().strip() if version.is_file() else "of unknown version"
        yield Line("ok", name, f"ROCm {text}, {library}")
    for name in lost:
        todo = ROCM if name in rocm else "install the system's package that has it"
        if name.startswith("librocm_sysdeps"):
            todo += "; where that lacks it, a set built for another ROCm: "
            todo += "7.13.0 goes with JAX 0.11.1"
        if runtime or name not in rocm:
            yield Line("bad", name, "not found by the loader", todo)


def _libraries() -> list[Path]:
    places = [Path(path) for path in sys.path if path]
    patterns = ("jax_plugins/xla_rocm*/*.so", "jax_rocm*_plugin/*.so")
    return [x for place in places for pattern in patterns for x in sorted(place.glob(pattern))]


def _code(root: Path) -> Iterator[Line]:
    """Compare the GPUs of this machine with those that the wheels have code for."""
    gpus: dict[str, str] = {}
    for node in sorted((root / NODES).glob("*/properties")):
        found = re.search(r"^gfx_target_version (\d+)$", node.read_text(), re.MULTILINE)
        number = int(found[1]) if found else 0
        if number:
            name = f"gfx{number // 10000}{number // 100 % 100:x}{number % 100:x}"
            gpus.setdefault(name, node.parent.name)
    if not gpus:
        return
    for library in _libraries():
        targets = gpu_code(library)
        if targets and (
            missing := [x for x in gpus if x not in targets and not _generic(x, targets)]
        ):
            text = f"{library.name} has no code for {', '.join(missing)}, but for "
            text += ", ".join(sorted(targets)[:6]) + (" …" if targets[6:] else "")
            todo = "install a set whose family has your GPU: `rocwheel compat`"
            yield Line("bad", "GPU code", text, todo)
            return
    names = ((item.metadata.get_all("Name") or [""])[0] for item in metadata.distributions())
    installed = {re.sub(r"[-_.]+", "-", name).lower() for name in names}
    device = sorted(x for x in installed if x.startswith("rocm-sdk-device-"))
    lacking = [x for x in gpus if device and f"rocm-sdk-device-{x}" not in device]
    if lacking:
        text = f"{', '.join(device)}: none for {', '.join(lacking)}"
        todo = f"install the device package of your GPU: rocm[device-{lacking[0]}]"
        yield Line("bad", "device packages", text, todo)
        return
    yield Line("ok", "GPU code", f"for {', '.join(gpus)}")


def _generic(gpu: str, targets: list[str]) -> bool:
    """Return whether code for a whole series runs on a GPU."""
    series = {
        "gfx9-generic": "gfx90[0-9c]", "gfx9-4-generic": "gfx94.|gfx950",
        "gfx11-generic": "gfx11..", "gfx10-1-generic": "gfx101.",
        "gfx10-3-generic": "gfx103.", "gfx12-generic": "gfx120.",
    }  # fmt: skip
    return any(re.fullmatch(series.get(target, "-"), gpu) for target in targets)


def gpu_code(library: Path) -> list[str]:
    """Return the targets that a library's first bundle of GPU code names.

    [] where there is none, or where it is compressed by zstd and the system has no libzstd.
    """
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        targets = {match[1].decode() for match in GFX.finditer(data)}
        at = data.find(PACKED) if not targets else -1
        while at >= 0 and not targets:
            version, method = struct.unpack_from("<HH", data, at + 4)
            start = at + {1: 20, 2: 24, 3: 32}.get(version, 0)
            if at % 4096 == 0 and start > at and method in (0, 1):
                table = _unpacked(data[start : start + (192 << 10)], method)
                targets = {match[1].decode() for match in GFX.finditer(table)}
            at = data.find(PACKED, at + 1)
    return sorted(targets)


def _unpacked(body: bytes, method: int) -> bytes:
    """Return the first bytes of a bundle; b"" where they are damaged, or nothing here unpacks."""
    if method == 0:
        try:
            return zlib.decompressobj().decompress(body, 1 << 16)
        except zlib.error:
            return b""
    try:
        zstd = ctypes.CDLL("libzstd.so.1")
    except OSError:
        return b""
    zstd.ZSTD_createDStream.restype = ctypes.c_void_p
    out = ctypes.create_string_buffer(1 << 16)
    stream = ctypes.c_void_p(zstd.ZSTD_createDStream())
    into = (ctypes.c_size_t * 3)(ctypes.addressof(out), len(out), 0)
    source = ctypes.create_string_buffer(body, len(body))
    of = (ctypes.c_size_t * 3)(ctypes.addressof(source), len(body), 0)
    zstd.ZSTD_decompressStream(stream, into, of)
    zstd.ZSTD_freeDStream(stream)
    return out.raw[: into[2]]


def _backend(*, has_gpu: bool) -> Iterator[Line]:
    """Run one kernel of JAX in a new process, without settings."""
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
        yield Line("bad", "backend", reason, "look into the whole error: JAX_PLATFORMS=rocm")
        return
    backend, kinds, total = json.loads(done.stdout.splitlines()[-1])
    if backend not in ("rocm", "gpu"):
        why = "start JAX with JAX_PLATFORMS=rocm to see its error"
        why = why if has_gpu else "give JAX a GPU: see the lines above"
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
