"""System packages on Debian and Ubuntu: which are missing, and installing them as root.

Standard library only: the bootstrap of `build/ci_build` uses it before anything is installed.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from rocwheel.base.errors import HostError
from rocwheel.base.process import Command, Runner

LOCKED: Final = 600  # seconds to wait for dpkg's lock
# What Bazel needs to build the miniature workspace: Bazel, compilers, a ROCm to take apart.
MINIATURE_PACKAGES: Final = (
    "bazel-bootstrap",
    "bazel-rules-java",
    "bazel-rules-proto",
    "bazel-skylib",
    "clang-19",
    "clang-tools-19",
    "g++",
    "libamdhip64-dev",
    "libc6-dev",
    "lld-19",
    "llvm-19",
    "python3-dev",
    "rocm-device-libs",
)


def present() -> bool:
    return Path("/etc/debian_version").is_file()


def missing(packages: Sequence[str], *, runner: Runner) -> tuple[str, ...]:
    query = ("dpkg-query", "--show", "--showformat=${Package} ${db:Status-Status}\n", *packages)
    done = runner.run(Command(argv=query), check=False)  # exits 1 when it does not know one of them
    installed = done.output.splitlines()
    return tuple(package for package in packages if f"{package} installed" not in installed)


def install_commands(packages: Sequence[str]) -> tuple[Command, ...]:
    """Return the commands that install packages; they wait while another program holds dpkg's lock.

    A fresh machine in a cloud installs its updates.
    """
    quiet, waits = {"DEBIAN_FRONTEND": "noninteractive"}, f"--option=DPkg::Lock::Timeout={LOCKED}"
    install = ("install", "--yes", "--no-install-recommends", *packages)
    lines = (("update",), install)
    return tuple(Command(argv=("apt-get", waits, *words), env=quiet) for words in lines)


def ensure(
    packages: Sequence[str], *, runner: Runner, root: bool, say: Callable[[str], None]
) -> tuple[str, ...]:
    """Install what is missing, and print it before; return it.

    Raises HostError with the one command to run when this user may not install packages, or this
    is no Debian; CommandError when apt-get fails.
    """
    if not present():
        raise HostError(
            "this is not Debian or Ubuntu: system packages cannot be installed here",
            hint=f"install what these Debian packages hold: {' '.join(packages)}",
        )
    needed = missing(packages, runner=runner)
    if not needed:
        return ()
    if not root:
        raise HostError(
            f"{len(needed)} system packages are missing: {' '.join(needed)}",
            hint="run: sudo apt-get update && sudo apt-get install "
            f"--no-install-recommends {' '.join(needed)}",
        )
    say(f"installing system packages: {' '.join(needed)}")
    say(f"   (another installation is waited for, at most {LOCKED // 60} minutes)")
    for command in install_commands(needed):
        runner.run(command)
    return needed
