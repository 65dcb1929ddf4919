"""`verify --runs`: what real CPythons make of wheels, in a sandbox."""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar

import pytest
from support import runnable
from support.mutants import BROKEN, SOUND, mutants
from support.wheels import POLICY, File, Wheel, make_bundle, make_code

from rocwheel.base.console import Progress
from rocwheel.base.errors import HostError
from rocwheel.base.process import HostRunner, base_env
from rocwheel.base.values import replace
from rocwheel.cli import main
from rocwheel.wheel.verify import verify
from rocwheel.wheel.verify.rules import Severity
from rocwheel.wheel.verify.runs import Running, runs

pytestmark = [
    pytest.mark.integration,
    pytest.mark.needs("cc", "python3.12", "unshare"),
    pytest.mark.slow,
    pytest.mark.xdist_group("runs"),
]

INIT = "jax_plugins/xla_rocm7/__init__.py"
VERSION = "jax_rocm7_plugin/version.py"
MADE = {"pjrt": runnable.pjrt, "plugin": runnable.plugin, "jaxlib": runnable.jaxlib}


def by(**changes) -> Running:
    runner = HostRunner(base_env(os.environ))
    policy = replace(POLICY, runs=replace(POLICY.runs, step=2, memory=512 << 20))
    return Running(runner, policy, online=False)._replace(**changes)


def ran(folder: Path, *made: Wheel, **changes) -> list[tuple[str, str]]:
    found = runs([each.write(folder) for each in made], by(**changes))
    return [(item.rule, item.message) for each in found.values() for item in each]


def with_file(made: Wheel, name: str, content: bytes) -> Wheel:
    return made.but(files={**made.files, name: File(content)})


def module(content: str) -> Wheel:
    made = runnable.plugin()
    return with_file(made, VERSION, made.files[VERSION].content + content.encode())


def test_a_set_that_runs_breaks_no_rule(tmp_path: Path) -> None:
    assert ran(tmp_path, runnable.plugin(), runnable.pjrt()) == []
    assert ran(tmp_path, runnable.pjrt()) == []  # a recorder stands for the plugin


def test_jaxlib_is_imported_and_without_jax_nothing_is_computed(tmp_path: Path) -> None:
    (item,) = ran(tmp_path, runnable.jaxlib())
    assert item == ("runs.unseen", "the package index was not asked for JAX")


@pytest.mark.parametrize(
    ("total", "found"),
    [(56, []), (55, [("runs.jax", "jaxlib: JAX computes 55.0 in place of 56 (CPython 3.12)")])],
)
def test_jax_computes_with_the_jaxlib_of_the_set(total: int, found: list, tmp_path: Path) -> None:
    """A stand-in for JAX, from a folder in the package index's place."""
    text = f"""
import jaxlib.xla_client
class numpy:
    arange = float
def jit(function):
    return lambda x: {total}
"""
    jax = Wheel(project="jax", version="0.9.1", tag="py3-none-any").but(
        files={"jax/__init__.py": File(text.encode())}
    )
    (tmp_path / "index").mkdir()
    jax.write(tmp_path / "index")
    env = {"UV_FIND_LINKS": str(tmp_path / "index"), "UV_NO_INDEX": "1"}
    env |= {"UV_CACHE_DIR": str(tmp_path / "cache")}  # both cases may get one path
    runner = HostRunner(base_env({**os.environ, **env}))
    assert ran(tmp_path, runnable.jaxlib(), online=True, runner=runner) == found


# Ways in which a module of a wheel does not import: source -> part of the message.
FORMS = {
    "import nowhere": "No module named 'nowhere'",
    "1 / 0": "ZeroDivisionError",
    "import imp": "No module named 'imp'",  # removed in CPython 3.12
    "import time\ntime.sleep(10**6)": "takes more than 4 s",
    "import ctypes, threading as t\ntake = t.Lock()\ntake.acquire()\ntake.acquire()": "takes more than 4 s",
    "import os\nwhile True:\n    os.fork()": "more than",  # processes; time where the machine is busy
    "x = b'1' * (1 << 30)": "more than 512 MiB of memory",
    "import threading\nthreading.Thread(target=threading.Event().wait).start()": "a thread that has no end",
    "import atexit, threading\natexit.register(threading.Event().wait)": "takes more than 4 s",
    "__version__ = '0.9.1\\u200b'": "the wheel is of 0.9.1",
    "while True: pass": "takes more than",
    "def f(:": "SyntaxError",
    "from sys import exit as leave\nleave(0)": "SystemExit",
    "import os\nos._exit(0)": "ends the process (status 0)",
    "import os\nos.kill(os.getpid(), 11)": "ends the process (status 245)",
    "class X(print): pass": "TypeError",
    "from . import rocm_plugin_extension as it\nassert it.memory == 0": "AssertionError",
    "if True:\n    raise ImportError('moved')": "ImportError: moved",
    "__version__ = None": "says __version__ None, the wheel is of 0.9.1",
    "__version__ = '0.9.1.post2'": "says __version__ '0.9.1.post2' and _release_version '0.9.1'",
}


