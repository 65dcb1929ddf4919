"""The main job in a container: the same bytes as on the host, and nothing left behind.

With all random moments of Ctrl-C and kills, of which one each is tried otherwise:

    ROCWHEEL_KILL_MOMENTS=30 python3 tests/run.py tests/e2e/test_container.py
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from e2e.conftest import EXECUTABLE, ROOT, World, by_hand
from support import engines
from support.engines import SYSTEM
from support.tiers import merge_tries

MOMENTS = int(os.environ.get("ROCWHEEL_KILL_MOMENTS", "1"))

pytestmark = [
    pytest.mark.needs("bazel", "clang-19", "cc", "dockerd", "podman", "mmdebstrap"),
    pytest.mark.slow,
    pytest.mark.xdist_group("containers"),
    pytest.mark.timeout(2400 + 120 * MOMENTS),
]

UID = 1234
WORKSPACE = ROOT / "examples" / "miniature" / "workspace"
# An ordinary user that can still read a checkout and a Python below root's home, as CI has them.
AS_USER = (
    "setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups",
    "--inh-caps=-all,+dac_read_search", "--ambient-caps=+dac_read_search",
    "--bounding-set=-all,+dac_read_search",
)  # fmt: skip


class Inside(World):
    """A world whose builds run in a container, under Docker as an ordinary user."""

    engine: engines.TestEngine
    image: str
    options: list[str]

    def start(self, *arguments, **env):
        return self.popen(sys.executable, str(EXECUTABLE), *arguments, **env)

    def paste(self, lines: list[str]) -> None:
        """What a user's shell does with these lines."""
        process = self.popen("sh", "-e", "-c", "\n".join(lines))
        _, said = process.communicate(timeout=900)
        assert process.returncode == 0, said[-3000:]

    def popen(self, *argv, **env):
        user = AS_USER if self.engine.kind == "docker" else ()
        return subprocess.Popen(
            [*user, *argv],
            cwd=self.folder,
            env={
                **os.environ,
                **self.engine.env,
                "PATH": f"{SYSTEM}:{os.environ['PATH']}",
                "HOME": str(self.folder),
                "XDG_CACHE_HOME": str(self.folder / "cache"),
                "PYTHONDONTWRITEBYTECODE": "1",
                **env,
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def demo(self, *more, **env):
        return self.start(
            "--json", "demo", f"--executor={self.engine.kind}", f"--builder-image={self.image}",
            *self.options, *more, **env,
        )  # fmt: skip

    def owners(self) -> set[int]:
        """Who owns what lies in the world's folder."""
        return {path.lstat().st_uid for path in self.folder.rglob("*")}

    @property
    def uid(self) -> int:
        return UID if self.engine.kind == "docker" else 0

    def left(self) -> list[str]:
        """Our containers, and processes of ours: clients of the engine, and what runs inside."""
        ours = str(self.folder).encode()
        found = [name for name in self.engine.containers() if name.startswith("rocwheel-")]
        for process in Path("/proc").iterdir():
            with suppress(OSError):
                # a container's processes see our folders mounted, a client has our environment
                files = [
                    process / name for name in ("environ", "mountinfo") if process.name.isdigit()
                ]
                if any(ours in file.read_bytes() for file in files):
                    found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        return found

    @contextmanager
    def watched(self):
        """A PATH whose client of the engine notes what it is asked to do; what it noted."""
        folder = Path(tempfile.mkdtemp(prefix="watched-", dir=self.folder))
        path, log = f"{SYSTEM}:{os.environ['PATH']}", folder / "log"
        client = folder / self.engine.kind
        program = shutil.which(self.engine.kind, path=path)
        client.write_text(f'#!/bin/sh\necho "$1" >> "{log}"\nexec "{program}" "$@"\n')
        log.touch()
        for item in (client, log, folder):
            item.chmod(0o755)
            os.chown(item, self.uid, self.uid)
        noted: list[str] = []
        yield f"{folder}:{path}", noted
        noted += log.read_text().split()
        shutil.rmtree(folder)

    def kill_clients(self) -> None:
        """Kill the clients of the engine that this world's command waits for."""
        for process in Path("/proc").iterdir():
            with suppress(OSError):
                words = (process / "cmdline").read_bytes().split(b"\0")
                if words[0] != self.engine.kind.encode() or not {b"run", b"exec"} & set(words[1:2]):
                    continue
                if str(self.folder).encode() in (process / "environ").read_bytes():
                    os.kill(int(process.name), signal.SIGKILL)


def finished(process, **wanted):
    out, err = process.communicate(timeout=900)
    assert process.returncode == wanted.get("status", 0), err[-4000:]
    return json.loads(out) if out else {}


@pytest.fixture(scope="module", params=merge_tries("docker", of=["docker", "podman"]))
def inside(request, on_host):
    with engines.ENGINES[request.param]() as engine:
        # access(2) asks for the real user, who may not pass through pytest's own folders
        folder = Path(tempfile.mkdtemp(prefix="rocwheel-inside-"))
        folder.chmod(0o755)
        world = Inside(folder)
        world.engine = engine
        world.image = engines.with_builder(engine)
        world.options = ["--python-versions=3.11"]
        # the host's own disk cache, and the tarball it made
        unfinished = shutil.ignore_patterns("tmp")  # of a build beside this one
        for kept in ("bazel-disk", "demo"):
            shutil.copytree(on_host.cache / kept, world.cache / kept, ignore=unfinished)
        for path in (world.folder, *world.folder.rglob("*")):
            os.chown(path, world.uid, world.uid, follow_symlinks=False)
        world.first = finished(world.demo())
        yield world
        shutil.rmtree(folder, ignore_errors=True)
        assert not [name for name in engine.containers() if name.startswith("rocwheel-")]


def digests(house: Path) -> dict[str, str]:
    return {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in (house / "current").glob("*.whl")
    }


def test_the_wheels_are_those_of_the_host(inside, on_host):
    ours, theirs = digests(inside.wheelhouse), digests(on_host.wheelhouse)
    assert len(ours) == 3
    assert ours.items() <= theirs.items()


def test_the_manifest_differs_in_the_image_alone(inside, on_host):
    ours, theirs = (
        json.loads((world.wheelhouse / "current" / "manifest.json").read_bytes())
        for world in (inside, on_host)
    )
    assert theirs.pop("builder_image") == ""
    identity = engines.image_config(inside.engine, inside.image)["Id"].removeprefix("sha256:")
    assert ours.pop("builder_image") == f"sha256:{identity}"
    ours_alone = {wheel["filename"] for wheel in ours["wheels"]}  # the host built for more CPythons
    theirs["wheels"] = [wheel for wheel in theirs["wheels"] if wheel["filename"] in ours_alone]
    theirs["pythons"] = ["3.11"]
    assert ours == theirs
    build = json.loads((inside.wheelhouse / "current" / "build.json").read_bytes())
    assert build["executor"] == inside.engine.kind
    assert build["builder"]["config"] == f"sha256:{identity}"
    assert build["builder"]["sandbox"] == "processwrapper-sandbox"
    assert str(inside.folder) not in build["bazel"]["invocations"][0]["command"]


def test_it_profits_from_the_hosts_disk_cache(inside):
    assert inside.first["bazel"]["cache_hits"] > 0


def test_everything_made_is_the_callers(inside):
    assert inside.owners() == {inside.uid}
    assert not list((inside.cache / "containers").iterdir())


@pytest.fixture(scope="module")
def again(inside):
    """What the demo says without a change, and what the engine's client was asked to do for it."""
    with inside.watched() as (path, noted):
        document = finished(inside.demo(PATH=path))
    return document, noted


def test_a_fresh_container_without_change_runs_no_action(again):
    document, _ = again
    assert document["bazel"]["actions_executed"] == document["bazel"]["cache_hits"] == 0
    assert document["new"] is False


def test_what_an_image_has_is_not_asked_by_a_container_of_its_own(again):
    """Its compilers were told before; programs are asked each time. A demo imports nothing there."""
    _, noted = again
    build, programs = 1, 1
    assert noted.count("run") == build + programs, noted


@pytest.mark.soak
def test_a_wiped_output_base_comes_from_the_disk_cache(inside):
    subprocess.run(["chmod", "-R", "u+w", str(inside.cache / "bazel-in-containers")], check=True)
    shutil.rmtree(inside.cache / "bazel-in-containers")
    again = finished(inside.demo())
    assert again["bazel"]["actions_executed"] <= inside.first["bazel"]["actions_executed"]
    assert again["bazel"]["cache_hits"] > 10
    assert again["new"] is False


@pytest.mark.soak
def test_two_builds_at_once_share_the_caches(inside):
    if inside.engine.kind == "podman":
        pytest.skip("the same caches and the same locks under Docker")
    both = [inside.demo(), inside.demo("--wheelhouse=second")]
    documents = [finished(process) for process in both]
    assert len({item["manifest_sha256"] for item in documents}) == 1
    assert sum(item["bazel"]["actions_executed"] for item in documents) == 0


def test_the_dry_run_starts_nothing_and_can_be_pasted(inside):
    shown = finished(inside.demo("--dry-run"))["plan"]
    starts = [line for line in shown if f"{inside.engine.kind} run " in line]
    commands = [line for line in shown if f"{inside.engine.kind} exec " in line]
    assert len(starts) == 1
    assert "--read-only" in starts[0]
    assert "--network=none" in starts[0]
    assert any("/usr/bin/bazel" in line for line in commands)
    inside.paste(shown)
    assert inside.left() == []
    assert not list((inside.cache / "containers").iterdir())


WAYS = ("SIGINT", "SIGTERM", "SIGKILL", "client")


@pytest.mark.parametrize("how", merge_tries("SIGKILL", of=WAYS))
def test_nothing_is_left_at_any_moment(how, inside):
    """A container, a process, a file of root: none."""
    engine = inside.engine
    stranger = f"stranger-{how.lower()}"
    engine("run", "--detach", "--network=none", f"--name={stranger}", inside.image, "sleep", "900")
    try:
        for _ in range(MOMENTS):
            process = inside.demo()
            moment = random.uniform(0.3, 12.0)
            time.sleep(moment)
            if how == "client":
                inside.kill_clients()
            else:
                process.send_signal(getattr(signal, how))
            process.communicate(timeout=900)
            until = time.monotonic() + 240
            while left := inside.left():
                assert time.monotonic() < until, f"after {moment:.2f} s: {left}"
                time.sleep(0.2)
            assert inside.owners() == {inside.uid}
            assert stranger in engine.containers()
    finally:
        engine.remove(stranger)


def test_after_all_that_the_next_run_finishes_the_work(inside):
    assert finished(inside.demo())["new"] is False
    folders = {item.name for item in (inside.cache / "containers").iterdir()}
    assert folders == set()  # what the killed ones left is cleared away


def building(world) -> list[str]:
    """The options of a build of the miniature by hand, for the image's own CPython."""
    return [*by_hand(world, WORKSPACE), *where(world)]


def where(world) -> list[str]:
    return [f"--executor={world.engine.kind}", f"--builder-image={world.image}"]


@pytest.mark.soak
def test_a_set_is_built_again_in_a_container_byte_by_byte(inside):
    """As root where the first was an ordinary user's, in other folders, with an empty cache."""
    with tempfile.TemporaryDirectory(prefix="rocwheel-again-") as name:
        again = Inside(Path(name))
        again.folder.chmod(0o755)  # the ordinary user reads its sources there
        again.engine, again.image, again.options = inside.engine, inside.image, []
        for jax in (again.folder / "jax", again.folder / "another/jax"):
            shutil.copytree(WORKSPACE, jax)
        words = [*by_hand(inside, again.folder / "jax"), *where(inside), "--allow-dirty"]
        words += ["--python-versions=3.11", "--wheelhouse=hand"]
        first = finished(inside.start("--json", "dist_wheels", *words))
        line = ["--json", "rebuild", first["manifest"], words[0]]
        line += [f"--jax-source-dir={again.folder}/another/jax", "--allow-dirty", *where(again)]
        made = finished(World.start(again, *line, **inside.engine.env))
        assert (made["state"], made["wheels"]) == ("reproduced", {}), made
        record = json.loads((Path(made["statement"]).parent / "build.json").read_bytes())
        assert sum(run["actions_executed"] for run in record["bazel"]["invocations"]) > 0
        subprocess.run(["chmod", "-R", "u+w", name], check=True)


@pytest.mark.soak
def test_one_changed_source_costs_as_many_actions_as_on_the_host(inside, on_host):
    if inside.engine.kind == "podman":
        pytest.skip("the same image and the same code under Docker")
    sources = inside.folder / "sources"
    shutil.copytree(WORKSPACE, sources)
    changed = sources / "jaxlib" / "_jax.cc"
    options = [item for item in building(inside) if not item.startswith("--jax-source-dir")]
    options += [f"--jax-source-dir={sources}", "--python-versions=3.11", "--allow-dirty"]
    there = [item for item in options if not item.startswith(("--executor", "--builder-image"))]

    def build(turn: int) -> list[int]:
        told = finished(inside.start("--json", "dist_wheels", *options, f"--wheelhouse=in{turn}"))
        done = on_host.run("--json", "dist_wheels", *there, f"--wheelhouse=out{turn}")
        assert done.returncode == 0, done.stderr[-4000:]
        return [item["bazel"]["actions_executed"] for item in (told, done.document)]

    build(1)
    changed.write_text(changed.read_text() + "\n// changed\n")
    here, host = build(2)
    assert here == host > 0


def test_shell_is_the_container_of_a_build_and_ends_as_its_command_does(inside):
    """A person's Bazel finds everything done, and GPUs that the machine has would be there."""
    script = "id -u; pwd; ls /rocwheel; ls /rocwheel/configure/*.bazelrc || exit 1; exit 255"
    shell = inside.start(
        "shell", *building(inside), "--python-versions=3.11", "--", "sh", "-c", script
    )
    out, err = shell.communicate(timeout=600)
    assert shell.returncode == 255, err[-3000:]
    uid, where, *rest = out.split()
    assert (int(uid), where) == (inside.uid, "/rocwheel/source")
    assert {"bazel", "disk-cache", "rocm", "source"} <= set(rest)
    assert any(word.endswith(".bazelrc") for word in rest)


def test_a_terminated_shell_ends_with_what_runs_in_it(inside):
    """A closed terminal, a cancelled job: only we are told, and the command must end with us."""
    words = ("--python-versions=3.11", "--", "sh", "-c", "echo there; sleep 900")
    others = {*inside.left()}  # such as Bazel's server of a build on the host
    shell = inside.start("shell", *building(inside), *words)
    assert shell.stdout.readline() == "there\n"
    assert {*inside.left()} - others
    shell.send_signal(signal.SIGTERM)
    _, err = shell.communicate(timeout=300)
    assert shell.returncode == 130, err[-3000:]
    until = time.monotonic() + 240
    while left := {*inside.left()} - others:
        assert time.monotonic() < until, left
        time.sleep(0.2)


def test_turns_of_dev_share_one_kept_container_and_its_server(inside):
    if inside.engine.kind == "podman":
        pytest.skip("the same image and the same code under Docker")
    environment = inside.folder / "environment"
    subprocess.run(["/usr/bin/python3", "-m", "venv", environment], check=True)
    subprocess.run(["chown", "--recursive", f"{inside.uid}:{inside.uid}", environment], check=True)
    turn = ("--json", "dev", *building(inside), f"--environment={environment}")

    def kept() -> list[str]:
        listed = ("ps", "--filter=label=org.rocwheel.kept", "--format={{.Names}}")
        return inside.engine(*listed).split()

    turn = (*turn, "--keep-container=10m")
    try:
        shown = finished(inside.start(*turn, "--dry-run"))
        assert "after 10 min without a turn" in "\n".join(shown["plan"])
        assert kept() == []
        finished(inside.start(*turn))
        (first,) = kept()
        with inside.watched() as (path, noted):
            again = finished(inside.start(*turn, PATH=path))
        assert again["bazel"]["actions_executed"] == 0
        programs = 1  # of the image are asked each time
        assert noted.count("run") == programs, noted
        assert kept() == [first]
        shown = finished(inside.start(*turn, "--dry-run"))["plan"]
        lines = [line for line in shown if "bazel build" in line or " bazel " in line]
        assert not any(f"{inside.engine.kind} run " in line for line in shown)
        assert all(f" exec --workdir=/rocwheel/source {first} " in line for line in lines), lines
    finally:
        for name in kept():
            inside.engine.remove(name)


@pytest.mark.soak
def test_already_inside_the_image_the_manifest_is_the_same(inside, on_host):
    """As a job container of a CI: no engine, only the digest of the image."""
    if inside.engine.kind == "podman":
        pytest.skip("the same image and the same code under Docker")
    identity = engines.image_config(inside.engine, inside.image)["Id"]
    build = json.loads((inside.wheelhouse / "current" / "manifest.json").read_bytes())
    words = [
        *("run", "--rm", "--network=none", f"--user={inside.uid}:{inside.uid}"),
        f"--volume={ROOT}:{ROOT}:ro",
        f"--volume={inside.folder}:/work",
        *(f"--env={pair}" for pair in ("HOME=/work", "XDG_CACHE_HOME=/work/cache", "GIT_CONFIG_COUNT=1",
                                       "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*")),
        *("--workdir=/work", inside.image, "/opt/rocwheel/venv/bin/python"),
    ]  # fmt: skip
    common = Path(subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--path-format=absolute", "--git-common-dir"],
        capture_output=True, text=True, check=True,
    ).stdout.strip())  # fmt: skip
    if not common.is_relative_to(ROOT):  # a linked worktree
        words.insert(1, f"--volume={common}:{common}:ro")
    tarball = next((inside.cache / "demo").glob("*/therock-dist-*.tar.gz"))
    options = [
        *(
            item
            for item in building(inside)
            if not item.startswith(("--executor", "--builder-image"))
        ),
        f"--therock-path=/work/{tarball.relative_to(inside.folder)}",
        "--python-versions=3.11",
        "--wheelhouse=own",
        "--allow-dirty",
    ]
    options.remove(f"--therock-path={tarball}")
    program = [str(EXECUTABLE), "dist_wheels"]
    unsaid = subprocess.run(
        ["docker", *words, *program, *options],
        env={**os.environ, **inside.engine.env}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert unsaid.returncode == 3, unsaid.stderr[-3000:]
    assert "its digest is not given" in unsaid.stderr
    inside.engine(*words, *program, *options, f"--builder-image={identity}")
    own = json.loads((inside.folder / "own" / "current" / "manifest.json").read_bytes())
    ours = {item["filename"]: item["sha256"] for item in own["wheels"]}
    theirs = {
        item["filename"]: item["sha256"] for item in build["wheels"] if item["filename"] in ours
    }
    assert ours == theirs
    for document in (own, build):
        # the demo serves its tarball under a URL, and says itself what is this machine's
        for key in ("wheels", "pythons", "rocm"):
            document.pop(key)
        document["options"].pop("bazel_options")
    assert own == build
