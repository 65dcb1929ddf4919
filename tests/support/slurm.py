"""A real Slurm on loopback: munged, slurmctld and several slurmd, with made GPUs.

Debian's slurmctld, slurmd, slurm-client and munge (22.05), started by hand as root and ended with
the test. The GPUs are device files of terminals: Slurm counts and hands them out, nothing opens
them. Nodes share one machine, so their CPUs together are no more than it has, except that Slurm is
told to overlook that (`SlurmdParameters=config_overrides`).
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from support.ports import free_port

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged")
START_SECONDS = 240


@dataclass
class Cluster:
    """A running cluster; `env` is what its commands need."""

    folder: Path
    sockets: Path
    nodes: tuple[str, ...]
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def env(self) -> dict[str, str]:
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def ask(self, *argv: str) -> str:
        done = subprocess.run(
            argv, env={**os.environ, **self.env}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{argv}: {done.stderr}"
        return done.stdout

    def start(self, name: str) -> None:
        """(Re)start `munged`, `slurmctld` or the slurmd of a node."""
        argv = {
            "munged": [
                "munged", "--foreground", "--force", f"--key-file={self.folder}/munge.key",
                f"--socket={self.sockets}/munge.socket", f"--pid-file={self.folder}/munged.pid",
                f"--seed-file={self.folder}/munge.seed", f"--log-file={self.folder}/munged.log",
            ],
            "slurmctld": ["slurmctld", "-D", "-f", f"{self.folder}/slurm.conf"],
        }.get(name, ["slurmd", "-D", "-N", name, "-f", f"{self.folder}/slurm.conf"])  # fmt: skip
        with (self.folder / f"{name}.out").open("ab") as out:
            self.processes[name] = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env={**os.environ, **self.env},
                start_new_session=True,
            )  # fmt: skip

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        process = self.processes.pop(name)
        process.send_signal(number)
        process.wait(60)

    def resume(self, *nodes: str) -> None:
        """Let nodes take jobs again; one that does already refuses."""
        for node in nodes:
            with suppress(AssertionError):
                self.ask("scontrol", "update", f"nodename={node}", "state=resume")

    def forget(self) -> None:
        """Have the controller, which is not running, know nothing of any job."""
        shutil.rmtree(self.folder / "state")
        (self.folder / "state").mkdir()

    def ready(self, *others: str) -> None:
        """Wait until every node may run jobs, or is in one of these states as well."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            done = subprocess.run(
                ["sinfo", "-h", "-N", "-o", "%N %t"], env={**os.environ, **self.env},
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            states = dict(line.split() for line in done.stdout.splitlines())
            if states and set(states.values()) <= {"idle", "mix", "alloc", *others}:
                return
            if time.monotonic() > deadline:
                raise AssertionError(f"{done.stdout}{done.stderr}{self.logs()}")
            time.sleep(0.2)

    def idle(self, seconds: float = 600) -> None:
        """Wait until nothing is queued or runs; a job that Slurm holds back would wait for ever."""
        deadline = time.monotonic() + seconds
        while said := self.ask("squeue", "-h", "-o", "%i %T %r").strip():
            held = "held" in said.replace("JobHeldUser", "")
            assert not held, f"{said}\n{self.logs()}"
            assert time.monotonic() < deadline, f"{said}\n{self.logs()}"
            time.sleep(0.2)

    def logs(self) -> str:
        """The ends of what the daemons wrote."""
        files = sorted([*self.folder.glob("*.out"), *self.folder.glob("slurm*.log")])
        return "".join(f"== {f.name}\n{f.read_text(errors='replace')[-1500:]}" for f in files)


@contextmanager
def cluster(
    folder: Path, *, nodes: int = 2, gpus: int = 4, partition: str = "gfx90a", gres: str = "mi250"
):
    """Several nodes with made GPUs, and a `build` partition that is the default."""
    # Sockets lie in a folder with a short name: a path of theirs has at most 108 characters, and a
    # slurmstepd that cannot make one leaves its job held.
    sockets = Path(tempfile.mkdtemp(prefix="slurm-"))
    sockets.chmod(0o755)
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    ports = [free_port() for _ in range(nodes + 1)]
    names = tuple(f"node-{number}" for number in range(1, nodes + 1))
    host, cpus = socket.gethostname().partition(".")[0], os.cpu_count() or 1
    lines = [
        f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus} "
        f"RealMemory=20000 Gres=gpu:{gres}:{gpus} State=UNKNOWN"
        for name, port in zip(names, ports[1:], strict=True)
    ]
    user = pwd.getpwuid(os.getuid()).pw_name
    (folder / "slurm.conf").write_text(
        "\n".join(
            [
                "ClusterName=test",
                f"SlurmctldHost={host}(127.0.0.1)",
                f"SlurmctldPort={ports[0]}",
                f"SlurmUser={user}",
                f"SlurmdUser={user}",
                f"AuthInfo=socket={sockets}/munge.socket",
                "ProctrackType=proctrack/pgid",
                "TaskPlugin=task/none",
                "SelectType=select/cons_tres",
                "SelectTypeParameters=CR_Core",
                "AccountingStorageType=accounting_storage/none",
                "JobAcctGatherType=jobacct_gather/none",
                "SlurmdParameters=config_overrides",
                "SchedulerParameters=sched_min_interval=0,batch_sched_delay=0,defer_batch",
                "MpiDefault=none",
                "ReturnToService=2",
                "KillWait=5",
                "InactiveLimit=0",
                "MinJobAge=600",
                "SlurmdTimeout=20",
                "PreemptType=preempt/partition_prio",
                "PreemptMode=REQUEUE",
                "GresTypes=gpu",
                f"StateSaveLocation={folder}/state",
                f"SlurmdSpoolDir={sockets}/%n",
                f"SlurmctldPidFile={folder}/slurmctld.pid",
                f"SlurmdPidFile={folder}/slurmd-%n.pid",
                f"SlurmctldLogFile={folder}/slurmctld.log",
                f"SlurmdLogFile={folder}/slurmd-%n.log",
                *lines,
                *(
                    f"PartitionName={name} Nodes={','.join(names)} MaxTime=INFINITE State=UP {more}"
                    for name, more in {
                        "build": "Default=YES PriorityTier=10 OverSubscribe=FORCE:8",
                        partition: "PriorityTier=10 OverSubscribe=FORCE:8",
                        "urgent": "PriorityTier=100 PreemptMode=OFF",
                    }.items()
                ),
                "",
            ]
        )
    )
    (folder / "gres.conf").write_text(
        "".join(
            f"NodeName={name} Name=gpu Type={gres} File=/dev/tty[{1 + i * gpus}-{(i + 1) * gpus}]\n"
            for i, name in enumerate(names)
        )
    )
    (folder / "state").mkdir(exist_ok=True)
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    made = Cluster(folder=folder, sockets=sockets, nodes=names)
    try:
        made.start("munged")
        deadline = time.monotonic() + START_SECONDS
        while not (sockets / "munge.socket").exists():
            assert time.monotonic() < deadline, (folder / "munged.out").read_text()
            time.sleep(0.05)
        for name in ("slurmctld", *names):
            made.start(name)
        made.ready()
        yield made
    finally:
        with suppress(Exception):
            subprocess.run(
                ["scancel", "--user", user],
                env={**os.environ, **made.env},
                timeout=240,
                check=False,
            )
        for process in reversed(made.processes.values()):
            process.terminate()
        for process in made.processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(60)
            process.kill()
        shutil.rmtree(sockets, ignore_errors=True)


def present() -> bool:
    return all(shutil.which(name) for name in PROGRAMS)
