"""A running container as a `Runner`: commands enter it by `exec`, and nothing stays behind."""

import itertools
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from rocwheel.base.container.engine import ANSWER_SECONDS, RUNC, Trouble, headline, meaning
from rocwheel.base.container.leftovers import LOCK, claimed, clear, owner, refusing
from rocwheel.base.container.spec import LABEL, RUN, ContainerSpec
from rocwheel.base.errors import CommandError, HostError, RocwheelError
from rocwheel.base.files import Lock, locked, remove
from rocwheel.base.process import GRACE_SECONDS, Command, Completed, GuestPath, HostRunner, Runner
from rocwheel.base.values import replace

START_SECONDS: Final = 120.0
END_SECONDS: Final = 20.0
# What a shell and the engines say of a program that is not there:
# https://docs.docker.com/engine/containers/run/#exit-status
NOT_STARTED: Final = (126, 127)


@dataclass(eq=False)
class Container:
    """A container that runs: commands run in it, and paths are seen as it sees them."""

    isolated = True
    spec: ContainerSpec
    _runner: HostRunner
    _first: subprocess.Popen[bytes] | None  # client of the first process; None for one that is kept
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(os.getpid() * 10_000))

    def path(self, host: Path, /) -> GuestPath:
        return self.spec.guest(host)

    def host(self, guest: GuestPath, /) -> Path:
        return self.spec.host(guest)

    def run(
        self,
        command: Command,
        /,
        *,
        log: Path | None = None,
        on_line: Callable[[str], None] | None = None,
        check: bool = True,
    ) -> Completed:
        with self._numbered() as number:
            inside = self.spec.execute(command, number)
            done = self._runner.run(inside, log=log, on_line=on_line, check=False)
        self._explain(command, done.returncode, done.output)
        if check and done.returncode:
            raise CommandError(
                f"{command.argv[0]}: exit status {done.returncode} in the container: {inside}",
                hint=f"the whole output is in {log}" if log else "run the command by hand",
                detail=done.output,
            )
        return done

    def capture(self, command: Command, /) -> str:
        try:
            with self._numbered() as number:
                return self._runner.capture(self.spec.execute(command, number))
        except CommandError as exc:
            status = str(exc).partition("exit status ")[2].partition(":")[0]
            self._explain(command, int(status) if status.isdigit() else 1, exc.detail)
            raise

    @property
    def alive(self) -> bool:
        return self._first is None or self._first.poll() is None

    @contextmanager
    def _numbered(self) -> Iterator[int]:
        """Yield a command's number; end what it started where its client failed."""
        number = next(self._numbers)
        try:
            yield number
        except BaseException:
            self._end(number)
            raise

    def _end(self, number: int) -> None:
        """End a process group inside, whose client has ended already.

        Engines do not pass signals on to what `exec` started:
        https://github.com/moby/moby/issues/9098
        """
        if not self.alive:
            return
        for sent, grace in zip(("INT", "TERM"), GRACE_SECONDS, strict=True):
            self._signal(number, sent)
            until = time.monotonic() + grace
            while time.monotonic() < until and self._signal(number, "0", leader=True):
                time.sleep(0.1)
        self._signal(number, "KILL")

    def _signal(self, number: int, name: str, *, leader: bool = False) -> bool:
        """Signal the process group of what was started as `number`; return whether it lives."""
        with suppress(RocwheelError):  # the container has ended
            asked = self.spec.end(number, name, leader=leader)
            return self._runner.run(asked, check=False).returncode == 0
        return False

    def _explain(self, command: Command, status: int, said: str) -> None:
        if status == 0:
            return
        if self._has_ended():
            raise HostError(
                f"{self.spec.engine.kind.value}: the container {self.spec.name} ended under us",
                hint="did the engine stop, or memory run out? Run the same command again: it "
                "continues from what is complete",
                detail=said,
            )
        if status in NOT_STARTED and Trouble.NO_PROGRAM.is_in(said):
            raise HostError(
                f"{command.argv[0]}: no such program or folder in the image {self.spec.image}",
                hint="use an image that has it: see `image show`",
            )

    def _has_ended(self) -> bool:
        """Return whether the container, or its engine, ended under a command that failed.

        No status shows it: clients of an `exec` return 137 or 255 then, as some commands do. But no
        process starts in a container whose first one has ended, and that one ends before the rest:
        pid_namespaces(7).
        """
        if not self.alive:
            return True
        ask = self.spec.engine.command(
            "exec", self.spec.name, "/bin/sh", "-c", ":", timeout=ANSWER_SECONDS
        )
        with suppress(RocwheelError):
            return self._runner.run(ask, check=False).returncode != 0
        return True

    def interact(self, command: Command, /, *, tty: bool = False) -> int:
        with self._numbered() as number:
            inside = self.spec.execute(command, number, interactive=True, tty=tty)
            status = self._runner.interact(inside, tty=tty)
        self._explain(command, status, "")
        if status < 0:
            self._end(number)
            raise HostError(
                f"{self.spec.engine.kind.value}: its client ended by signal {-status}",
                hint="run the same command again",
            )
        return status


