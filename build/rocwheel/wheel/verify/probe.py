"""Runs in the wheel's own CPython, in a sandbox: imports its modules and starts it as JAX does.

    python -I -S probe.py PLAN STEPS

Standard library only. PLAN is JSON that `runs` writes. Each step prints that it begins, and what is
wrong, so that the caller knows which one ended the process.
"""

import atexit
import ctypes
import faulthandler
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import json
import os
import re
import signal
import sys
import threading
import types
from pathlib import Path
from typing import Any, ClassVar, TextIO

RTLD_NOW = 2
WALL = 2  # seconds that a step may take for each second of CPU time
VERSION = r"([0-9]+(?:\.[0-9]+)*)(?:(?:a|b|rc|\.post|\.dev)[0-9]+)*(?:\+[0-9A-Za-z.]+)?"


class WrongError(Exception):
    """What a step found; the message says it."""


class Recorder(types.ModuleType):
    """A module of JAX's that has every name and records calls."""

    calls: ClassVar[list[tuple[str, tuple[Any, ...], dict[str, Any]]]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Recorder(f"{self.__name__}.{name}")

    def __iter__(self) -> Any:
        return iter(())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        name = self.__name__.rpartition(".")[2]
        self.calls.append((name, args, kwargs))
        if name == "num_available_amd_gpus":
            return 1
        if name == "get_shm_size_in_mb":
            return 1 << 20
        return {} if name.startswith("generate_") else self


class OfJax(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """An import finder that makes modules of JAX's recorders, and a plugin's where there is none.

    AMD's pjrt before 0.12 registers nothing without its plugin. No jaxlib has `rocm` inside.
    """

    names = r"jax|jaxlib"

    def find_spec(self, fullname: str, *_: Any) -> Any:
        if re.fullmatch(self.names, fullname.partition(".")[0]) and fullname != "jaxlib.rocm":
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> Any:
        return Recorder(spec.name)

    def exec_module(self, module: Any) -> None:
        """Leave it empty: a recorder has every name."""


def record(plan: dict[str, Any]) -> None:
    """Let every module of JAX's be a recorder from now on."""
    OfJax.names = "jax|jaxlib" if plan["plugin"] else r"jax|jaxlib|jax_rocm[0-9]+_plugin"
    if not isinstance(sys.meta_path[0], OfJax):
        sys.meta_path.insert(0, OfJax())
        for name in [each for each in sys.modules if each.partition(".")[0] in ("jax", "jaxlib")]:
            del sys.modules[name]


def imported(plan: dict[str, Any], module: str, member: str, must: bool) -> None:  # noqa: FBT001
    """Import a module; with `must`, it has to come from the wheel's own file."""
    if module.startswith("jax_plugins."):
        record(plan)
    found = importlib.import_module(module)
    file = getattr(found, "__file__", None)
    if must and (file is None or Path(file) != Path(plan["site"], member)):
        place = os.path.relpath(file, plan["site"]) if file else "a folder"
        raise WrongError(f"{place} is imported in its place")


def named(_: dict[str, Any], module: str, names: list[str]) -> None:
    """Look up names that JAX takes from a module."""
    found = importlib.import_module(module)
    missing = [name for name in names if not hasattr(found, name)]
    if missing:
        raise WrongError(f"has no {', '.join(missing)}, which JAX takes")


def versioned(plan: dict[str, Any], module: str, release: str, needs: str) -> None:
    """Compare the versions in a module with the wheel's; it must have `needs`."""
    if module.startswith("jax_plugins."):
        record(plan)
    found = importlib.import_module(module)
    for name in ("__version__", "_release_version"):
        said = getattr(found, name, None)
        if said is None and name != needs:
            continue
        numbers = re.fullmatch(VERSION, said) if isinstance(said, str) else None
        if not numbers or numbers[1] != release:
            raise WrongError(f"says {name} {said!r}, the wheel is of {release}")
    said, own = getattr(found, "__version__", None), getattr(found, "_release_version", None)
    if None not in (said, own) and said != own:
        raise WrongError(f"says __version__ {said!r} and _release_version {own!r}")


def loaded(plan: dict[str, Any], member: str, entry: str) -> None:
    """Load a library with all its names, and call its entry function."""
    library = ctypes.CDLL(str(Path(plan["site"], member)), mode=RTLD_NOW)
    function = getattr(library, entry)
    function.restype = ctypes.c_void_p
    address = function()
    if not address or not ctypes.c_size_t.from_address(address).value:
        raise WrongError(f"{entry}() returns no table of functions")


def started(plan: dict[str, Any], module: str, member: str, wanted: dict[str, Any]) -> None:
    """Start a plugin as JAX does, with recorders for JAX's modules."""
    record(plan)
    found = importlib.import_module(module)
    initialize = found.initialize
    if not callable(initialize) or inspect.iscoroutinefunction(initialize):
        raise WrongError("initialize is not callable")
    inspect.signature(initialize).bind()
    if inspect.isgeneratorfunction(initialize):
        raise WrongError("initialize yields: calling it does nothing")
    if not wanted:
        return
    Recorder.calls.clear()
    initialize()
    compare(wanted, Path(plan["site"], member), is_whole=plan["plugin"])


def compare(wanted: dict[str, Any], library: Path, *, is_whole: bool) -> None:
    """Compare what a plugin registered with what JAX's own registers."""
    registered = [each for each in Recorder.calls if each[0] == "register_plugin"]
    if len(registered) != 1:
        raise WrongError(f"initialize() registers {len(registered)} plugins with JAX, not one")
    _, args, kwargs = registered[0]
    platform = kwargs.get("plugin_name", args[0] if args else None)
    if platform != wanted["platform"]:
        raise WrongError(f"initialize() registers {platform!r}, JAX needs {wanted['platform']!r}")
    priority = kwargs.get("priority")
    if priority != wanted["priority"]:
        raise WrongError(f"initialize() registers priority {priority}, JAX {wanted['priority']}")
    path = kwargs.get("library_path", "")
    if not isinstance(path, str) or Path(path) != library:
        what = f"initialize() registers the library {path!r}, the wheel has {library.name}"
        raise WrongError(what)
    options = kwargs.get("options")
    for name, value in wanted["options"].items():
        if not isinstance(options, dict) or options.get(name) != value:
            raise WrongError(f"initialize() registers options {options!r} without {name}={value}")
    platforms = [*wanted["options"].values()]
    for name, args, kwargs in Recorder.calls:
        where = kwargs.get("platform", args[0] if args else None)
        if name.startswith("register_c") and where not in platforms:
            raise WrongError(f"initialize() calls {name} for {where!r}, not {platforms[0]}")
    done = {name for name, _, _ in Recorder.calls}
    if is_whole and (missing := [each for each in wanted["calls"] if each not in done]):
        raise WrongError(f"initialize() never calls {', '.join(missing)}")


def computed(plan: dict[str, Any]) -> None:
    """Let JAX compute on the CPU with this jaxlib."""
    import jax  # type: ignore[import-not-found, unused-ignore]

    if not Path(importlib.import_module("jaxlib").__file__ or "").is_relative_to(plan["site"]):
        raise WrongError("JAX takes another jaxlib")
    total = float(jax.jit(lambda x: (x * 2).sum())(jax.numpy.arange(8.0)))
    if total != 56:  # noqa: PLR2004
        raise WrongError(f"JAX computes {total} in place of 56")


# Where an address lies, by dladdr(3).
PLACE: Any = type(
    "Place",
    (ctypes.Structure,),
    {"_fields_": [("file", ctypes.c_char_p), ("rest", ctypes.c_void_p * 3)]},
)


def handed(plan: dict[str, Any], stubs: list[Any]) -> list[tuple[str, str, list[str]]]:
    """Return file, front and names of kernels of each bundle that the stub of HIP was given."""
    kept = ctypes.c_uint64 * (2 + 2 * plan["calls"])
    logs = [kept.in_dll(each, "rocwheel_log") for each in stubs]
    calls = [
        each[at : at + 2]
        for each in logs
        for at in range(2, 2 + 2 * min(each[0], plan["calls"]), 2)
    ]
    memory = os.open("/proc/self/mem", os.O_RDONLY)

    def read(address: int, size: int) -> bytes:
        try:
            return os.pread(memory, size, address)
        except (OSError, OverflowError):  # an address of nothing
            return b""

    bundles: dict[int, tuple[str, str, list[str]]] = {}
    for wrapper, kernel in calls:
        place = PLACE()
        if wrapper not in bundles:
            ctypes.CDLL(None).dladdr(ctypes.c_void_p(wrapper), ctypes.byref(place))
            file = os.path.relpath(os.fsdecode(place.file or b"/"), plan["site"])
            code = int.from_bytes(read(wrapper + 8, 8), "little")
            bundles[wrapper] = (file, read(code, 32).hex(), [])
        if kernel:
            bundles[wrapper][2].append(read(kernel, 4096).partition(b"\0")[0].decode("latin-1"))
    return [*bundles.values()]


STEPS = {each.__name__: each for each in (imported, named, versioned, loaded, started, computed)}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    plan = json.loads(Path(sys.argv[1]).read_text())
    sys.path[:0] = [plan["site"], *plan["others"]]
    sys.dont_write_bytecode = True

    def out_of_time(*_: object) -> None:
        raise TimeoutError(f"takes more than {plan['seconds']} s of CPU time")

    signal.signal(signal.SIGPROF, out_of_time)
    stubs, again = [*map(ctypes.CDLL, plan["hip"])], False
    later: list[int] = []  # modules that may want another one before them
    started_by: dict[threading.Thread, int] = dict.fromkeys(threading.enumerate(), -1)
    at_exit, ends_last = atexit._ncallbacks(), -1  # noqa: SLF001  # who registered the last one
    order = json.loads(sys.argv[2])
    while order or later:
        if not order or (later and plan["steps"][order[0]][0] != "imported"):
            order, later, again = [*later, *order], [], True
        number = order.pop(0)
        step, *given = plan["steps"][number]
        answers.write(json.dumps({"step": number}) + "\n")
        answers.flush()
        signal.setitimer(signal.ITIMER_PROF, plan["seconds"])
        faulthandler.dump_traceback_later(plan["seconds"] * WALL, exit=True, file=answers)
        try:
            STEPS[step](plan, *given)
        except BaseException as exc:  # noqa: BLE001  # a module may raise anything
            kind = "" if isinstance(exc, WrongError) else f"{type(exc).__name__}: "
            document = {"step": number, "wrong": f"{kind}{exc}"[:500]}
            if isinstance(exc, ModuleNotFoundError):
                document["lacks"] = (exc.name or "").partition(".")[0]
            if isinstance(exc, ImportError) and step == "imported" and not again:
                later.append(number)
            else:
                answers.write(json.dumps(document) + "\n")
        signal.setitimer(signal.ITIMER_PROF, 0)
        for thread in threading.enumerate():
            started_by.setdefault(thread, number)
        if atexit._ncallbacks() != at_exit:  # noqa: SLF001
            at_exit, ends_last = atexit._ncallbacks(), number  # noqa: SLF001
        faulthandler.cancel_dump_traceback_later()
    end(plan, answers, started_by, ends_last, stubs)


def end(
    plan: dict[str, Any],
    answers: TextIO,
    threads: dict[threading.Thread, int],
    last: int,
    stubs: list[Any],
) -> None:
    """End as Python does: wait for threads, then do what step `last` and others registered."""
    for thread, number in threads.items():
        if thread.daemon or number < 0:
            continue
        thread.join(plan["seconds"])
        if thread.is_alive():
            what = f"starts a thread that has no end after {plan['seconds']} s: Python waits for it"
            answers.write(json.dumps({"step": number, "wrong": what}) + "\n")
    if last >= 0:
        answers.write(json.dumps({"step": last, "is_end": True}) + "\n")
        answers.flush()
        faulthandler.dump_traceback_later(plan["seconds"] * WALL, exit=True, file=answers)
        atexit._run_exitfuncs()  # noqa: SLF001
    answers.write(json.dumps({"step": -1, "bundles": handed(plan, stubs)}) + "\n")
    answers.flush()
    os._exit(0)  # not what libraries do at the end, where ROCm's are stubs


if __name__ == "__main__":
    main()
