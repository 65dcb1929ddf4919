"""Devices shared by everything that runs on one host: file locks, and quarantine.

Each device has a lock file named by its serial; who holds the lock has the device. The kernel
releases a lock when its holder dies, so nothing has to be cleaned up. A device that a process
could not be removed from is quarantined: no gate takes it until the machine is restarted or the
file is deleted.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Final

from rocwheel.base import files
from rocwheel.base.errors import named
from rocwheel.base.here import Here
from rocwheel.base.values import Plain
from rocwheel.gate.machine.accelerators import Accelerator
from rocwheel.gate.setup_errors import InfraError

POLL_SECONDS: Final = 1.0


class Slots(Plain, frozen=True, kw_only=True):
    """The lock files of one host; `boot` names the current boot of its kernel."""

    folder: Path
    boot: str
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    @classmethod
    def of(cls, folder: Path, here: Here) -> Slots:
        try:
            path = here.root / "proc/sys/kernel/random/boot_id"
            boot = path.read_text(encoding="ascii").strip()
        except OSError:  # the kernel does not say
            boot = ""
        return cls(folder=folder, boot=boot, clock=here.clock, sleep=here.sleep)

    @contextmanager
    def take(
        self, devices: Sequence[Accelerator], *, least: int, most: int, patience: float
    ) -> Iterator[dict[Accelerator, int]]:
        """Hold between `least` and `most` free devices until the block is left; yield their locks.

        A process that is given these descriptors holds the devices too, until it ends.
        All or none: two gates that each need several devices cannot hold half of them each. Raises
        InfraError when too few devices are well, or come free within `patience` seconds.
        """
        well = [device for device in devices if not self.quarantined(device)]
        if len(well) < least:
            raise InfraError(
                f"{len(well)} of {len(devices)} devices are well, {least} needed: "
                + "; ".join(f"{d.serial}: {why}" for d in devices if (why := self.quarantined(d))),
                hint=f"restart the machine, or delete {self.folder}/*.quarantined once it is well",
            )
        self._prepare()
        until = self.clock() + patience
        while True:
            with ExitStack() as locks:
                got: dict[Accelerator, int] = {}
                for device in sorted(well, key=lambda device: device.serial):
                    # never deleted: a lock on a file that has lost its name would protect nothing
                    with self._writing():
                        free = len(got) < most
                        lock = files.try_locked(self._path(device, "lock")) if free else None
                    if lock:
                        got[device] = locks.enter_context(lock).descriptor
                if len(got) >= least:
                    yield dict(sorted(got.items(), key=lambda item: item[0].index))
                    return
            if self.clock() >= until:
                raise InfraError(
                    f"{len(got)} of {least} devices came free within {patience:g} s",
                    hint=f"see who holds them: fuser -v {self.folder}/*.lock",
                )
            self.sleep(POLL_SECONDS)

    def quarantine(self, device: Accelerator, reason: str) -> Path:
        """Keep every gate of this host away from `device` until the next boot."""
        self._prepare()
        path = self._path(device, "quarantined")
        files.write_json(path, {"boot": self.boot, "reason": reason})
        return path

    def quarantined(self, device: Accelerator) -> str:
        """Return why `device` is in quarantine, "" when it is not. A restart ends a quarantine."""
        path = self._path(device, "quarantined")
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            return str(record["reason"]) if record["boot"] == self.boot else ""
        except FileNotFoundError:
            return ""
        except (OSError, ValueError, KeyError, TypeError) as exc:
            return f"{path} is unreadable: {exc}"

    def _path(self, device: Accelerator, suffix: str) -> Path:
        return self.folder / f"{device.maker.value}-{device.serial}.{suffix}"

    def _prepare(self) -> None:
        """Make the folder, writable for every user of the host, as /tmp is."""
        if not self.folder.is_dir():
            with self._writing():
                self.folder.mkdir(parents=True, exist_ok=True)
                self.folder.chmod(0o1777)

    def _writing(self) -> AbstractContextManager[None]:
        return named(self.folder, InfraError, hint="name a folder that can be written, --slots")
