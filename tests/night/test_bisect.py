"""The search for a commit: real histories and git's own choice, with played probes."""

from __future__ import annotations

import json
import math
import random
import shlex
import subprocess
from datetime import datetime, timezone
from typing import NamedTuple

import pytest
from support.night import PROGRAM, SETTINGS, World

from rocwheel.base.errors import ConfigError, HostError, SourceError
from rocwheel.base.git import Source
from rocwheel.base.process import HostRunner
from rocwheel.base.store.opening import open_store
from rocwheel.base.values import replace
from rocwheel.base.versions import timestamp
from rocwheel.night import bisect
from rocwheel.night.bisect import BisectRequest, NightSet
from rocwheel.night.probes import ProbeAnswer, Probes, Run, Side
from rocwheel.records.results import Outcome
from rocwheel.records.verdict import State
from rocwheel.release.ledger.nights import (
    CHECKOUT,
    Begun,
    Cell,
    Ended,
    Nights,
    WheelRecipe,
    WorstTest,
)

pytestmark = pytest.mark.xdist_group("bisect")
GOOD_RUN = Run(answer=ProbeAnswer.GOOD)


class History:
    """A repository of so many commits, of which every fifth merges a branch of two."""

    def __init__(self, folder, commits: int = 30) -> None:
        self.folder = folder
        self.git("init", "-q", "--bare", str(folder))
        self.git("config", "uploadpack.allowFilter", "true")
        stream = ""
        for number in range(1, commits + 1):
            subject = f"change {number - 1}"
            stream += (
                f"commit refs/heads/main\nmark :{number}\ncommitter Ann <a@b> {number} +0000\n"
            )
            stream += f"data {len(subject)}\n{subject}\n"
            if number % 5 == 1 and number > 1:  # the last two become a branch beside the main line
                stream += f"from :{number - 3}\nmerge :{number - 1}\n"
        self.git("fast-import", "--quiet", "--export-marks=marks", text=stream)
        marks = (line.split() for line in (folder / "marks").read_text().splitlines())
        shas = {int(mark.removeprefix(":")): sha for mark, sha in marks}
        self.commits = [shas[number] for number in range(1, commits + 1)]
        self.merges = [shas[number] for number in range(6, commits + 1, 5)]

    def git(self, *words: str, text: str = "") -> str:
        place = [] if words[0] == "init" else ["-C", str(self.folder)]
        done = subprocess.run(
            ["git", *place, *words], input=text, text=True, capture_output=True, check=True
        )
        return done.stdout.strip()

    def has(self, culprit: str, commit: str) -> bool:
        words = ["git", "-C", str(self.folder), "merge-base", "--is-ancestor", culprit, commit]
        return subprocess.run(words, check=False).returncode == 0


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    return History(tmp_path_factory.mktemp("history") / "jax.git")


@pytest.fixture
def ends(history):
    return [night(history, name, history.commits[n]) for name, n in (("a", 0), ("b", -1))]


def night(history, name, commit, rocm="1", tool="t"):
    argv = (
        "dist_wheels",
        f"--therock-path=https://host/{rocm}.tar.gz",
        CHECKOUT,
        "--locked",
    )
    recipe = WheelRecipe(
        name="set", inputs="", jax="main", jax_repository=f"file://{history.folder}",
        jax_commit=commit, rocm=f"https://host/{rocm}.tar.gz", rocm_version=f"7.{rocm}",
        rocm_sha256=rocm * 64, image="", families=("gfx90a",), pythons=("3.12",), argv=argv,
        manifest=f"{name}-set", tool=tool,
    )  # fmt: skip
    gate = Cell(name="gate", kind="gate", argv=("gate", "--suite=unit"), family="gfx90a")
    build = Cell(name="build", kind="build", argv=argv)
    side = Side(label=f"night {name}", gate=gate, manifest=f"{name}-set", rocm=recipe.rocm)
    return NightSet(night=name, side=side, recipe=recipe, build=build)


class At(NamedTuple):
    """What a set was built of."""

    commit: str
    rocm: str
    xla: str = ""


