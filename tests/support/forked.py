"""Commands in forks of the tests' process: all is imported there, half a second less of each.

For tests of what a command does; what ends processes or looks at them starts the real one.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import NoReturn


@dataclass
class Done:
    """How a command ended, and what it wrote."""

    code: int
    out: str
    err: str


def run(
    main: Callable[[list[str]], int],
    words: list[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    timeout: float = 900,
    program: str = sys.argv[0],
) -> Done:
    """Run `main` with these words as a process of its own would, which `program` started."""
    with TemporaryFile("w+") as out, TemporaryFile("w+") as err:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which do not go along
            pid = os.fork()
        if not pid:
            _become(main, [program, *words], cwd, env, (out.fileno(), err.fileno()))
        watch = os.pidfd_open(pid)
        try:
            if not select.select([watch], [], [], timeout)[0]:
                os.killpg(pid, signal.SIGKILL)
        finally:
            os.close(watch)
            _, status = os.waitpid(pid, 0)
        out.seek(0)
        err.seek(0)
        return Done(os.waitstatus_to_exitcode(status), out.read(), err.read())


def _become(
    main: Callable[[list[str]], int],
    argv: list[str],
    cwd: Path,
    env: Mapping[str, str],
    outputs: tuple[int, int],
) -> NoReturn:
    status: object = 1
    try:
        gc.freeze()  # or a collection copies all that the tests have in memory
        os.setsid()
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        warnings.resetwarnings()
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(env)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, output in enumerate(outputs, 1):
            os.dup2(output, number)
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")  # noqa: SIM115
        sys.argv = argv
        try:
            status = main(argv[1:])
        except SystemExit as exc:
            status = exc.code
        except BaseException:  # noqa: BLE001  # a traceback on stderr, as of a process
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status if isinstance(status, int) else 1)
