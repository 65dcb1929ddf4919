"""`index check`: everything the index lists, downloaded and compared; nothing is written."""

from __future__ import annotations

import hashlib
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urljoin, urlsplit

from rocwheel.errors import ObjectMissingError, RocwheelError, WheelError
from rocwheel.index.page import Page, links
from rocwheel.index.publish import read_page, read_root
from rocwheel.ledger import records
from rocwheel.places import ADOPTED
from rocwheel.release import operations, wheelset
from rocwheel.store import advance, each

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rocwheel.index.page import Entry
    from rocwheel.ledger.records import History
    from rocwheel.manifest import Manifest
    from rocwheel.places import Place
    from rocwheel.store import Counter


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What a check looked at, and what is wrong: one line per problem."""

    files: int
    problems: tuple[str, ...]


def check(place: Place, *, count: Counter | None = None) -> Checked:
    """Download everything the index lists and compare.

    Compared: JSON with HTML, what links point to with hash and size, METADATA in the wheel with
    `.metadata` and Requires-Python, pages with records, requirements within each set.
    """
    histories = records.histories(place)
    recorded = {name: entry for item in histories.values() for name, entry in item.live.items()}
    unfinished = {
        entry.filename for item in histories.values() if item.open for entry in item.open.entries
    }
    problems: list[str] = []
    seen: dict[str, Entry] = {}
    metadata: dict[str, bytes] = {}
    root = read_root(place).projects
    for project in sorted({*root, *records.projects(histories)}):
        page, found = _check_page(place, project)
        problems += found
        if page.files and project not in root:
            problems.append(f"{place.location}/: {project} is not in the list of projects")
        seen.update({item.filename: item for item in page.files})

    def one(entry: Entry) -> list[str]:
        found, data = _check_file(place, entry, count)
        metadata[entry.filename] = data
        return found

    for found in each(one, list(seen.values()), threads=place.store.connections):
        problems += found
    for name in sorted(set(seen) - set(recorded) - unfinished):
        problems.append(f"{place.location}/{name}: listed, and no record knows it")
    for name in sorted(set(recorded) - set(seen) - unfinished):
        problems.append(f"{place.location}/{name}: recorded, and not listed")
    problems += _check_sets(place, histories, metadata)
    return Checked(files=len(seen), problems=tuple(problems))


def _check_page(place: Place, project: str) -> tuple[Page, list[str]]:
    """Compare the two forms of a page, and what its links point to."""
    page = read_page(place, project)
    problems = []
    for key in place.views(project, folder_keys=_keeps_folders(place)):
        where = place.store.locate(key)
        try:
            data, _ = place.store.read(key)
        except ObjectMissingError:
            problems.append(f"{where}: missing")
            continue
        shown = {
            (link.filename, link.sha256, link.metadata_sha256, link.requires_python, link.yanked)
            for link in links(data)
        }
        stated = {
            (item.filename, item.sha256, item.metadata_sha256, item.requires_python, item.yanked)
            for item in page.files
        }
        problems += [f"{where}: {item[0]} is not as in index.json" for item in shown ^ stated]
        for link in links(data):
            target = unquote(urlsplit(urljoin(f"http://x/{place.key(project)}/", link.url)).path)
            if target != f"/{place.key(link.filename)}":
                problems.append(f"{where}: the link of {link.filename} leads to {target}")
    return page, problems


def _keeps_folders(place: Place) -> bool:
    """Whether pages are stored under folder keys here; seen, not tried: a check writes nothing."""
    first = next(iter(place.store.keys(place.key(""))), None)
    return first is not None and first.key == place.key("")


def _check_file(place: Place, entry: Entry, count: Counter | None) -> tuple[list[str], bytes]:
    """Download a wheel; compare digest, size, METADATA, Requires-Python."""
    where = place.store.locate(place.key(entry.filename))
    problems: list[str] = []
    try:
        with downloaded(place, entry.filename, count) as wheel:
            if (wheel.sha256, wheel.size) != (entry.sha256, entry.size):
                problems.append(f"{where}: SHA-256 is {wheel.sha256}, listed is {entry.sha256}")
            inside = wheelset.read_metadata(wheel.path)
        if entry.metadata_sha256:
            beside, _ = place.store.read(place.metadata(entry.filename))
            if beside != inside or hashlib.sha256(beside).hexdigest() != entry.metadata_sha256:
                problems.append(f"{where}.metadata: not the wheel's METADATA")
            required = wheelset.requires_python(inside, name=entry.filename)
            if required != entry.requires_python:
                problems.append(f"{where}: Requires-Python is {required!r}, listed is another")
    except (ObjectMissingError, WheelError) as exc:
        return [*problems, str(exc)], b""
    return problems, inside


def _check_sets(
    place: Place, histories: Mapping[str, History], metadata: Mapping[str, bytes]
) -> Iterator[str]:
    """Every listed set is complete and closed, for each of its CPythons."""
    for history in histories.values():
        if history.set_id == ADOPTED or not history.live:
            continue
        try:
            manifest = records.find_manifest(place, history.set_id)
            if manifest is None:
                yield f"{place.store.locate(place.manifest(history.set_id))}: missing"
                continue
            wheelset.check_complete(manifest)
            wheelset.check_closed(manifest, _of_set(manifest, metadata))
        except RocwheelError as exc:
            yield f"{place.location}: {operations.short(history.set_id)}: {exc}"


def _of_set(manifest: Manifest, metadata: Mapping[str, bytes]) -> dict[str, bytes]:
    missing = [w.filename for w in manifest.built if not metadata.get(w.filename)]
    if missing:
        raise WheelError(f"{missing[0]}: not listed or not readable", hint="index rebuild")
    return {w.filename: metadata[w.filename] for w in manifest.built}


@dataclass(frozen=True, kw_only=True)
class Downloaded:
    """A wheel in a scratch file, hashed while it came."""

    path: Path
    sha256: str
    size: int
    modified: str  # ISO 8601, UTC


@contextmanager
def downloaded(place: Place, filename: str, count: Counter | None) -> Iterator[Downloaded]:
    """Fetch a wheel from a place; the file is gone afterwards."""
    digest = hashlib.sha256()
    with tempfile.NamedTemporaryFile(prefix="rocwheel-", suffix=".whl") as file:

        def keep(block: bytes) -> None:
            digest.update(block)
            file.write(block)
            advance(count, len(block))

        info = place.store.stream(place.key(filename), keep)
        file.flush()
        yield Downloaded(
            path=Path(file.name),
            sha256=digest.hexdigest(),
            size=info.size,
            modified=info.modified.strftime("%Y-%m-%dT%H:%M:%SZ"),
        )