class Played:
    """Probes of a world in which it is known what is bad."""

    def __init__(
        self, nights, is_bad, broken=(), *, message="assert 1 == 2", refuses=lambda _: False,
        pin=lambda _: "", source=lambda _: bisect.NO_XLA, else_=lambda _: GOOD_RUN,
    ) -> None:  # fmt: skip
        self.nights = {item.side.manifest: item for item in nights}
        self.is_bad, self.message, self.else_ = is_bad, message, else_
        self.refuses = lambda at: at.commit in broken or refuses(at)
        self.pin, self.source = pin, source  # the XLA that a commit of JAX names
        self.builds: list[str] = []
        self.xla: dict[str, str] = {}  # of each that was built

    def __call__(self, side: Side, number: int) -> Run:  # noqa: ARG002
        at = self.of(side)
        if side.build and side.identity not in self.builds:
            self.builds.append(side.identity)
            self.xla[side.identity] = at.xla
        if side.build and self.refuses(at):
            return Run(answer=ProbeAnswer.NOT_BUILT, why="Bazel failed")
        if self.is_bad(at):
            return Run(answer=ProbeAnswer.BAD, why=self.message, manifest=side.identity)
        return replace(self.else_(at), manifest=side.identity)

    def of(self, side: Side) -> At:
        if not side.build:
            one = self.nights[side.manifest]
            return At(one.recipe.jax_commit, one.recipe.rocm, one.xla.commit)
        _, *xla = side.build.xla or ("", self.pin(side.build.commit))
        return At(side.build.commit, side.rocm, *xla)

    def xla_of(self, manifest: str) -> Source:
        return self.source(self.xla[manifest])


def find(nights, ask, good="a", builds=(), **more):
    asked = BisectRequest(test="t.py::test_a", good=good, bad="b", **more)
    line, note = lambda _, manifest: f"gate {manifest}", lambda _: None
    return bisect.Search(asked, ask, [], line, HostRunner({}), note, ask.xla_of, builds).find(
        nights
    )


@pytest.mark.parametrize("seed", range(4))
def test_a_commit_at_any_place_is_found_with_few_builds(history, ends, seed):
    """Also a merge, and a commit on a branch."""
    place = random.Random(seed).choice([history.commits[1:], history.merges][seed % 2])
    ask = Played(ends, lambda at: history.has(place, at.commit))
    found = find(ends, ask)
    assert (found.state, found.commits[0].commit) == ("found", place), found
    assert found.commits[0].author == "Ann"
    assert len(ask.builds) <= math.ceil(math.log2(29)) + 4
    manifests = {item.set: item.manifest for item in found.tried}
    assert found.bad == f"gate {manifests.get(f'JAX {place[:12]}', 'b-set')}"
    assert found.good != found.bad
    assert "git bisect" in found.log


@pytest.fixture(scope="module")
def xla(tmp_path_factory):
    return History(tmp_path_factory.mktemp("history") / "xla.git", 20)


