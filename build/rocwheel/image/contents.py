"""Finds what an image has for building wheels, once per digest, by a script that runs in it."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from rocwheel.base import container, files
from rocwheel.base.errors import ConfigError, HostError
from rocwheel.base.host.machine import ASK, CompilerPair, Interpreter, best, interpreter, preferred
from rocwheel.base.process import Command, HostRunner, Runner, guest
from rocwheel.base.values import Value, replace
from rocwheel.base.versions import CPYTHON_RANGE, CPYTHONS, PythonVersion

TOOL: Final = "/opt/rocwheel"  # where a builder image has rocwheel itself
# POSIX shell, since an image that lacks everything must still be able to say so.
SCRIPT: Final = r"""
echo "architecture $(uname -m)"
echo "glibc $(getconf GNU_LIBC_VERSION 2>/dev/null)"
folders=$(echo "$PATH" | tr ':' ' ')
seen=:
for folder in $folders /opt/python/cp3*/bin; do
    real=$(cd "$folder" 2>/dev/null && pwd -P) || continue
    case "$seen" in *":$real:"*) continue ;; esac  # /bin is /usr/bin
    seen="$seen$real:"
    for name in bazel bazelisk; do
        test -x "$folder/$name" || continue
        echo "bazel $folder/$name $("$folder/$name" --version 2>&1 | tail -n 1)"
    done
    for file in "$folder/clang" "$folder"/clang-[0-9]*; do
        number=${file##*/clang}
        case "$number" in ''|-[0-9]|-[0-9][0-9]) ;; *) continue ;; esac
        test -x "$file" || continue
        other="$folder/clang++$number"
        test -x "$other" || other="$folder/clang++"
        test -x "$other" || other=none
        echo "clang $file $other $("$file" -dumpversion)"
    done
    for name in python3 @PYTHONS@; do
        file="$folder/$name"
        test -x "$file" && echo "python $file $("$file" -c "$1" 2>/dev/null)"
    done
done
true
""".replace("@PYTHONS@", " ".join(PythonVersion.parse(text).executable for text in CPYTHONS))


class FoundCompiler(Value, frozen=True, kw_only=True):
    """A clang on the image's PATH; `cxx` is "" where its C++ twin is missing."""

    cc: str
    cxx: str
    major: int

    @property
    def pair(self) -> CompilerPair:
        return CompilerPair(cc=guest(self.cc), cxx=guest(self.cxx), major=self.major)


class FoundBazel(Value, frozen=True, kw_only=True):
    """A Bazel of the image; `version` is "unknown" if it prints none."""

    path: str
    version: str


class ImageFacts(Value, frozen=True, kw_only=True):
    """What an image has for a build."""

    architecture: str
    glibc: str
    bazels: tuple[FoundBazel, ...]
    compilers: tuple[FoundCompiler, ...]
    pythons: tuple[str, ...]  # JSON: what each CPython answered about itself

    @property
    def clang(self) -> CompilerPair:
        """The plain `clang`, else its newest. Raises HostError without its twin."""
        pairs = [item for item in self.compilers if item.cxx]
        if not pairs:
            raise HostError("clang with its C++ twin: not in the image", hint=BUILD_ONE)
        return preferred("clang", pairs, lambda item: item.cc).pair

    @property
    def interpreters(self) -> tuple[Interpreter, ...]:
        """The CPythons, one per version, those with headers first."""
        return best(map(interpreter, self.pythons))

    def bazel(self, wanted: str) -> FoundBazel | None:
        """Return the Bazel of the version that a tree asks for; any, when it asks for none."""
        return next((item for item in self.bazels if wanted in {"", item.version}), None)

    def lacks(self, *, compiler: str, bazel: str, architecture: str) -> tuple[str, ...]:
        """Return everything that a build needs and this image lacks."""
        missing = []
        if architecture != self.architecture:
            missing.append(f"it is for {self.architecture}, this machine is {architecture}")
        if self.bazel(bazel) is None:
            missing.append(f"Bazel {bazel}".strip())
        if compiler != "hermetic" and not any(item.cxx for item in self.compilers):
            missing.append(f"{compiler} with its C++ twin")
        if not any(item.headers for item in self.interpreters):
            missing.append(f"a CPython {CPYTHON_RANGE} with its headers")
        return tuple(missing)


BUILD_ONE: Final = "make one that has it: `image build`"


def ask(
    spec: container.ContainerSpec,
    key: str,
    *,
    cache: Path,
    runner: HostRunner,
    remember: bool = True,
) -> ImageFacts:
    """Ask the image of `spec`, or recall its answer; `key` is its config digest.

    The answer is cached if `remember` is set and the cache can be written. Raises HostError when
    the image does not start or has no shell.
    """
    file = cache / "images" / f"{key.removeprefix('sha256:')}.facts.json"
    with suppress(OSError, ConfigError):  # not yet asked, or by another version of rocwheel
        return ImageFacts.from_bytes(file.read_bytes(), name=str(file))
    with entered(spec, runner=runner, remember=remember) as inside:
        facts = examine(inside)
    if remember:
        with suppress(OSError):  # then it is asked again
            file.parent.mkdir(parents=True, exist_ok=True)
            files.write(file, facts.to_bytes())
    return facts


@contextmanager
def entered(
    spec: container.ContainerSpec, *, runner: HostRunner, remember: bool = True
) -> Iterator[container.Container]:
    """Start a container for a question; without `remember` its folder lies outside the cache."""
    with ExitStack() as stack:
        if not remember or not files.is_writable(spec.folder):
            folder = stack.enter_context(TemporaryDirectory(prefix="rocwheel-ask-"))
            spec = replace(spec, folder=Path(folder) / spec.run)
        yield stack.enter_context(container.running(spec, runner=runner))


def examine(runner: Runner) -> ImageFacts:
    """Run the script where `runner` runs commands."""
    command = Command(argv=("/bin/sh", "-c", SCRIPT, "facts", ASK), timeout=120)
    facts = defaultdict[str, list[str]](list)
    for line in runner.capture(command).splitlines():
        name, _, rest = line.partition(" ")
        facts[name].append(rest.strip())
    answers = (line.partition(" ") for line in facts["bazel"])
    bazels = [(path, text.removeprefix("bazel ").strip()) for path, _, text in answers]
    return ImageFacts(
        architecture="".join(facts["architecture"][:1]),
        glibc="".join(facts["glibc"][:1]).removeprefix("glibc "),
        bazels=tuple(
            FoundBazel(path=path, version={"no_version": "unknown"}.get(version, version))
            for path, version in bazels
        ),
        compilers=tuple(map(_compiler, facts["clang"])),
        pythons=tuple(line.partition(" ")[2] for line in facts["python"]),
    )


def _compiler(line: str) -> FoundCompiler:
    cc, cxx, version = ([*line.split(" "), ""])[:3]
    major = version.split(".")[0]
    number = int(major) if major.isdigit() else 0
    return FoundCompiler(cc=cc, cxx="" if cxx == "none" else cxx, major=number)
