"""Every text of Docker and Podman that is matched, and what it means.

Engines have no codes for most of what goes wrong. Each text below was printed by the engine and
version in tests/base/container/test_words.py, which has the whole output; a newer engine that words
something in another way gets its line here and there.
"""

import re
from collections.abc import Mapping
from enum import Enum
from typing import Final, TypeVar

_Meaning = TypeVar("_Meaning")
_HELP: Final = re.compile(r"(See|Run) '\S+ .*help|(Usage|Examples?):", re.IGNORECASE)
_ERROR: Final = re.compile(r"\b(error|invalid argument|failed)\b", re.IGNORECASE)


class Trouble(Enum):
    """What a client can report; the value is the texts that report it, in small letters."""

    NO_SPACE = ("no space left",)
    # before its client's first request, and while one is under way
    NO_DAEMON = (
        "cannot connect to the docker daemon", "failed to connect to the docker api",
        "cannot connect to podman", "during connect", "error reading from server",
        "code = unavailable", "closing transport", "\nunexpected eof",
    )  # fmt: skip
    NO_PERMISSION = ("permission denied",)
    CGROUP = ("cgroup",)
    NO_IMAGE = ("no such image", "image not known", "unable to find image")
    NO_MOUNT = ("bind source path", "no such file or directory: ", "mount", "statfs")
    OTHER_ARCHITECTURE = ("exec format error",)
    LIMIT = ("rlimit",)
    NAME_TAKEN = ("already in use",)
    NO_PROGRAM = ("not found", "no such file", "chdir")
    NOT_IN_REGISTRY = ("manifest unknown", "not found")
    NOT_LOGGED_IN = ("denied", "unauthorized")
    # of a build's steps: the programs that our Dockerfiles call, which print it themselves
    NO_PACKAGE_MANAGER = ("neither apt-get nor dnf",)
    NO_NETWORK = (
        "network bridge not found", "could not resolve", "temporary failure resolving",
        "cannot download", "unable to connect",
    )  # fmt: skip
    NO_SHELL = ("/bin/sh: no such file", "exec /bin/sh failed", '"/bin/sh": stat')
    NO_PACKAGE = ("unable to locate package", "no match for argument")

    def is_in(self, output: str) -> bool:
        """Return whether a client that printed `output` reports this."""
        return any(words in output.lower() for words in self.value)


def meaning(output: str, known: Mapping[Trouble | None, _Meaning]) -> _Meaning:
    """Return the entry of `known` for the first trouble in `output`, or the one for None."""
    return known[next((trouble for trouble in known if trouble and trouble.is_in(output)), None)]


def headline(output: str) -> str:
    """Return the line of a client's output that states the error.

    That is the last line with "error" or the like in it, else the last that is no hint on usage.
    """
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    rest = [line for line in lines if not _HELP.match(line)]
    errors = [line for line in rest if _ERROR.search(line)]
    return next(iter([*errors[-1:], *rest[-1:], *lines[-1:]]), "")
