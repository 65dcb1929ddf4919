"""Reads Bazel's Build Event Protocol (JSON, one event a line) while it is written, and its logs.

The protocol is the only thing a result is read from; what Bazel prints is for people. Events and
fields: build_event_stream.proto of the Bazel release. Fields that newer releases added are used
when present and never required, so that Bazel 4.2 to 8 are read by the same code.
"""

import base64
import gzip
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from rocwheel.base.errors import HostError
from rocwheel.base.process import GuestPath
from rocwheel.base.values import Plain
from rocwheel.records.manifest import TimedAction

SLOWEST: Final = 10  # actions of a profile
# Written once in every build to stamp it; it says nothing about what was rebuilt.
_BOOKKEEPING: Final = frozenset({"BazelWorkspaceStatusAction"})
_NUMBER: Final = re.compile(rb"[\x80-\xff]*[\x00-\x7f]")


class FailedAction(Plain, frozen=True, kw_only=True):
    """An action that failed: what it ran and what it printed."""

    label: str
    mnemonic: str
    command: tuple[str, ...]
    exit_code: int
    output: str  # its stderr, then its stdout
    message: str  # Bazel's own words
    code: str = ""  # kind of failure: NON_ZERO_EXIT is the action's own


@dataclass
class BuildEvents:
    """What the events read so far say; feed it line by line."""

    targets: set[str] = field(default_factory=set)
    completed: dict[str, bool] = field(default_factory=dict)  # label -> success
    actions: int = 0  # finished: executed or taken from a cache that is not the output base
    failed: list[FailedAction] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)  # targets that could not be loaded
    exit_name: str = ""  # SUCCESS, BUILD_FAILURE, …; "" until the build is over
    last: bool = False
    runners: dict[str, int] = field(default_factory=dict)  # where actions ran; Bazel >= 5
    bytes_made: int = 0  # size of the outputs of actions; Bazel >= 5
    fetched: set[str] = field(default_factory=set)  # URLs, as they were asked for
    options: tuple[str, ...] = ()  # that were in force, from rc files too
    to_host: Callable[[GuestPath], Path] = Path  # from where Bazel runs
    _sets: dict[str, dict[str, Any]] = field(default_factory=dict)
    _outputs: dict[str, list[str]] = field(default_factory=dict)  # label -> ids of file sets
    _exec_root: PurePosixPath | None = None

    def feed(self, line: str) -> None:
        """Take in one event. A line that is no whole event is ignored: Bazel was cut short."""
        try:
            event = json.loads(line)
        except ValueError:
            return
        for name, identity in event.get("id", {}).items():
            label = identity.get("label") or ", ".join(identity.get("pattern", ()))
            if label and "aborted" in event:
                text = event["aborted"].get("description", "").strip()
                if text and event["aborted"].get("reason") != "SKIPPED":
                    text = text if label in text else f"{label}: {text}"
                    if text not in self.problems:
                        self.problems.append(text)
            read = getattr(self, f"_on_{name.lower()}", None)
            if read:
                read(identity, event)
        self.last = self.last or bool(event.get("lastMessage"))

    def files(self, label: str) -> tuple[Path, ...]:
        """Return the files of a completed target's default outputs, as paths of this machine."""
        return tuple(dict.fromkeys(self._walk(self._outputs.get(label, ()))))

    @property
    def cache_hits(self) -> int | None:
        """Actions whose outputs came from a disk or remote cache; None before Bazel 5."""
        if not self.runners:
            return None
        return sum(count for name, count in self.runners.items() if name.endswith("cache hit"))

    def _walk(self, sets: Sequence[str]) -> Iterator[Path]:
        for identity in sets:
            file_set = self._sets.get(identity, {})
            for file in file_set.get("files", ()):
                yield self._path(file)
            yield from self._walk([child["id"] for child in file_set.get("fileSets", ())])

    def _path(self, file: Mapping[str, Any]) -> Path:
        """Return the path of a URI; of a file that only a remote cache has, where it should lie."""
        parts = urlsplit(file.get("uri", ""))
        if parts.scheme == "file" or self._exec_root is None:
            path = PurePosixPath(unquote(parts.path))
        else:
            path = self._exec_root.joinpath(*file.get("pathPrefix", ()), file["name"])
        return self.to_host(GuestPath(path))

    def _text(self, file: Mapping[str, Any]) -> str:
        if "contents" in file:
            return base64.b64decode(file["contents"]).decode(errors="replace").strip()
        if not file.get("uri", "").startswith("file:"):
            return ""
        try:
            return self._path(file).read_text(encoding="utf-8", errors="replace").strip()
        except (OSError, HostError):
            return ""

    def _on_workspace(self, _identity: Any, event: Mapping[str, Any]) -> None:
        root = event.get("workspaceInfo", {}).get("localExecRoot")
        self._exec_root = PurePosixPath(root) if root else None

    def _on_targetconfigured(self, identity: Mapping[str, Any], _event: Any) -> None:
        self.targets.add(identity["label"])

    def _on_targetcompleted(self, identity: Mapping[str, Any], event: Mapping[str, Any]) -> None:
        label = identity["label"]
        done = event.get("completed", {})
        self.completed[label] = bool(done.get("success"))
        for group in done.get("outputGroup", ()):
            if group.get("name") == "default":
                self._outputs[label] = [entry["id"] for entry in group.get("fileSets", ())]

    def _on_namedset(self, identity: Mapping[str, Any], event: Mapping[str, Any]) -> None:
        self._sets[identity["id"]] = event.get("namedSetOfFiles", {})

    def _on_actioncompleted(self, identity: Mapping[str, Any], event: Mapping[str, Any]) -> None:
        action = event.get("action", {})
        if action.get("type") in _BOOKKEEPING:
            return
        self.actions += 1
        if action.get("success"):
            return
        detail = action.get("failureDetail", {})
        output = [self._text(action.get(name, {})) for name in ("stderr", "stdout")]
        self.failed.append(
            FailedAction(
                label=action.get("label") or identity.get("label", ""),
                mnemonic=action.get("type", ""),
                command=tuple(action.get("commandLine", ())),
                exit_code=detail.get("spawn", {}).get("spawnExitCode", action.get("exitCode", 1)),
                output="\n".join(filter(None, output)),
                message=detail.get("message", ""),
                code=str(detail.get("spawn", {}).get("code", "")),
            )
        )

    def _on_optionsparsed(self, _identity: Any, event: Mapping[str, Any]) -> None:
        self.options = tuple(event.get("optionsParsed", {}).get("cmdLine", ()))

    def _on_fetch(self, identity: Mapping[str, Any], event: Mapping[str, Any]) -> None:
        if event.get("fetch", {}).get("success"):
            self.fetched.add(identity["url"])

    def _on_buildfinished(self, _identity: Any, event: Mapping[str, Any]) -> None:
        self.exit_name = event.get("finished", {}).get("exitCode", {}).get("name", "")

    def _on_buildmetrics(self, _identity: Any, event: Mapping[str, Any]) -> None:
        metrics = event.get("buildMetrics", {})
        for runner in metrics.get("actionSummary", {}).get("runnerCount", ()):
            self.runners[runner["name"]] = int(runner.get("count", 0))  # JSON omits 0
        seen = metrics.get("artifactMetrics", {}).get("outputArtifactsSeen", {})
        self.bytes_made = int(seen.get("sizeInBytes", 0))


