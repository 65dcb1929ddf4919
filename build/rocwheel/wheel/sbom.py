"""The list of what a wheel was made of (CycloneDX 1.6, PEP 770): `make`, `read`.

It lies in `.dist-info/sboms` and has neither a time nor a serial number, so one wheel always gets
the same bytes.
"""

import itertools
import json
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, NamedTuple
from urllib.parse import quote

from rocwheel import __version__
from rocwheel.base.errors import WheelError
from rocwheel.base.git import Source

OWN: Final = "sboms/rocwheel.cdx.json"  # below dist-info
ROLE: Final = "rocwheel:role"  # a property of each component
ORIGINS: Final = frozenset({"source", "tool", "fetched", "configured", "not known"})
# What parsing a file of strangers may raise; json and subscripts know no schema.
_MISFIT: Final = (ValueError, LookupError, TypeError, AttributeError, RecursionError)


class Component(NamedTuple):
    """One thing in a wheel's list, and its relation to the wheel.

    `wheel`: the wheel itself; `source` and `tool`: what it was compiled from and by; `grafted`: a
    library of others inside; `package`: of the system that such a library came from, as auditwheel
    says; `needed`: a library that is loaded and not inside; "": the file does not say. `fetched`,
    `configured` and `not known`: a repository of Bazel's (`bazel/queries.py`).
    """

    role: str
    name: str
    version: str = ""
    purl: str = ""


def of_wheel(project: str, version: str) -> Component:
    return Component("wheel", project, version, f"pkg:pypi/{project}@{quote(version, safe='')}")


def of_source(name: str, origin: Source, version: str = "") -> Component:
    """Return a source tree: its commit, or the digest of one that is no clean commit."""
    site, _, path = origin.repository.removeprefix("https://").partition("/")
    purl = f"pkg:generic/{name}@{origin.commit}"
    if origin.dirty or not origin.commit:
        purl = f"pkg:generic/{name}?checksum=sha256:{origin.digest}"
    elif site == "github.com" and path.count("/") == 1:
        purl = f"pkg:github/{path.lower()}@{origin.commit}"
    return Component("source", name, version or origin.commit, purl)


def make(components: Iterable[Component]) -> bytes:
    """Return the document of a wheel, which is one of them. Raises WheelError for a bad purl."""
    from cyclonedx.model import Property, bom, component
    from cyclonedx.output.json import JsonV1Dot6
    from packageurl import PackageURL

    kinds = component.ComponentType
    try:
        listed = {
            each: component.Component(
                name=each.name,
                version=each.version or None,
                type=kinds.APPLICATION if each.role == "tool" else kinds.LIBRARY,
                bom_ref=f"{each.role}-{number}",
                purl=PackageURL.from_string(each.purl) if each.purl else None,
                properties=[Property(name=ROLE, value=each.role)],
            )
            for number, each in enumerate(sorted({*components}))
        }
    except ValueError as exc:  # of another file below sboms/
        raise WheelError(f"sboms: {exc}", hint="build the wheel again") from exc
    (wheel,) = (listed.pop(each) for each in [*listed] if each.role == "wheel")
    made = bom.Bom(components=listed.values(), metadata=bom.BomMetaData(component=wheel))
    us = component.Component(name="rocwheel", version=__version__, type=kinds.APPLICATION)
    made.metadata.tools.components.add(us)
    made.register_dependency(wheel, listed.values())
    document = json.loads(JsonV1Dot6(made).output_as_string())
    del document["serialNumber"], document["metadata"]["timestamp"]
    return _packed(document)


def _packed(document: object) -> bytes:
    return json.dumps(document, indent=1, sort_keys=True).encode() + b"\n"


def read(data: bytes) -> tuple[Component, ...]:
    """Return what a CycloneDX file of any maker lists.

    An invalid file is no reason to refuse the wheel: clients do not look at it.
    """
    with suppress(*_MISFIT):
        document = json.loads(data)
        entries = [("wheel", document.get("metadata", {}).get("component", {}))]
        for entry in document.get("components", ()):
            roles = {item["name"]: item["value"] for item in entry.get("properties", ())}
            entries.append((str(roles.get(ROLE, "")), entry))
        keys = ("name", "version", "purl")
        listed = {(role, *(str(entry.get(key, "")) for key in keys)) for role, entry in entries}
        if document["bomFormat"] == "CycloneDX":
            return tuple(sorted(itertools.starmap(Component, listed)))
    return (Component("", "no CycloneDX file, or a large one"),)


def with_version(data: bytes, version: str) -> bytes:
    try:
        document = json.loads(data)
        wheel = document["metadata"]["component"]
        wheel |= {"version": version, "purl": of_wheel(wheel["name"], version).purl}
    except _MISFIT as exc:
        raise WheelError(f"{OWN}: none of ours: {exc!r}", hint="repair the wheel again") from exc
    return _packed(document)
