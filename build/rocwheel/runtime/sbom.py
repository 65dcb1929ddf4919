"""The bill of materials of a runtime image: packages of the base, wheels, libraries of ROCm.

CycloneDX 1.6 as JSON (https://cyclonedx.org/specification/overview/), written by the project's own
library; tests hold it against the schema, whose validator is a dependency of tests alone.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Final

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from rocwheel import files
from rocwheel.host.machine import Programs
from rocwheel.process import Command
from rocwheel.runtime.making import ImagePlan

# As `name version architecture`, from whichever package manager the base has.
ASK: Final = (
    "if command -v dpkg-query > /dev/null; then"
    " dpkg-query --show --showformat '${Package} ${Version} ${Architecture}\\n'; else"
    " rpm --query --all --queryformat '%{NAME} %{VERSION}-%{RELEASE} %{ARCH}\\n'; fi;"
    ' . /etc/os-release; echo "distribution $ID $VERSION_ID"'
)


def packages(programs: Programs) -> tuple[str, ...]:
    """Return the packages of an image, as lines; the last one names the distribution."""
    said = programs.answer(Command(argv=("/bin/sh", "-c", ASK), timeout=120))
    return tuple(line.strip() for line in said.splitlines() if line.strip())


def write(plan: ImagePlan, config: str, system: Iterable[str], *, now: datetime) -> bytes:
    """Return the document, the same bytes for the same image at the same time."""
    bom = Bom(
        serial_number=uuid.UUID(hashlib.md5(config.encode(), usedforsecurity=False).hexdigest())
    )
    bom.metadata.timestamp = now
    subject = plan.subject
    bom.metadata.component = Component(
        name=subject.repository, version=config, type=ComponentType.CONTAINER, bom_ref=config
    )
    for component in (*_system(tuple(system)), *_wheels(plan), *_rocm(plan)):
        bom.components.add(component)
    bom.register_dependency(bom.metadata.component, list(bom.components))
    return f"{JsonV1Dot6(bom).output_as_string(indent=2)}\n".encode()


def _system(lines: tuple[str, ...]) -> Iterator[Component]:

    *found, last = lines
    _, distribution, version = f"{last} ".split(" ")[:3]
    kind = "rpm" if distribution in {"almalinux", "centos", "fedora", "rhel", "rocky"} else "deb"
    for line in found:
        name, number, architecture = line.split(" ")[:3]
        yield Component(
            name=name,
            version=number,
            type=ComponentType.LIBRARY,
            bom_ref=f"{kind}:{name}:{architecture}",
            purl=PackageURL(
                kind, distribution, name, number,
                {"arch": architecture, "distro": f"{distribution}-{version}"},
            ),
        )  # fmt: skip


def _wheels(plan: ImagePlan) -> Iterator[Component]:

    for pin in plan.pins:
        yield Component(
            name=pin.project,
            version=pin.version,
            type=ComponentType.LIBRARY,
            bom_ref=f"pypi:{pin.filename}",
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=pin.sha256)],
            purl=PackageURL("pypi", None, pin.project, pin.version, {"file_name": pin.filename}),
        )


def _rocm(plan: ImagePlan) -> Iterator[Component]:

    for path in plan.closure.paths:
        file = plan.rocm.root / path
        name = path.rpartition("/")[2]
        if file.is_symlink() or not (name.endswith(".so") or ".so." in name):
            continue
        yield Component(
            name=name,
            version=str(plan.rocm.version),
            group="rocm",
            type=ComponentType.LIBRARY,
            bom_ref=f"rocm:{path}",
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=files.sha256(file))],
        )