def read_spawns(log: Path) -> tuple[int, int, int]:
    """Return cache hits, size of the outputs, and of those from a cache; 0 without a log.

    An execution log, a row of JSON objects, is what Bazel before 5 has instead of metrics.
    """
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    at = 0
    hits = made = cached = 0
    while (at := text.find("{", at)) >= 0:
        spawn, at = json.JSONDecoder().raw_decode(text, at)
        outputs = spawn.get("actualOutputs", ())
        size = sum(int(output.get("digest", {}).get("sizeBytes", 0)) for output in outputs)
        made += size
        if spawn.get("remoteCacheHit"):
            hits += 1
            cached += size
    return hits, made, cached


def read_asked(log: Path) -> Iterator[tuple[str, tuple[str, ...], str]]:
    """Yield the downloads of repository rules: repository, URLs and digest, "" if none is named.

    The log's format is workspace_log.proto, of Bazel 0.18 and later; one cut short ends early.
    """
    with suppress(OSError, ValueError):
        for _, event in fields(log.read_bytes(), tagged=False):
            whole = dict(fields(event))
            for kind, integrity in ((4, 5), (5, 6)):  # download, download_and_extract
                asked = [(key, body.decode()) for key, body in fields(whole.get(kind, b""))]
                values = dict(asked)
                algorithm, _, encoded = values.get(integrity, "").partition("-")
                digest = values.get(3, "").lower() or base64.b64decode(encoded).hex()
                if urls := tuple(text for key, text in asked if key == 1):
                    known = f"{algorithm or 'sha256'}:{digest}" if digest else ""
                    yield whole.get(2, b"").decode(), urls, known


def fields(data: bytes, *, tagged: bool = True) -> Iterator[tuple[int, bytes]]:
    """Yield the bytes fields of a protobuf message, or messages one after another."""
    at, tag = 0, 0 if tagged else 2  # which no field has: its value, or length, comes next
    while match := _NUMBER.match(data, at):
        at = match.end()
        number = sum((byte & 0x7F) << 7 * place for place, byte in enumerate(match[0]))
        if not tag:
            tag = number
            continue
        if tag & 2 and (at := at + number) <= len(data):  # wire type of what has a length
            yield tag >> 3, data[at - number : at]
        tag = 0 if tagged else 2


def line(action: TimedAction) -> str:
    """Return an action and its duration for people."""
    return f"  {action.milliseconds / 1000:7.1f} s  {action.name}"


def read_profile(path: Path) -> tuple[tuple[TimedAction, ...], tuple[TimedAction, ...]]:
    """Return the critical path, first action first, and the slowest actions, slowest first.

    A profile only informs people: one that is missing, cut short or of another shape gives none.
    """
    try:
        with gzip.open(path, "rt", encoding="utf-8", errors="replace") as file:
            events = json.load(file)["traceEvents"]
    except (OSError, EOFError, ValueError, KeyError, TypeError):
        return (), ()
    actions = sorted(_timed(events, "action processing"), key=lambda item: -item.milliseconds)
    return tuple(_timed(events, "critical path component")), tuple(actions[:SLOWEST])


def _timed(events: list[dict[str, Any]], category: str) -> Iterator[TimedAction]:
    for event in events:
        name = str(event.get("name", ""))
        if event.get("cat") != category or "BazelWorkspaceStatusAction" in name:
            continue
        name = name.removeprefix("action '").removesuffix("'")
        yield TimedAction(name=name, milliseconds=round(float(event.get("dur", 0)) / 1000))
