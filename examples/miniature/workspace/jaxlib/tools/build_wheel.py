"""Packs files into a wheel whose bytes depend on nothing but its inputs; an action runs it.

Needs only the standard library, so that it runs isolated (`python -I -S`). The version is the base
version plus WHEEL_VERSION_SUFFIX, in canonical form (PEP 440), whatever form the suffix has: where
the two differ, the file gets another name than Bazel was promised, as with JAX's own wheel builder.
"""

from __future__ import annotations

import argparse
import base64
import csv
import hashlib
import io
import os
import re
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path

_VERSION = re.compile(
    r"v?(?P<release>\d+(?:\.\d+)*)"
    r"(?:[._-]?(?P<pre>a|b|c|rc|alpha|beta|pre|preview)[._-]?(?P<pre_n>\d*))?"
    r"(?:[._-]?(?P<post>post|rev|r)[._-]?(?P<post_n>\d*))?"
    r"(?:[._-]?(?P<dev>dev)[._-]?(?P<dev_n>\d*))?"
    r"(?:\+(?P<local>[a-z0-9]+(?:[._-][a-z0-9]+)*))?"
)
_PRE = {"alpha": "a", "beta": "b", "c": "rc", "pre": "rc", "preview": "rc"}


def canonical_version(text: str) -> str:
    """Normalise a version without epoch (PEP 440); SystemExit when it is none."""
    found = _VERSION.fullmatch(text.lower())
    if found is None:
        raise SystemExit(f"not a version: {text}")
    version = ".".join(str(int(part)) for part in found["release"].split("."))
    if found["pre"]:
        version += _PRE.get(found["pre"], found["pre"]) + str(int(found["pre_n"] or 0))
    if found["post"]:
        version += f".post{int(found['post_n'] or 0)}"
    if found["dev"]:
        version += f".dev{int(found['dev_n'] or 0)}"
    if found["local"]:
        parts = re.split(r"[._-]", found["local"])
        version += "+" + ".".join(str(int(part)) if part.isdigit() else part for part in parts)
    return version


def fill_in_version(source: str, version: str, git_hash: str | None) -> str:
    """Write version and commit into the text of a version.py; SystemExit when a line is missing."""
    values = {"_release_version": version}
    if git_hash:
        values["_git_hash"] = git_hash
    for name, value in values.items():
        source, count = re.subn(
            rf"^({name}\b[^=\n]*= ).*$", rf'\g<1>"{value}"', source, flags=re.MULTILINE
        )
        if count != 1:
            raise SystemExit(f"version.py: expected one line that sets {name}, found {count}")
    return source


def _metadata(options: argparse.Namespace, version: str) -> str:
    lines = [
        "Metadata-Version: 2.4",
        f"Name: {options.name.replace('_', '-')}",
        f"Version: {version}",
        f"Summary: {options.summary}",
        "License-Expression: Apache-2.0",
    ]
    if options.requires_python:
        lines.append(f"Requires-Python: {options.requires_python}")
    lines += [f"Requires-Dist: {text.format(version=version)}" for text in options.requires]
    return "\n".join(lines) + "\n"


def _wheel_file(options: argparse.Namespace) -> str:
    lines = [
        "Wheel-Version: 1.0",
        "Generator: miniature (1)",
        f"Root-Is-Purelib: {str(options.purelib).lower()}",
        f"Tag: {options.tag}",
    ]
    return "\n".join(lines) + "\n"


def _entry_points(options: argparse.Namespace) -> str:
    groups: dict[str, list[str]] = {}
    for text in options.entry_point:
        group, _, line = text.partition(":")
        groups.setdefault(group, []).append(line)
    return "\n".join(
        "\n".join([f"[{group}]", *lines]) + "\n" for group, lines in sorted(groups.items())
    )


def _record(members: Mapping[str, bytes], own_name: str) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for name, content in members.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        writer.writerow([name, f"sha256={digest}", len(content)])
    writer.writerow([own_name, "", ""])
    return text.getvalue()


def _mode(name: str) -> int:
    """The modes JAX's wheels have: shared libraries executable, RECORD group-writable."""
    if name.endswith(".so"):
        return 0o100755
    return 0o100664 if name.endswith("/RECORD") else 0o100644


def write_wheel(path: Path, members: Mapping[str, bytes], *, epoch: int) -> None:
    """Write the members in their order, dated `epoch` (seconds), or 1980 when that is earlier."""
    date = time.gmtime(max(epoch, 315532800))[:6]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            info = zipfile.ZipInfo(name, date)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.create_system = 3  # Unix, so that the mode counts
            info.external_attr = _mode(name) << 16
            archive.writestr(info, content)


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Pack files into a wheel.")
    parser.add_argument("--name", required=True, help="project name, with underscores")
    parser.add_argument("--version", required=True, help="base version")
    parser.add_argument("--tag", required=True, help="python-abi-platform")
    parser.add_argument("--summary", required=True)
    parser.add_argument("--top-level", required=True)
    parser.add_argument("--requires-python")
    parser.add_argument("--requires", action="append", default=[], metavar="REQUIREMENT")
    parser.add_argument("--entry-point", action="append", default=[], metavar="GROUP:LINE")
    parser.add_argument("--purelib", action="store_true")
    parser.add_argument("--version-module", metavar="PATH", help="member to write the version into")
    parser.add_argument("--git-hash")
    parser.add_argument("--output-dir", type=Path, required=True)
    parser.add_argument("files", nargs="+", metavar="MEMBER=FILE")
    return parser


def main() -> None:
    options = _arguments().parse_args()
    version = canonical_version(options.version + os.environ.get("WHEEL_VERSION_SUFFIX", ""))
    pairs = sorted(text.split("=", 1) for text in options.files)
    files = {name: Path(source).read_bytes() for name, source in pairs}
    if options.version_module:
        text = files[options.version_module].decode()
        files[options.version_module] = fill_in_version(text, version, options.git_hash).encode()
    info = f"{options.name}-{version}.dist-info"
    members = dict(files)
    members[f"{info}/METADATA"] = _metadata(options, version).encode()
    members[f"{info}/WHEEL"] = _wheel_file(options).encode()
    if options.entry_point:
        members[f"{info}/entry_points.txt"] = _entry_points(options).encode()
    members[f"{info}/top_level.txt"] = f"{options.top_level}\n".encode()
    members[f"{info}/RECORD"] = _record(members, f"{info}/RECORD").encode()
    wheel = options.output_dir / f"{options.name}-{version}-{options.tag}.whl"
    write_wheel(wheel, members, epoch=int(os.environ.get("SOURCE_DATE_EPOCH", "0")))


if __name__ == "__main__":
    main()
