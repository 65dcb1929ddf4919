"""Checks before the first test that environment, backend and device are the intended ones.

The facts come from a separate process (`facts.py`), one per lane. A lane that cannot show its
backend, its number of devices and their gfx target is `infra`. Naming the platform switches off
JAX's own fallback to the CPU.
"""

import json
import re
from collections.abc import Iterator, Mapping
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from rocwheel.base.process import Command, Runner
from rocwheel.base.values import Plain
from rocwheel.gate import CrashingWheelsError, InfraError, SetupError, WrongWheelsError
from rocwheel.gate.engine.child import describe
from rocwheel.gate.engine.plan import Lane
from rocwheel.gate.machine.accelerators import Maker
from rocwheel.gate.subject import WheelsUnderTest

SCRIPT: Final = "gate/machine/facts.py"
DEADLINE: Final = 300.0  # a first start of a GPU backend may compile kernels
LOOK: Final = "look at the preflight's log, and at the machine: rocminfo, nvidia-smi, dmesg"
NO_ROCM: Final = "put ROCm where the wheels look for it, an image in /opt/rocm, or name one: --rocm"
REINSTALL: Final = "compare the staged set with its manifest: `wheel verify`"
_wrong = partial(WrongWheelsError, hint=REINSTALL)
_ill = partial(InfraError, hint=LOOK)


class EnvironmentFacts(Plain, frozen=True, kw_only=True):
    python: str
    backend: str  # rocm, cuda, cpu; "" without JAX on a GPU
    modules: tuple[str, ...]  # of the set, that JAX imported
    uncompared: tuple[str, ...] = ()  # wheels whose installer left no digest


def platforms(maker: Maker) -> str:
    """Return the value of JAX_PLATFORMS: the device's backend, and the CPU only beside it.

    JAX raises for a named platform that does not start, instead of falling back.
    """
    return "cpu" if maker is Maker.CPU else f"{maker.value},cpu"


def command(
    python: Path, wheels: WheelsUnderTest, output: Path, *, with_jax: bool, env: Mapping[str, str]
) -> Command:
    """Return the command that asks; it also serves as the engine's probe after a crash."""
    settings = {"projects": [wheel.project for wheel in wheels.wheels], "jax": with_jax}
    script = Path(str(files("rocwheel").joinpath(SCRIPT)))
    return Command(
        argv=(str(python), str(script), json.dumps(settings), str(output)),
        cwd=output.parent,
        env=env,
        timeout=DEADLINE,
    )


def ask(
    asked: Command,
    lane: Lane,
    wheels: WheelsUnderTest,
    *,
    runner: Runner,
    log: Path,
    with_jax: bool,
) -> EnvironmentFacts:
    """Ask one lane what it has. Raises SetupError."""
    output = Path(asked.argv[-1])
    output.unlink(missing_ok=True)
    done = runner.run(asked, log=log, check=False)
    try:
        facts = json.loads(output.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        kind = CrashingWheelsError if done.returncode < 0 else InfraError
        raise kind(
            f"{lane.name}: the preflight ended with {describe(done.returncode)}",
            hint=LOOK,
            detail=done.output,
        ) from None
    if facts["error"]:
        message, hint = f"{lane.name}: {facts['error'].partition(chr(10))[0]}", LOOK
        text = f"{facts['error']}\n{done.output}"  # where JAX logs why it did without a plugin
        if lacks := re.search(r"(?:^|\s)([\w.+-]+): cannot open shared object", text):
            message += f" ({lacks[1]}, which the wheels need, is not on this machine)"
            hint = NO_ROCM
        raise InfraError(message, hint=hint, detail=done.output)
    for wheel in wheels.wheels:
        said = facts["installed"][wheel.project]
        if said["version"] != wheel.version:
            raise _wrong(f"{wheel.project} {said['version']} is installed, not {wheel.version}")
        if said["sha256"] and said["sha256"] != wheel.sha256:
            raise _wrong(f"{wheel.project} was installed from other bytes: {said['sha256']}")
    for error in _wrong_device(facts, lane, wheels) if with_jax else ():
        raise error
    maker = lane.devices[0].maker
    return EnvironmentFacts(
        python=facts["python"],
        # without JAX only the CPU needs no proof
        backend=facts.get("backend", "") or (maker.value if maker is Maker.CPU else ""),
        modules=tuple(names[0] for names in facts["loaded"].values() if names),
        uncompared=tuple(name for name, said in facts["installed"].items() if not said["sha256"]),
    )


def _wrong_device(
    facts: Mapping[str, Any], lane: Lane, wheels: WheelsUnderTest
) -> Iterator[SetupError]:
    maker = lane.devices[0].maker
    if facts["jax"] != wheels.jax_version:
        yield _wrong(f"JAX {facts['jax']} is installed, not {wheels.jax_version}")
    if facts["backend"] != maker.value:
        yield _ill(f"{lane.name}: JAX runs on {facts['backend']}, not on {maker.value}")
    if maker is Maker.CPU:
        return
    targets = (device["target"] for device in facts["devices"])
    if maker is Maker.NVIDIA:  # its compute capability `9.0` is sm_90
        seen = sorted(f"sm_{target.replace('.', '')}" for target in targets)
    else:  # `gfx942:sramecc+:xnack-` is gfx942
        seen = sorted(target.partition(":")[0] for target in targets)
    wanted = sorted(device.target for device in lane.devices)
    if seen != wanted:
        there, allotted = ", ".join(seen), ", ".join(wanted)
        yield _ill(f"{lane.name}: JAX sees {there}; allotted was {allotted}")
    if facts["answer"] != 2048:  # noqa: PLR2004 - twice 1024 ones
        yield _ill(f"{lane.name}: twice 1024 ones make {facts['answer']}")
    for project, names in facts["loaded"].items():
        if not names:
            yield _wrong(f"JAX imported nothing of {project}: the wheel is not used")