RENAMED = make_bundle(  # for one of two GPUs
    ("gfx942", "gfx1100"),
    code=lambda target: (
        make_code(target)
        if target == "gfx942"
        else make_code(
            target,
            kernel="sub",
            descriptor="sub.kd",
            kernels=[{".name": "sub", ".symbol": "sub.kd"}],
        )
    ),
)


def test_a_compiled_module_without_a_name_that_jax_takes_is_found(tmp_path: Path) -> None:
    made = runnable.plugin()
    name = "jax_rocm7_plugin/_rnn.so"
    content = made.files[name].content.replace(b"registrations\0", b"registration_\0")
    (item,) = ran(tmp_path, with_file(made, name, content))
    assert item == (
        "runs.names", f"{name}: has no registrations, which JAX takes (CPython 3.12)"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"give": "if (hipMalloc(0, 0) < 0) __hipRegisterFatBinary(&wrapper);"}, "gives HIP 0 of 1 bundle when"),
        ({"code": "code + 64"}, "gives HIP something else than a bundle of its own"),
        ({"give": runnable.GIVE.replace('"add", -1', '"sub", -1')}, "registers kernel sub, which code"),
        ({"bundle": RENAMED}, "never registers kernel sub, which code"),
    ],
)  # fmt: skip
def test_what_hip_is_given_is_held_against_what_the_module_has(
    change: dict, message: str, tmp_path: Path
) -> None:
    content = runnable.compiled("_linalg", gpu=True, **change)
    name = "jax_rocm7_plugin/_linalg.so"
    ((rule, text),) = ran(tmp_path, with_file(runnable.plugin(), name, content))
    assert rule == "gfx.code"
    assert text.startswith(f"{name}: {message}")


def test_it_says_what_is_being_run_and_stops_where_its_time_is_used(tmp_path: Path) -> None:
    class Shown(Progress):
        texts: ClassVar[list[str]] = []

        def update(self, done: int, *, total: int | None = None, text: str = "") -> None:
            self.texts.append(f"{done} of {total}: {text}")

    policy = replace(POLICY, runs=replace(POLICY.runs, step=9, wall=3))
    made = module("\nimport time\ntime.sleep(99)\n")
    wrong, unseen = ran(tmp_path, made, policy=policy, progress=Shown())
    assert Shown.texts[-1].endswith(f" of 19: {VERSION}")
    assert wrong[1].startswith(f"{VERSION}: ends the process (status 1: no end after ")
    assert unseen[0] == "runs.unseen"
    assert "were not run" in unseen[1]


def test_a_module_that_jax_takes_nothing_from_is_imported_too(tmp_path: Path) -> None:
    made = with_file(runnable.plugin(), "jax_rocm7_plugin/other.py", b"import nowhere\n")
    ((rule, message),) = ran(tmp_path, made)
    assert (rule, message.partition(":")[0]) == ("runs.import", "jax_rocm7_plugin/other.py")


@pytest.mark.parametrize("source", FORMS)
def test_a_module_that_does_not_import_is_found(source: str, tmp_path: Path) -> None:
    (item,) = ran(tmp_path, module("\n" + source + "\n"))
    assert item[0] in ("runs.import", "runs.names")
    assert item[1].startswith(f"{VERSION}: ")
    assert FORMS[source] in item[1]
    assert "(CPython 3.12)" in item[1]


