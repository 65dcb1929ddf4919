"""Bazel 7.7: the one of Debian sid, in a root of its own, run from this machine.

Debian 12 has Bazel 4.2.3 and nothing newer; sid's 7.7.1 needs sid's libraries. So sid is unpacked into
the user's cache once, and a program beside it starts its Bazel there with this machine's /tmp and home
in place: paths are the same inside and outside. It takes root, for mounts and chroot.
"""

from __future__ import annotations

import fcntl
import re
import shutil
import subprocess
import zipfile
from pathlib import Path

from support import engines

VERSION = "7.7.1"
PACKAGES = "bazel-bootstrap,ca-certificates,g++,git,python3-dev"
PYTHON = "3.14"
# Where Debian's Bazel lies, and its modules in place of those of the Bazel central registry.
RC = """
startup --install_base=/usr/share/bazel
startup --trust_install_base
common --override_module=platforms=/usr/share/bazel/tools/platforms
common --override_module=rules_java=/usr/share/bazel/rules/java
common --override_module=rules_cc=/usr/share/bazel/rules/cc
common --override_module=bazel_features=/usr/share/bazel/tools/features
common --override_module=bazel_skylib=/usr/share/bazel/tools/skylib
common --override_module=rules_license=/usr/share/bazel/rules/license
common --override_module=rules_python=/usr/share/bazel/rules/python
common --override_module=rules_proto=/usr/share/bazel/rules/proto
"""
# Modules that Bazel's own tools name and no build here uses: a registry of empty ones has them.
UNUSED = {
    "apple_support": ("1.23.1",),
    "buildozer": ("7.1.2",),
    "protobuf": ("3.19.6", "21.7"),
    "zlib": ("1.3.1.bcr.3",),
}
# What `bazel mod` loads of one of them.
_EXTENSION = """
_repository = repository_rule(lambda ctx: ctx.file("BUILD", ""))
buildozer_binary = module_extension(
    implementation = lambda _ctx: _repository(name = "buildozer_binary"),
)
"""
_PROGRAM = """#!/bin/sh
for word; do
  case $word in --output_base=*) pid=$(cat "${{word#*=}}/server/server.pid.txt" 2>/dev/null) ;; esac
done
inside='cd "$0" && exec /usr/bin/bazel "$@"'
# only from its own mounts a client knows a server again
if [ -n "$pid" ] && [ -d "/proc/$pid/root/usr/share/bazel" ]; then
  exec nsenter --target="$pid" --mount --root --wd /bin/sh -c "$inside" "$PWD" "$@"
fi
exec unshare --mount sh -c '
  root=$1; shift
  mount -t proc proc "$root/proc" && mount --rbind /dev "$root/dev" || exit 8
  for folder in {folders}; do
    mkdir -p "$root$folder" && mount --rbind "$folder" "$root$folder" || exit 8
  done
  exec chroot "$root" /bin/sh -c "cd \\"\\$0\\" && exec /usr/bin/bazel \\"\\$@\\"" "$PWD" "$@"
' sh {root} "$@"
"""


def root() -> Path:
    """Return a folder with Debian sid and its Bazel; made once per machine, which takes minutes."""
    made = engines.folder() / f"sid-bazel-{VERSION}"
    made.parent.mkdir(parents=True, exist_ok=True)
    with (made.parent / "sid.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            scratch = made.with_name(f"{made.name}.unfinished")
            shutil.rmtree(scratch, ignore_errors=True)
            options = ("--variant=apt", f"--include={PACKAGES}", "--mode=root")
            # the clock of a test machine may be behind or ahead of the archive's
            clock = ('--aptopt=Acquire::Check-Valid-Until "false"',)
            subprocess.run(
                ["mmdebstrap", *options, *clock, "sid", str(scratch), engines.ARCHIVE],
                check=True,
                capture_output=True,
                timeout=1700,
            )
            scratch.rename(made)
        give_libraries(made)
    return made


def give_libraries(root: Path) -> None:
    """Copy what this machine's clang is linked with and sid no longer has: a ROCm brings that clang."""
    listed = subprocess.run(
        ["ldd", "/usr/bin/clang-19"], capture_output=True, text=True, check=True
    )
    folder = root / "usr/lib/x86_64-linux-gnu"
    for path in re.findall(r"=> (/\S+)", listed.stdout):
        if not (folder / Path(path).name).exists():
            shutil.copy(path, folder)


def program(folder: Path) -> Path:
    """Write a program that is Bazel 7.7 to who calls it, and return it."""
    path = folder / "bazel-7"
    shared = dict.fromkeys(("/tmp", "/etc/ssl/certs", str(Path.home()), str(engines.ROOT)))
    path.write_text(_PROGRAM.format(folders=" ".join(shared), root=root()))
    path.chmod(0o755)
    return path


def label(folder: Path) -> str:
    """Return the startup option that makes Debian's Bazel a release again."""
    jar = folder / "label.jar"
    with zipfile.ZipFile(jar, "w") as archive:
        archive.writestr("build-data.properties", f"build.label={VERSION}\n")
    return f"--host_jvm_args=-Xbootclasspath/a:{jar}"


def registry(folder: Path) -> str:
    """Make a registry of modules on disk; return the option that names it."""
    top = folder / "registry"
    for name, versions in UNUSED.items():
        for version in versions:
            stub = top / "stubs" / f"{name}-{version}"
            entry = top / "modules" / name / version
            module = f'module(name = "{name}", version = "{version}")\n'
            for place in (stub, entry):
                place.mkdir(parents=True, exist_ok=True)
                (place / "MODULE.bazel").write_text(module)
            (stub / "BUILD").touch()
            (entry / "source.json").write_text(f'{{"type": "local_path", "path": "{stub}"}}\n')
            (stub / "buildozer_binary.bzl").write_text(_EXTENSION)
    (top / "bazel_registry.json").write_text("{}\n")
    return f"--registry=file://{top}"
