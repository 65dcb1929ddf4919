"""A script that runs in the tested environment and writes down what it really has.

It reports facts and judges nothing. Standard library and JAX only.

    preflight.py SETTINGS OUTPUT     (SETTINGS: JSON with `projects` and `jax`)
"""

import ctypes
import faulthandler
import importlib.metadata
import json
import platform
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

# A module beside this file must never answer an import.
if sys.path and Path(sys.path[0]).resolve() == Path(__file__).resolve().parent:
    del sys.path[0]


def installed(project: str) -> dict[str, Any]:
    """Return the version and, where pip was given a URL, the SHA-256 of what was installed."""
    distribution = importlib.metadata.distribution(project)
    direct = json.loads(distribution.read_text("direct_url.json") or "{}")
    archive = direct.get("archive_info", {})
    sha256 = archive.get("hashes", {}).get("sha256")
    sha256 = sha256 or archive.get("hash", "").removeprefix("sha256=")
    return {"version": distribution.version, "sha256": sha256}


def loaded(project: str) -> list[str]:
    """Return the modules of a project that this process has imported from its installed files."""
    files = importlib.metadata.distribution(project).files or ()
    paths = {str(Path(str(file.locate())).resolve()) for file in files}
    return sorted(
        name
        for name, module in list(sys.modules.items())
        if (path := getattr(module, "__file__", None)) and str(Path(path).resolve()) in paths
    )


def load_libraries(project: str) -> None:
    """Load a project's shared objects, as JAX would. Raises OSError where they need one more."""
    for file in importlib.metadata.distribution(project).files or ():
        if file.suffix == ".so":
            try:
                ctypes.CDLL(str(file.locate()))
            except OSError as exc:
                if re.match(r"[^/]+: cannot open shared object file", str(exc)):
                    raise


def ask_jax(facts: dict[str, Any]) -> None:
    """Start JAX's default backend, compute on it, and say what it is."""
    import jax
    import jax.numpy as jnp

    facts["jax"] = jax.__version__
    facts["jax_file"] = jax.__file__
    devices = jax.devices()
    facts["backend"] = jax.default_backend()
    for name in ("rocm", "cuda"):  # both call themselves "gpu"
        try:
            jax.devices(name)
        except RuntimeError:
            continue
        facts["backend"] = name
    facts["devices"] = [
        {"kind": device.device_kind, "target": str(getattr(device, "compute_capability", ""))}
        for device in devices
    ]
    facts["answer"] = float(jax.jit(lambda x: (2 * x).sum())(jnp.ones(1024)))


def main(settings: dict[str, Any], output: Path) -> int:
    """Write the facts; 3 when something raised, which the facts then name."""
    faulthandler.enable()
    facts: dict[str, Any] = {"python": platform.python_version(), "error": ""}
    try:
        facts["installed"] = {name: installed(name) for name in settings["projects"]}
        if settings["jax"]:
            ask_jax(facts)
        elif not find_spec("_rocm_sdk_core"):  # ROCm by pip, which is not where loaders look
            for name in settings["projects"]:
                load_libraries(name)
        facts["loaded"] = {name: loaded(name) for name in settings["projects"]}
    except Exception as exc:  # noqa: BLE001 - any exception here is a fact
        facts["error"] = f"{type(exc).__name__}: {exc}"
    output.write_text(json.dumps(facts), encoding="utf-8")
    return 3 if facts["error"] else 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1]), Path(sys.argv[2])))
