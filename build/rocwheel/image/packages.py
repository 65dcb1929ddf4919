"""The packages of a runtime image: the set and every dependency, each by SHA-256.

pip resolves for the image's CPython and C library, outside. A folder of wheels and a list of hashes
go into the image, so installing needs neither an index nor a network.
"""

import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

from packaging.utils import canonicalize_name

from rocwheel.base import files
from rocwheel.base.errors import CommandError, WheelError
from rocwheel.base.host.virtualenv import pip
from rocwheel.base.process import Runner
from rocwheel.base.values import Plain
from rocwheel.base.versions import PythonVersion
from rocwheel.records.manifest import Manifest

LIST: Final = "requirements.txt"
GUEST: Final = "/wheels"  # where the folder is seen while an image is made
OLDEST: Final = 5  # of manylinux, the minor version of its C library


class PackagePin(Plain, frozen=True, kw_only=True):
    """One wheel: its name and its digest."""

    project: str
    version: str
    filename: str
    sha256: str


class Where(Plain, frozen=True, kw_only=True):
    """The CPython and C library that wheels are chosen for."""

    python: PythonVersion
    glibc: str

    @property
    def options(self) -> tuple[str, ...]:
        """For pip: this CPython and every manylinux its C library can do."""
        newest = int(self.glibc.partition(".")[2])
        platforms = [f"manylinux_2_{minor}_x86_64" for minor in range(newest, OLDEST - 1, -1)]
        platforms += ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64"]
        return (
            "--only-binary=:all:", "--implementation=cp",
            f"--python-version={self.python.major}.{self.python.minor}",
            *(f"--platform={name}" for name in platforms),
        )  # fmt: skip


def resolve(
    local: Mapping[Path, str], requirements: Sequence[str], where: Where, *, runner: Runner
) -> tuple[PackagePin, ...]:
    """Resolve these wheels (path -> SHA-256) and requirements; sorted by project.

    Raises WheelError when they contradict each other, or an index gives no hash.
    """
    with tempfile.TemporaryDirectory(prefix="rocwheel-resolve-") as folder:
        report = Path(folder) / "report.json"
        named = [f"{path.as_uri()}#sha256={sha256}" for path, sha256 in local.items()]
        asked = pip(
            "install", "--dry-run", "--ignore-installed", f"--report={report}",
            f"--target={folder}/target", *where.options, *named, *requirements,
        )  # fmt: skip
        try:
            runner.run(asked)
        except CommandError as exc:
            raise WheelError(
                f"no wheels for CPython {where.python}, glibc {where.glibc}: "
                f"{exc.detail.strip().rpartition(chr(10))[2]}",
                hint="compare the set's requirements with what the index has",
                detail=exc.detail,
            ) from exc
        resolved = json.loads(report.read_text(encoding="utf-8"))
    return tuple(sorted(map(_pin, resolved["install"]), key=lambda pin: pin.project))


def _pin(item: Mapping[str, Any]) -> PackagePin:
    url = item["download_info"]["url"].partition("#")[0]
    info = item["download_info"].get("archive_info", {})
    sha256 = info.get("hashes", {}).get("sha256", "")
    name, version = item["metadata"]["name"], item["metadata"]["version"]
    if not sha256:
        raise WheelError(
            f"{name} {version}: its index gives no SHA-256", hint="use an index that does"
        )
    return PackagePin(
        project=canonicalize_name(name),
        version=version,
        filename=unquote(url.rpartition("/")[2]),
        sha256=sha256,
    )


def gather(
    folder: Path,
    local: Mapping[Path, str],
    pins: Sequence[PackagePin],
    where: Where,
    *,
    runner: Runner,
) -> None:
    """Fill a folder with these wheels and the list that installs exactly them.

    Raises CommandError when a download fails, WheelError for other bytes than resolved.
    """
    folder.mkdir()
    ours = {path.name for path in local}
    for path in local:
        shutil.copy(path, folder / path.name)
    others = [pin for pin in pins if pin.filename not in ours]
    if others:
        wanted = folder.with_name("download.txt")
        wanted.write_text(
            "".join(f"{pin.project}=={pin.version} --hash=sha256:{pin.sha256}\n" for pin in others),
            encoding="utf-8",
        )
        runner.run(
            pip("download", "--no-deps", "--require-hashes", *where.options,
                f"--requirement={wanted}", f"--dest={folder}")
        )  # fmt: skip
    for pin in pins:
        if files.sha256(folder / pin.filename) != pin.sha256:
            raise WheelError(f"{pin.filename}: other bytes came than were resolved", hint="again")
    urls = ((pin, f"file://{GUEST}/{quote(pin.filename)}") for pin in pins)
    lines = (f"{pin.project} @ {url} --hash=sha256:{pin.sha256}\n" for pin, url in urls)
    (folder / LIST).write_text("".join(lines), encoding="utf-8")


def compare(pins: Sequence[PackagePin], manifest: Manifest, python: PythonVersion) -> None:
    """Compare the resolved wheels with the set's. Raises WheelError for other bytes."""
    known = {pin.project: pin for pin in pins}
    for wheel in manifest.of_python(python):
        pin = known.get(wheel.project)
        if pin is None or pin.sha256 != wheel.sha256:
            raise WheelError(
                f"{wheel.filename}: resolved to {pin.filename if pin else 'nothing'}",
                hint="the index has other bytes than the set was gated with",
            )
