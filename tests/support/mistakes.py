"""Mistakes of people, run by the real command line: what stands where they are made, and a runner.

As a program (`python -m support.mistakes FOLDER`) it reads command lines as JSON from stdin, runs
each in a process of its own, and writes how it ended.
"""

from __future__ import annotations

import gc
import importlib
import io
import json
import os
import re
import shlex
import signal
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from itertools import takewhile
from pathlib import Path

from support import wheels, wheelset

TARBALL = "therock-dist-linux-gfx94X-dcgpu-7.10.0.tar.gz"
URL = f"https://example.com/{TARBALL}"
SECONDS = 20  # that an answer to a mistake may take; a hang takes for ever


def rows() -> Iterator[tuple[str, int, str]]:
    """Yield each line of `data/mistakes.txt` with its exit status and what the answer says."""
    lines = (Path(__file__).parents[1] / "data" / "mistakes.txt").read_text().splitlines()
    known = [line for line in lines if line and not line.startswith("#")]
    for line, answer in zip(known[::2], known[1::2], strict=True):
        status, said = answer.split(maxsplit=1)
        yield line, int(status), said


def request(line: str, names: Mapping[str, str]) -> str:
    """Return what the runner reads of a line: its words and its environment, as JSON."""
    words = [re.sub(r"@([A-Z_]+)", lambda m: names[m[1]], w) for w in shlex.split(line)]
    env = dict(takewhile(lambda pair: pair[0].isupper(), (w.split("=", 1) for w in words)))
    return json.dumps([words[len(env) :], env])


def world(folder: Path) -> dict[str, str]:
    """Make what command lines refer to; return the words that stand for it."""
    for name in ("empty", "store", "unlisted", "wheelhouse"):
        (folder / name).mkdir()
    (folder / "store" / "v2" / "_rocwheel" / "log").mkdir(parents=True)  # as each index has
    (folder / "file").write_text("text\n")
    (folder / "garbage.whl").write_text("no zip\n")
    (folder / TARBALL).write_text("<html>not found</html>")
    (folder / "bad.json").write_text("{")
    (folder / "loop").symlink_to("loop")
    (folder / "empty.yaml").touch()
    (folder / "nul.yaml").write_bytes(b"\0")
    (folder / "latin.yaml").write_bytes("dev: Köln\n".encode("latin-1"))
    (folder / "octal.yaml").write_text("channels: {dev: {store: 017}}\n")
    (folder / "bad.toml").write_text("[dist_wheels\n")
    (folder / "latin.toml").write_bytes("[dist_wheels]\nby = 'Köln'\n".encode("latin-1"))
    (folder / "typo.toml").write_text('[dist_wheels]\ncompilr = "hermetic"\n')
    (folder / "top.toml").write_text('compiler = "hermetic"\n')
    flags = "[stage]\nallow-dirty = 'x'\n[dist_wheels]\nallow-dirty = 'yes'\n"
    (folder / "flag.toml").write_text(flags)
    (folder / "unknown.toml").write_text("[dist_weels]\n")
    (folder / "value.toml").write_text('[dist_wheels]\ncompiler = "icc"\n')
    (folder / "own-folder.toml").write_text("cache-dir = 7\n")
    (folder / "deep.yaml").write_text("[" * 5000)
    (folder / "deep.toml").write_text("a = " + "[" * 20_000)
    os.mkfifo(folder / "fifo")
    good = wheels.plugin().write(folder)
    (folder / "good.whl").symlink_to(good.name)
    manifest = wheelset.make_set(folder / "set")
    for name in ("damaged", "missing", "folder-manifest", "fifo-manifest", "fifo-wheel"):
        copy = folder / name
        copy.mkdir()
        for path in (folder / "set").iterdir():
            if path.is_file():
                (copy / path.name).write_bytes(path.read_bytes())
    own = next((folder / "damaged").glob("*plugin*.whl"))
    own.write_bytes(own.read_bytes()[:-1] + b"x")
    next((folder / "missing").glob("*plugin*.whl")).unlink()
    for name, make in (("folder-manifest", Path.mkdir), ("fifo-manifest", os.mkfifo)):
        (folder / name / "manifest.json").unlink()
        make(folder / name / "manifest.json")
    own = next((folder / "fifo-wheel").glob("*plugin*.whl"))
    own.unlink()
    os.mkfifo(own)
    return {
        "STORE": (folder / "store").as_uri(),
        "SET": str(folder / "set"),
        "SHA": manifest.sha256,
        "TARBALL": TARBALL,
        "FIFO_WHEEL": str(own),
        "WHEEL": good.name,
        "URL": URL,
    }


def _answer(words: list[str], env: dict[str, str]) -> dict[str, object]:
    """Run one command line in this process, which ends afterwards."""
    from rocwheel import cli

    os.environ |= env
    signal.alarm(SECONDS)
    stdout, stderr = io.StringIO(), io.StringIO()
    sys.argv = ["rocwheel", *words]
    with redirect_stdout(stdout), redirect_stderr(stderr):
        try:
            code = cli.main(words)
        except BaseException:  # noqa: BLE001 - is a bug whatever it is
            code = 1
            traceback.print_exc(file=stderr)
    return {"code": code, "stdout": stdout.getvalue(), "stderr": stderr.getvalue()}


def main(folder: str) -> None:
    """Answer each line of stdin; a command line that hangs has no code."""
    from rocwheel import cli

    for where, _ in cli.COMMANDS.values():  # once for all that are forked
        importlib.import_module(where.partition(":")[0])
    gc.freeze()  # or each child copies what it only counts
    gc.disable()
    os.chdir(folder)
    for line in sys.stdin:
        words, env = json.loads(line)
        read, write = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(read)
            with os.fdopen(write, "w") as pipe:
                json.dump(_answer(words, env), pipe)
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as pipe:
            text = pipe.read()
        os.waitpid(pid, 0)
        print(text or json.dumps({"code": None, "stdout": "", "stderr": "hangs"}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