STARTS = {
    "does nothing": (b"\ndef initialize():\n  pass\n", "registers 0 plugins"),
    "returns first": ((b"  path =", b"  return\n  path ="), "registers 0 plugins"),
    "registers another platform": ((b"'rocm', pri", b"'cuda', pri"), "registers 'cuda', JAX needs 'rocm'"),
    "names another library": ((b"'xla_rocm_plugin.so'", b"'pjrt.so'"), "/pjrt.so', the wheel has"),
    "names no platform": ((b"'ROCM'\n", b"'GPU'\n"), "without platform_name=ROCM"),
    "registers twice": ((b"  if extension:", b"  xb.register_plugin('rocm')\n  if extension:"), "registers 2 plugins"),
    "has no priority": ((b"priority=500", b"priority=-5"), "registers priority -5, JAX 500"),
    "is for another platform": ((b"memory, platform='ROCM'", b"memory, platform='CUDA'"), "register_custom_call_target for 'CUDA', not ROCM"),
    "has no compiler of triton": ((b"    triton.register", b"    xb.forget"), "never calls register_compilation_handler"),
    "leaves out the kernels": ((b"  if extension:", b"  if not extension:"), "never calls register_custom_type_handler"),
    "raises": ((b"  path =", b"  raise ValueError('x')\n  path ="), "ValueError: x"),
    "wants an argument": ((b"def initialize()", b"def initialize(x)"), "missing a required argument"),
    "is to be awaited": (b"\nasync def initialize():\n  pass\n", "is not callable"),
}  # fmt: skip


@pytest.mark.parametrize("title", STARTS)
def test_a_plugin_that_jax_cannot_start_is_found(title: str, tmp_path: Path) -> None:
    change, message = STARTS[title]
    content = runnable.INIT
    content = content + change if isinstance(change, bytes) else content.replace(*change)
    found = ran(tmp_path, runnable.plugin(), with_file(runnable.pjrt(), INIT, content))
    assert [rule for rule, _ in found] == ["runs.plugin"]
    assert message in found[0][1]


def test_code_of_a_wheel_can_neither_write_nor_send_nor_see_the_machines_services(
    tmp_path: Path,
) -> None:
    home = Path.home()
    tries = f"""
import os, socket
def fails(action, *args):
    try:
        action(*args)
    except OSError:
        return True
    return False
assert fails(open, __file__, 'a')
assert fails(open, '/etc/rocwheel-test', 'w')
assert fails(os.listdir, '/run/docker') and os.listdir('/run') == []
assert not {{each for each in os.listdir({str(home)!r})}} & {{'.ssh', '.aws', '.config', '.netrc'}}
assert fails(socket.create_connection, ('192.0.2.1', 80), 1)
assert fails(os.chroot, '/') and fails(os.mount if hasattr(os, 'mount') else os.chroot, '/')
assert set(os.environ) <= {{'LD_LIBRARY_PATH', 'LD_BIND_NOW', 'JAX_PLATFORMS', 'PATH', 'HOME', 'LC_CTYPE'}}
assert len([each for each in os.listdir('/proc') if each.isdecimal()]) < 5
"""
    assert ran(tmp_path, module(tries)) == []


def test_without_a_sandbox_nothing_is_run(tmp_path: Path) -> None:
    made = module("\nopen('/tmp/rocwheel-was-here', 'w')\n").write(tmp_path)
    with pytest.raises(HostError, match="no sandbox") as caught:
        runs([made], by(runner=HostRunner({"PATH": str(tmp_path)})))
    assert "user namespaces" in (caught.value.hint or "")


def test_a_cpython_that_cannot_be_had_is_not_looked_at(tmp_path: Path) -> None:
    tag = "cp399-cp399-manylinux_2_27_x86_64"
    ((rule, message),) = ran(tmp_path, runnable.plugin().but(tag=tag))
    assert (rule, message.partition(":")[0]) == ("runs.unseen", "CPython 3.99 is not here")


def test_the_command_says_what_it_ran_or_did_not(tmp_path: Path, capsys) -> None:
    path = module("\nimport nowhere\n").write(tmp_path)
    assert main(["wheel", "verify", str(path)]) == 0
    assert "not looked at: whether modules import" in capsys.readouterr().err
    assert main(["wheel", "verify", "--runs", str(path)]) == 6
    assert (
        "runs.import: jax_rocm7_plugin/version.py: ModuleNotFoundError" in capsys.readouterr().out
    )


def ships(path: Path) -> bool:
    found = verify(path, policy=POLICY)
    if all(item.severity is not Severity.ERROR for item in found):
        found = runs([path], by())[path]
    return all(item.severity is not Severity.ERROR for item in found)


SLOW = {"pjrt", "jaxlib"}  # minutes each


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.soak] * (kind in SLOW)) for kind in MADE]
)
def test_what_cannot_work_may_not_ship_and_what_works_may(kind: str, tmp_path: Path) -> None:
    path = MADE[kind]().write(tmp_path)
    (tmp_path / "made").mkdir()
    assert len(BROKEN[kind]) > 20
    for edits, works in ((BROKEN[kind], False), (SOUND[kind], True)):
        made = mutants(path, tmp_path / "made", edits)
        assert [title for title, mutant in made if ships(mutant) is not works] == []