@contextmanager
def running(spec: ContainerSpec, *, runner: HostRunner) -> Iterator[Container]:
    """Start a container that lives no longer than this process.

    Raises HostError when it does not start, or sees other folders than ours.
    """
    ours = replace(spec, owner=owner())
    with claimed(ours.folder):
        with refusing(ours.folder):
            _write(ours)
        read, write = os.pipe()
        process: subprocess.Popen[bytes] | None = None
        try:
            with (ours.folder / "engine.log").open("wb") as log:
                said, saying = os.pipe()
                try:
                    process = runner.start(ours.start, output=log, stdin=read, stdout=saying)
                finally:
                    os.close(read)
                    os.close(saying)
                with os.fdopen(said, "rb", buffering=0) as answer:
                    token = _answer(answer, process)
            why = (ours.folder / "engine.log").read_text(encoding="utf-8", errors="replace")
            _compare(ours, token, why.strip())
            yield Container(ours, runner, process)
        finally:
            os.close(write)
            if process is not None:
                _finish(ours, process, runner)


def _write(spec: ContainerSpec) -> None:
    for name, text in spec.files.items():
        (spec.folder / name).write_text(text, encoding="utf-8")


def _answer(pipe: IO[bytes], process: subprocess.Popen[bytes]) -> str:
    """Return what the first process says, up to a line's end; "" when it ends or says nothing."""
    until, said = time.monotonic() + START_SECONDS, b""
    while not said.endswith(b"\n") and time.monotonic() < until:
        ready, _, _ = select.select([pipe], [], [], 1.0)
        if ready:
            chunk = pipe.read(4096)
            if not chunk:
                break
            said += chunk
        elif process.poll() is not None:
            break
    return said.decode(errors="replace")


def _compare(spec: ContainerSpec, token: str, said: str) -> None:
    if token == spec.files["token"]:
        return
    if token or "/rocwheel/run/token" in said:
        raise HostError(
            f"{spec.engine.kind.value}: mounts other folders than this machine's {spec.folder}",
            hint="the engine is on another machine or in another mount namespace (such as a "
            "daemon outside of this container): run rocwheel there, or use --executor=host",
        )
    raise refusal(spec, said)


def refusal(spec: ContainerSpec, said: str) -> HostError:
    """Return why an engine did not start a container, from what its client said."""
    kind = spec.engine.kind.value
    last = headline(said) or f"no answer within {START_SECONDS:g} s"
    remedies = {
        Trouble.NO_SPACE: f"free some space at {spec.engine.root}: `image prune`",
        Trouble.NO_IMAGE: f"get it first: `image build`, or {kind} pull {spec.image}",
        Trouble.NO_MOUNT: "a folder cannot be mounted: check that it exists and that the engine "
        "may read it",
        # crun takes no cgroups that mix v1 and v2: https://github.com/containers/crun/issues/617
        Trouble.CGROUP: f"set {RUNC}, or use the other engine",
        Trouble.OTHER_ARCHITECTURE: "the image is for another architecture: build one for this",
        Trouble.LIMIT: "set default_ulimits in containers.conf to what this user may have",
        None: f"what {kind} said is above"
        if said.strip()
        else f"look at what it does: {kind} ps --all",
    }
    hint = meaning(said, remedies)
    return HostError(f"{kind}: the container does not start: {last}", hint=hint, detail=said)