def moving(history, xla, *moves: int):
    """Two nights of JAX, and which XLA its commits name: another at each of `moves`."""
    at = [xla.commits[0], *(xla.commits[19 * n // len(moves)] for n in range(1, len(moves) + 1))]

    def pin(commit: str) -> str:
        return at[sum(history.has(history.commits[move], commit) for move in moves)]

    def source(commit: str) -> Source:
        return Source(repository=f"file://{xla.folder}", commit=commit)

    ends = [night(history, name, history.commits[n]) for name, n in (("a", 0), ("b", 29))]
    return [replace(one, xla=source(pin(one.recipe.jax_commit))) for one in ends], pin, source


@pytest.mark.parametrize("seed", range(3))
def test_a_commit_of_xla_is_found_where_jax_moved_it(history, xla, seed):
    """A commit of JAX that also moves XLA: the finding names both."""
    culprit = random.Random(seed).choice(xla.commits[1:])
    ends, pin, source = moving(history, xla, 7, 21)
    ask = Played(ends, lambda at: xla.has(culprit, at.xla), pin=pin, source=source)
    found = find(ends, ask)
    assert (found.state, found.input) == ("found", "XLA"), found
    assert found.commits[0].commit == culprit
    brought = history.commits[7 if xla.has(culprit, xla.commits[9]) else 21]
    assert found.about.endswith(f"which JAX {brought[:12]} brings")
    assert len(ask.builds) <= math.ceil(math.log2(29)) + math.ceil(math.log2(20)) + 4


@pytest.mark.parametrize("builds", [True, False])
def test_a_commit_of_jax_that_moves_xla_is_not_taken_for_it(history, xla, builds):
    """If neither JAX builds with the other's XLA, the finding names both."""
    ends, pin, source = moving(history, xla, 12)
    bad, moved = history.commits[12], pin(history.commits[12])
    is_bad = lambda at: history.has(bad, at.commit)  # noqa: E731
    refuses = lambda at: not builds and (at.xla == moved) != is_bad(at)  # noqa: E731
    found = find(ends, Played(ends, is_bad, pin=pin, source=source, refuses=refuses))
    assert found.commits[0].commit == bad, found
    either = f"JAX {bad[:12]}, or XLA {xla.commits[0][:12]} → {moved[:12]} that it brings"
    expected = ("found", f"JAX {bad[:12]}") if builds else ("range", either)
    assert (found.state, found.about) == expected
    assert any(f"moves XLA from {xla.commits[0][:12]}" in text for text in found.told)


def test_a_commit_of_an_own_xla_is_found(history, xla):
    ends, _, source = moving(history, xla, 12)
    words = (*ends[0].recipe.argv, "--xla-source-dir=/xla")
    ends = [
        replace(
            one, recipe=replace(one.recipe, argv=words, jax_commit=history.commits[3]),
            xla=source(xla.commits[n]),
        )
        for one, n in zip(ends, (2, 19), strict=True)
    ]  # fmt: skip
    ask = Played(ends, lambda at: xla.has(xla.commits[11], at.xla), source=source)
    found = find(ends, ask)
    assert (found.state, found.about) == ("found", f"XLA {xla.commits[11][:12]}"), found


def test_an_own_xla_that_is_public_nowhere_comes_from_the_nights_folder(history, xla):
    ends, _, _ = moving(history, xla, 12)
    words = (*ends[0].recipe.argv, f"--xla-source-dir={xla.folder}")
    ends = [
        replace(
            one, recipe=replace(one.recipe, argv=words),
            xla=Source(repository="", commit=xla.commits[2]),
        )
        for one in ends
    ]  # fmt: skip
    built = []

    class Seen(Played):
        def __call__(self, side, number):
            built.extend([side.build] if side.build else [])
            return super().__call__(side, number)

    found = find(ends, Seen(ends, lambda at: history.has(history.commits[17], at.commit)))
    assert found.commits[0].commit == history.commits[17]
    assert {one.xla for one in built} == {(str(xla.folder), xla.commits[2])}
    assert all("--xla-source-dir={xla}" in one.argv for one in built)
    assert any("and not with its JAX's" in text for text in found.told)


def test_a_folder_of_jax_is_a_range_whose_commits_are_not_searched(history, ends):
    ends = [replace(one, recipe=replace(one.recipe, jax_repository="")) for one in ends]
    found = find(ends, Played(ends, lambda at: at.commit == history.commits[29]))
    assert (found.state, found.commits) == ("range", ())
    assert "commits of JAX are not searched: a night built a folder" in found.about


def test_a_suspect_that_is_in_no_history_is_refused(history, ends):
    assert bisect.between(ends, history.commits[5], HostRunner({})) == [29]
    with pytest.raises(ConfigError, match="nonsense: no commit of JAX or XLA"):
        bisect.between(ends, "nonsense", HostRunner({}))


def test_commits_that_do_not_build_are_stepped_around_or_told_as_a_range(history, ends):
    culprit = history.commits[17]
    ask = Played(ends, lambda at: history.has(culprit, at.commit), broken=set(history.commits[2:5]))
    assert find(ends, ask).commits[0].commit == culprit

    ask = Played(
        ends, lambda at: history.has(culprit, at.commit), broken=set(history.commits[16:18])
    )
    found = find(ends, ask)
    assert found.state == "range"
    assert {item.commit for item in found.commits} == set(history.commits[16:19])
    assert "not built: Bazel failed" in " ".join(found.told)


def test_a_suspect_and_its_parent_are_enough(history, ends):
    ask = Played(ends, lambda at: history.has(history.commits[22], at.commit))
    assert find(ends, ask, suspect=history.commits[22]).state == "found"
    assert len(ask.builds) == 2


def test_the_commit_that_made_it_good_again_is_found(history):
    ends = [night(history, "b", history.commits[0]), night(history, "a", history.commits[-1])]
    fix = history.commits[13]
    ask = Played(ends, lambda at: not history.has(fix, at.commit))
    found = find(ends, ask, fix=True)
    assert (found.state, found.commits[0].commit) == ("found", fix), found
    manifests = {item.set: item.manifest for item in found.tried}
    assert found.good == f"gate {manifests[f'JAX {fix[:12]}']}"
    assert f"# t.py::test_a passes since JAX {fix[:12]}" in found.issue
    never = find(ends, Played(ends, lambda _: True), fix=True)
    assert (never.state, never.commits) == ("not reproduced", ())
    assert "\n\n\n" not in found.issue + never.issue
    assert found.good in found.issue


def test_builds_of_rocm_between_two_nights_are_tried_by_date(history):
    builds = [f"https://host/therock-dist-linux-gfx90a-7.1.0a2026050{n}.tar.gz" for n in range(7)]
    ends = [night(history, name, history.commits[0]) for name in "ab"]
    ends = [
        replace(item, recipe=replace(item.recipe, rocm=builds[n], rocm_sha256=str(n) * 64))
        for item, n in zip(ends, (0, 6), strict=True)
    ]
    ask = Played(ends, lambda at: at.rocm >= builds[4])
    found = find(ends, ask, builds=builds)
    assert found.about == "ROCm (7.1.0a20260503 → 7.1.0a20260504)", found
    assert len(ask.builds) == 2
    assert {item.set: item.passed for item in found.tried if item.passed == 3}.keys() == {
        "night a", "ROCm 7.1.0a20260503",
    }  # fmt: skip


def test_kept_sets_come_first_then_the_input_and_without_a_good_night_it_goes_back(history):
    nights = [
        night(history, name, history.commits[3 * number], str(number // 3))
        for number, name in enumerate("abcdefg")
    ]
    ask = Played(nights, lambda at: at.rocm > "https://host/1")
    found = find(nights, ask)
    assert (found.state, found.input) == ("found", "ROCm")
    assert "7.1 1" in found.about
    assert len(ask.builds) == 1, "old JAX on new ROCm; the nights are narrowed without a build"

    ask = Played(nights, lambda at: history.has(history.commits[5], at.commit))
    found = find(nights, ask, good="")
    assert found.commits[0].commit == history.commits[5]
    assert [item.set for item in found.tried][:4] == [f"night {name}" for name in "gfda"]

    both = [nights[0], nights[3]]  # JAX and ROCm moved: it is a commit
    ask = Played(both, lambda at: history.has(history.commits[5], at.commit))
    assert find(both, ask).commits[0].commit == history.commits[5]


def test_another_failure_is_not_taken_for_the_first(history, ends):
    culprit, other = history.commits[20], history.commits[8]

    def else_(at):
        crash = Run(answer=ProbeAnswer.BAD, why="segmentation fault")
        return crash if history.has(other, at.commit) else GOOD_RUN

    found = find(ends, Played(ends, lambda at: history.has(culprit, at.commit), else_=else_))
    assert found.state == "range"
    assert {item.commit for item in found.commits} == set(history.commits[8:21])
    assert "another failure" in " ".join(found.told)


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_a_flaky_test_gives_a_rate_or_is_not_reproduced_and_never_a_culprit(ends, rate):
    named = 0
    for seed in range(40):
        chance = random.Random(seed)
        found = find(ends, Played(ends, lambda _, chance=chance: chance.random() < rate))
        named += found.state in {"found", "range"}
        assert "%" in found.about or found.state != "unsteady"
    assert named == 0


@pytest.mark.parametrize(
    ("bad", "why", "other"),
    [
        (lambda _: True, "both sides fail", ProbeAnswer.GOOD),
        (lambda _: False, "does not come again", ProbeAnswer.GOOD),
        (lambda c: c == 0, "swapped", ProbeAnswer.GOOD),
        (lambda c: c == 29, "night a: no such test; the test came later", ProbeAnswer.ABSENT),
    ],
)
def test_ends_that_are_not_as_said_end_it_at_once(history, ends, bad, why, other):
    is_bad = lambda at: bad(history.commits.index(at.commit))  # noqa: E731
    found = find(ends, Played(ends, is_bad, else_=lambda _: Run(answer=other)))
    assert found.state == "not reproduced"
    assert why in found.about
    assert not found.commits
    assert found.issue.startswith(f"# t.py::test_a: {found.about}")


def test_in_a_history_that_was_rewritten_the_new_commits_are_searched(tmp_path):
    """A commit that the repository no longer has is one error."""
    made = History(tmp_path / "jax.git")
    who = ("-c", "user.name=Ann", "-c", "user.email=a@b")
    old = made.git(
        *who, "commit-tree", f"{made.commits[0]}^{{tree}}", "-p", made.commits[9], "-m", "old"
    )
    ends = [night(made, "a", old), night(made, "b", made.commits[-1])]
    culprit = made.commits[17]
    found = find(ends, Played(ends, lambda at: made.has(culprit, at.commit)))
    assert (found.state, found.commits[0].commit) == ("found", culprit), found
    found = find(ends, Played(ends, lambda at: at.commit != old))
    assert "where the histories of" in found.about
    assert (found.state, found.commits) == ("not reproduced", ())
    gone = [night(made, "a", "1" * 40), ends[1]]
    with pytest.raises(SourceError, match=r"jax.git: .*1111111") as caught:
        find(gone, Played(gone, lambda at: made.has(culprit, at.commit)))
    assert caught.value.hint.startswith("was its history rewritten?")


NOT_RUN, BUG, GOOD = (State.NOT_RUN, 130), (State.FAIL, 1), (State.PASS, 0)


@pytest.mark.parametrize(
    "ends", [[NOT_RUN, NOT_RUN, GOOD], [NOT_RUN, BUG, GOOD]], ids=["killed", "a bug of ours"]
)
def test_a_probe_that_says_nothing_of_the_set_is_run_again(tmp_path, ends):
    """An engine that is killed while another waits ends its cell as not run only then."""
    nights = Nights(open_store((tmp_path / "store").as_uri()))
    time = timestamp(datetime.now(tz=timezone.utc))
    left = ends

    def run(name: str) -> None:
        book = nights.book(name)
        (cell,) = book.plan.cells
        for _ in left[:2]:
            own = {"cell": cell.name, "plan": book.sha256, "host": "h", "engine": "local"}
            known = len(nights.book(name).attempts.get(cell.name, ()))
            number = nights.begin(name, Begun(token=str(known), time=time, **own), known=known)
            worst = WorstTest(test="t", outcome=Outcome.PASSED)
            state, code = left.pop(0)
            ended = Ended(
                state=state, exit_code=code, began=time, time=time, milliseconds=1,
                worst=None if code == 1 else worst, **own,
            )  # fmt: skip
            nights.end(name, number, ended)

    ask = Probes(nights=nights, test="t", by="me", run=run, now=lambda: datetime.now(timezone.utc))
    side = Side(label="s", gate=Cell(name="g", kind="gate", argv=("gate",)), manifest="m", rocm="")
    if ends[1] == BUG:
        with pytest.raises(HostError):  # the same command goes on
            ask(side, 1)
    assert ask(side, 1).answer is ProbeAnswer.GOOD
    assert not left


# --- through the command line, on the engine of this machine: wheels and gates are played ----------


def two_nights(made: World) -> World:
    """Two nights, between which the source and ROCm changed."""
    made.plan("one", check=True)
    assert made.local("one").code == 0
    (made.folder / "source" / "file").write_text("another source")
    newer = made.folder / "therock-dist-linux-gfx90a-7.2.0.tar.gz"
    newer.write_bytes(b"newer ROCm")
    newer.with_name(newer.name.replace("7.2.0", "7.1.5")).write_bytes(b"ROCm between the two")
    text = SETTINGS.replace("gfx90a-7.1.0", "gfx90a-7.2.0")
    made.settings(text.format(families="gfx90a", suffix="+rocm7.2", quarantine=3))
    made.script(gate={"*unit*": "fail"}, rocm={"*-7.2.0*": "fail"})
    made.plan("two", check=True)
    assert made.local("two").code == 5
    return made


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Every test here asks of another test."""
    tmp_path = tmp_path_factory.mktemp("nights")
    return two_nights(World(tmp_path, (tmp_path / "store").as_uri()))


@pytest.mark.soak
def test_a_new_failure_is_bisected_by_itself_while_the_channels_gpu_hours_last(tmp_path):
    made = two_nights(World(tmp_path, (tmp_path / "store").as_uri(), one_build=False, hours=1))
    line = "bisect of unit.py::test_a: found: ROCm (7.1.5 → 7.2.0)"
    assert line in (tmp_path / "store/status/index.html").read_text()
    folder = tmp_path / "store/_rocwheel/nights/two/bisects"
    (kept,) = folder.glob("*.json")
    held = json.loads(kept.read_bytes())["gpu_milliseconds"]
    assert held > 0, "8 gates of a GPU"
    kept.write_bytes(kept.read_bytes().replace(b": %d" % held, b": %d" % (3_600_000 + held)))
    (tmp_path / "store/bisect/_rocwheel").rename(tmp_path / "gone")
    again = made.local("two")
    assert "unit.py::test_a: not bisected: all 1 GPU hours are spent" in again.err
    assert not (tmp_path / "store/bisect/_rocwheel").exists()


def words(test: str, *more: str, good: str = "one", bad: str = "two") -> tuple[str, ...]:
    return (f"--test=t.py::{test}", f"--good={good}", f"--bad={bad}", f"--program={PROGRAM}", *more)


def probes(world) -> dict[str, list[str]]:
    """What became of every attempt at every probe that ended by itself."""
    nights = Nights(open_store(f"{world.store}/bisect"))
    return {
        name: [
            item.ended.state.value
            for tries in nights.book(name).attempts.values()
            for item in tries
            if item.ended and not item.ended.written_by and item.ended.state is not State.NOT_RUN
        ]
        for name in nights.names()
    }


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (words("test_a", good="two", bad="one"), "two: is not before one"),
        (words("test_a", "--find-fix"), "two: is not before one"),
        (words("test_a", good="one", bad="one"), "one: is both ends"),
        (words("test_a", bad="three"), "three: no such night"),
        (words("test_a", "--suite=e2e", "--family=gfx942"), "none of its gates is meant: gate.jax"),
        (words("test_a", "--suspect=nonsense", "--dry-run"), "nonsense: no commit"),
        (words("test_a", "--gpu-hours=nan"), "--gpu-hours: a number above 0"),
        (words("test_a", "--gpu-hours=0"), "--gpu-hours: a number above 0"),
        (words("test_a", "--engine=github", bad="latest"), "name the nights"),
        (words("test_a", "--engine=github"), "bisect.yml"),
        (words("test_a", "--metric=bytes"), "--metric NAME goes with --threshold"),
        (words("test_a", "--metric=bytes", "--threshold=much"), "a number, or <NUMBER"),
    ],
)
def test_wrong_words_are_one_error(world, asked, told):
    done = world.nightly("bisect", *asked)
    assert done.code == (
        2 if {"--metric=bytes", "--engine=github"} & {*asked} or "--gpu" in told else 3
    )
    assert told in done.err
    assert not probes(world)


def test_a_build_that_fails_for_no_reason_of_its_own_ends_it_and_is_tried_again(world):
    """The next test finds the answer."""
    for says in ("says:11:Could not resolve host: h", "says:3:no such option"):
        world.script(rocm={"*-7.2.0*": "fail"}, build={"*": says})
        done = world.nightly("bisect", *words("test_a"))
        assert done.code == 8, done.out
        assert says.split(":", 2)[2] in done.err
        assert not (world.path / "_rocwheel/nights/two/bisects").exists()
    world.script(rocm={"*-7.2.0*": "fail"})


def test_it_is_estimated_then_found_kept_and_shown(world):
    asked = words("test_a")
    before = sorted(world.path.rglob("*"))
    most = json.loads(world.nightly("bisect", "--dry-run", "--json", *asked, check=True).out)
    assert (most["sets"], most["builds"], most["gates"]) == (2, 2, 14)
    assert before == sorted(world.path.rglob("*"))

    done = world.nightly("bisect", "--json", *asked)
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert (found["state"], found["input"]) == ("found", "ROCm")
    assert [(item["set"], item["answer"]) for item in found["tried"]] == [
        ("night two", "bad"), ("night one", "good"), ("one with ROCm of two", "bad"),
        ("ROCm 7.1.5", "good"),
    ]  # fmt: skip
    for side, code in (("good", 0), ("bad", State.FAIL.exit_code)):  # the lines that show both
        line = shlex.split(found[side])
        assert world.run(*line[line.index("gate") :]).code == code, found[side]
    folder = world.path / "_rocwheel" / "nights" / "two" / "bisects"
    kept, text = sorted(folder.iterdir())
    assert json.loads(kept.read_bytes()) == found
    assert text.read_text().startswith("# t.py::test_a fails since ROCm (7.1.5 → 7.2.0)")
    line = "bisect of t.py::test_a: found: ROCm (7.1.5 → 7.2.0); GPUs held for "
    world.run("nightly", "report", "--night=two", *world.target, check=True)
    page = (world.path / "status/index.html").read_text()
    assert line in page
    assert f' (<a href="../_rocwheel/nights/two/bisects/{text.name}">' in page
    for command in ("status", "changes"):
        assert f"  {line}" in world.nightly(command, "two").out.replace("  - ", "  ")
    again = world.nightly("bisect", *asked)
    assert "found: ROCm (7.1.5 → 7.2.0)" in again.out
    assert "start" not in again.err, "nothing runs again"
    status = world.run("--json", "status", "--family=gfx90a", *world.target, check=True)
    assert len(json.loads(status.out)["sets"]) == 2, "what was built for it is nowhere else"


def test_a_number_beyond_a_threshold_is_bad_whether_the_test_passes_or_fails(world):
    name = "therock-dist-linux-gfx90a-{}.tar.gz".format
    figures = {name("7.1.0"): 300, name("7.1.5"): 190, name("7.2.0"): 190}
    world.script(rocm={"*-7.1.*": "fail"}, figures=figures)
    below = words("test_bytes", "--metric=bytes", "--threshold=<200", "--json")
    found = json.loads(world.nightly("bisect", *below, check=True).out)
    assert (found["about"], found["asked"]["metric"]) == ("ROCm (7.1.0 → 7.1.5)", "bytes")
    assert [item["why"] for item in found["tried"]][:2] == ["bytes: 190", "bytes: 300"]
    absent = world.nightly("bisect", *words("test_bytes", "--metric=seconds", "--threshold=2"))
    assert absent.code == 5
    assert "night two: no such test" in absent.out
    assert "reports no seconds" in absent.out
    world.script(rocm={"*-7.2.0*": "fail"})


def test_a_store_that_is_gone_is_not_one_without_nights(world):
    done = world.run("nightly", "bisect", *words("test_a"), f"--store={world.store}-gone")
    assert done.code == 7
    assert "no such folder" in done.err


@pytest.mark.soak
def test_a_machine_that_fails_is_told_and_asked_again_by_the_same_command(world):
    world.script(rocm={"*-7.2.0*": "infra"})
    done = world.nightly("bisect", *words("test_machine"))
    assert done.code == 8
    assert "run the same command again" in done.err
    world.script(rocm={"*-7.2.0*": "fail"})
    assert world.nightly("bisect", *words("test_machine")).code == 0
