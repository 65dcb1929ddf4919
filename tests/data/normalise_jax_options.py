#!/usr/bin/env python3
"""Turns recordings of JAX's build CLI into the table `jax_options.json` beside this file.

    python tests/data/normalise_jax_options.py recordings.jsonl

A recording is what `build/build.py … --dry_run` printed and the rc file it wrote. The options in
effect are those of both, so the table joins them: rc file first, then what the command line adds,
shell quotes gone. Folders of the recording machine become `/recorded/…`. A request that gives the
same at several sources has one result for them.
"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

TABLE = Path(__file__).with_name("jax_options.json")


def effective(recording: dict) -> dict:
    """What Bazel would have been started with, in the order it would have counted."""
    text = json.dumps(recording)
    record = json.loads(text.replace("@ROOT@", "/recorded").replace("@TMP@", "/recorded/tmp"))
    options = [
        option for line in record["jax_configure_bazelrc"] for option in shlex.split(line)[1:]
    ]
    startup: list[str] = []
    command, targets, arguments = "", [], {}
    for line in record["bazel_command"]:
        words = shlex.split(line)
        verb = next(place for place, word in enumerate(words) if word in {"build", "run"})
        end = words.index("--") if "--" in words else len(words)
        startup, command, label = words[1:verb], words[verb], words[end - 1]
        options += [word for word in words[verb + 1 : end - 1] if word not in options]
        targets.append(label)
        if words[end + 1 :]:
            arguments[label] = words[end + 1 :]
    return {
        "exit_code": record["exit_code"],
        "startup": startup,
        "command": command,
        "options": options if record["exit_code"] == 0 else [],
        "targets": targets,
        "arguments": arguments,
    }


def main(path: Path) -> None:
    table: dict[str, dict] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        recording = json.loads(line)
        request = table.setdefault(
            recording["id"], {"note": recording["note"], "argv": recording["argv"], "results": []}
        )
        found = effective(recording)
        for result in request["results"]:
            if {**result, "refs": None} == {**found, "refs": None}:
                result["refs"].append(recording["jax_ref"])
                break
        else:
            request["results"].append({"refs": [recording["jax_ref"]], **found})
    TABLE.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