def _finish(spec: ContainerSpec, process: subprocess.Popen[bytes], runner: HostRunner) -> None:
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.returncode == 0:
        return  # a client that ends well has waited for the container to be removed
    with suppress(RocwheelError):
        # The client may have gone before the container: killed, or its daemon's connection lost.
        runner.run(spec.engine.remove(spec.name), check=False)
        if process.returncode < 0:
            _remove_late(spec, runner)
            _end_monitor(spec.name)


def _remove_late(spec: ContainerSpec, runner: HostRunner) -> None:
    """Remove a container that the engine may still be making, as its killed client asked.

    Until it is made nothing can remove it; but its name is taken as soon as that begins. So a
    container that has the name proves that no other one comes.
    """
    until = time.monotonic() + END_SECONDS
    while time.monotonic() < until and Trouble.NAME_TAKEN.is_in(
        runner.run(spec.take_name, check=False).output
    ):
        time.sleep(0.2)
        runner.run(spec.engine.remove(spec.name), check=False)
    runner.run(spec.engine.remove(spec.name), check=False)


def _end_monitor(name: str) -> None:
    """End the monitor, and its child, that a killed client of Podman had started and not recorded.

    Podman does not know that container any more, and `conmon` waits for its start:
    https://github.com/containers/conmon
    """
    until = time.monotonic() + END_SECONDS
    while (left := _monitored(name)) and time.monotonic() < until:
        for child in left:
            with suppress(OSError):
                os.kill(child, signal.SIGKILL)
        time.sleep(0.1)


def _monitored(name: str) -> list[int]:
    children: list[int] = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (process / "cmdline").read_bytes().split(b"\0")
            if Path(os.fsdecode(words[0])).name == "conmon" and os.fsencode(name) in words:
                text = (process / "task" / process.name / "children").read_text(encoding="ascii")
                children += map(int, text.split())
    return children


@contextmanager
def kept(spec: ContainerSpec, *, runner: HostRunner) -> Iterator[Container]:
    """Use a container that stays `spec.keep_minutes` after its last use; reuse an earlier one."""
    with refusing(spec.folder):
        ours, turn = _kept(spec, runner)
    with turn:
        yield Container(ours, runner, None)


def _kept(spec: ContainerSpec, runner: HostRunner) -> tuple[ContainerSpec, Lock]:
    clear(spec.folder.parent)
    with locked(spec.folder.with_name(LOCK)):
        for ours in _running(spec, runner):
            turn = _begin_turn(ours)
            if _token(ours, runner)[0] == ours.files["token"]:
                return ours, turn
        spec.folder.mkdir(mode=0o755)
        _write(spec)
        turn = _begin_turn(spec)
        done = runner.run(replace(spec, owner=owner()).start, check=False)
        try:
            _compare(spec, *(("", done.output) if done.returncode else _token(spec, runner)))
        except HostError:
            runner.run(spec.engine.remove(spec.name), check=False)
            remove(spec.folder)
            raise
    return spec, turn


def find_kept(spec: ContainerSpec, runner: Runner) -> ContainerSpec | None:
    """Return the kept container that a turn would find; it may end before it is used."""
    return next(_running(spec, runner), None)


def _running(spec: ContainerSpec, runner: Runner) -> Iterator[ContainerSpec]:
    """Yield kept containers that are as `spec` asks; none of another machine's cache."""
    label = f"--filter=label={LABEL}.kept={spec.key}"  # those that are paused are of no use
    asked = ("ps", "--filter=status=running", label, "--format={{.Names}}")
    for name in runner.capture(spec.engine.command(*asked)).split():
        run = name.removeprefix("rocwheel-")
        ours = replace(spec, run=run, folder=spec.folder.with_name(run))
        if (ours.folder / "token").exists():
            yield ours


def _begin_turn(spec: ContainerSpec) -> Lock:
    """Share the lock that the container waits for before it ends; the kernel lets go of it."""
    alive = spec.folder / "alive"
    turn = locked(alive, shared=True)
    alive.write_text(spec.files[alive.name], encoding="ascii")  # in place: it is locked
    return turn


def _token(spec: ContainerSpec, runner: HostRunner) -> tuple[str, str]:
    lock = ("flock", "-s", f"{RUN}/alive", "cat", f"{RUN}/token")
    try:
        return runner.capture(spec.engine.command("exec", spec.name, *lock)), ""
    except CommandError as exc:
        return "", exc.detail
