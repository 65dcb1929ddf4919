"""Nights without a GPU: a program that stands in for `dist_wheels` and `gate`, and what runs it.

Real are plan, engines, store, `stage`, `promote`, pages, everything that decides. The commands
that need hours or an AMD GPU are played, behind the same command line, exit statuses and JSON: the
build makes a small valid wheel set, the gate stores the verdict a runner of the family would have,
of a single test it says how that ended, by its ROCm (`{"rocm": {"<pattern>": "fail"}}`);
`runtime_images` leaves the record of an image that nobody made, of a set that is released.
A file, `$NIGHT_SCRIPT`, says what they do: `{"gate": {"<cell pattern>": "fail"}, …}`;
a `"suffix"` there makes builds leave another set.
"""

from __future__ import annotations

import fnmatch
import json
import os
import shutil
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from support.forked import Done

ROOT = Path(__file__).parents[2]
PROGRAM = f"{sys.executable} {Path(__file__)}"
SETTINGS = """
sets:
  - name: jax
    source_dir: source
    pythons: ["3.12"]
    families: [{families}]
    rocm: {{source: therock-dist-linux-gfx90a-7.1.0.tar.gz}}
    options: [--wheel-suffix={suffix}]
build: {{cpus: 1, memory_mib: 64, disk_mib: 1, hours: 1}}
gate: {{cpus: 1, memory_mib: 64, disk_mib: 1, hours: 1}}
shard_minutes: 1
quarantine: {quarantine}
"""
OF_COMMIT = """
sets:
  - name: set
    jax: {{repository: "file://{jax}", branch: {commit}, pin: "0.9.1"}}
    pythons: ["{python}"]
    families: [miniature]
    rocm: {{source: {rocm}}}
    options:
      - --jaxlib=built
      - --wheel-suffix=+rocm7.10.0.{suffix}
      - --bazel-startup-options=--bazelrc=bazel/debian.bazelrc
      - --bazel-options=--repo_env=MINIATURE_PYTHON_{underlined}={executable}
build: {{cpus: 1, memory_mib: 1024, disk_mib: 100, hours: 1}}
gate: {{cpus: 1, memory_mib: 512, disk_mib: 100, hours: 1}}
"""
CHANNEL = """
channels:
  try:
    store: {store}
    first_sets: free
    prefixes: {{"7": {{staging: v2-staging, release: v2}}}}
    one_build: {one_build}
    bisect_gpu_hours: {hours}
"""


def of_commit(python: str, executable: str | None, **values: object) -> str:
    """Return the settings of a night that builds one commit of the miniature, with a real Bazel."""
    underlined = python.replace(".", "_")
    return OF_COMMIT.format(python=python, underlined=underlined, executable=executable, **values)


@dataclass
class World:
    """A folder with settings, a store, and the command line on it."""

    folder: Path
    store: str
    env: dict[str, str] = field(default_factory=dict)
    families: str = "gfx90a"
    suffix: str = "+rocm7.1"
    quarantine: int = 3
    options: object = None  # of the store, for a server that is not AWS
    one_build: bool | None = None  # of a channel; None for the store without one
    hours: int = 0  # of its GPUs, for bisects

    def __post_init__(self) -> None:
        (self.folder / "source").mkdir(parents=True, exist_ok=True)
        (self.folder / "therock-dist-linux-gfx90a-7.1.0.tar.gz").write_bytes(b"ROCm")
        (self.folder / "source" / "file").write_text("source")
        shutil.copytree(ROOT / "ci", self.folder / "ci")
        self.settings()
        self.script()
        one = str(bool(self.one_build)).lower()
        text = CHANNEL.format(store=self.store, one_build=one, hours=self.hours)
        (self.folder / "channels.yaml").write_text(text)
        self.remember("gfx90a", "gfx942", "gfx94X-dcgpu", "gfx950-dcgpu", "gfx1151")

    def remember(self, *families: str) -> None:
        """Durations of earlier runs, so that no suite is worth cutting."""
        from rocwheel.base.store import JSON, Headers
        from rocwheel.base.values import replace
        from rocwheel.gate.suite import history
        from rocwheel.release.index import channels

        channel = channels.of_store(self.store)
        if self.options:
            channel = replace(channel, options=self.options)
        if self.one_build is not None:
            channel = channels.channel(self.folder / "channels.yaml", "try")
        store = channel.open()
        past = history.SuiteHistory(tests={"a": 1000})
        for family in families:
            for suite in ("unit", "e2e", "multi_gpu"):
                key = history.key(channel.pairs(store, family, 7)[0][0], suite)
                if store.info(key) is None:
                    store.create(key, past.to_bytes(), headers=Headers(content_type=JSON))

    def settings(self, text: str | None = None, **changes) -> None:
        for name, value in changes.items():
            setattr(self, name, value)
        body = text or SETTINGS.format(
            families=self.families, suffix=self.suffix, quarantine=self.quarantine
        )
        (self.folder / "nightly.yaml").write_text(textwrap.dedent(body))

    def script(self, **plays) -> None:
        """What the played commands do, by cell pattern."""
        (self.folder / "script.json").write_text(json.dumps(plays))

    @property
    def target(self) -> list[str]:
        if self.one_build is not None:
            return ["--channel=try", f"--channels-file={self.folder}/channels.yaml"]
        return [f"--store={self.store}"]

    @property
    def path(self) -> Path:
        """The folder that the store is."""
        return Path(self.store.removeprefix("file://"))

    def environ(self) -> dict[str, str]:
        return {
            **os.environ,
            "XDG_CACHE_HOME": str(self.folder / "cache"),
            "NIGHT_SCRIPT": str(self.folder / "script.json"),
            "ROCWHEEL_CI_DIR": str(self.folder / "ci"),
            "PYTHONPATH": os.pathsep.join([str(ROOT / "build"), str(ROOT), str(ROOT / "tests")]),
            **self.env,
        }

    def start(self, *words: str, **outputs: int) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*PROGRAM.split(), *words],
            cwd=self.folder,
            env=self.environ(),
            stdin=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **outputs},
        )

    def run(self, *words: str, check: bool = False, timeout: float = 900) -> Done:
        from support import forked

        done = forked.run(main, [*words], cwd=self.folder, env=self.environ(), timeout=timeout)
        if check and done.code:
            raise AssertionError(f"{words}: {done.code}\n{done.out}\n{done.err}")
        return done

    def nightly(self, *words: str, **kwargs) -> Done:
        return self.run("nightly", *words, *self.target, **kwargs)

    def plan(self, night: str, *words: str, **kwargs) -> Done:
        config = f"--config={self.folder / 'nightly.yaml'}"
        return self.nightly("plan", f"--night={night}", config, *words, **kwargs)

    def local(self, night: str, *words: str, **kwargs) -> Done:
        return self.nightly("run", night, f"--program={PROGRAM}", *words, **kwargs)

    def states(self, night: str) -> dict[str, str]:
        done = self.run("--json", "nightly", "status", night, *self.target)
        return {cell["cell"]: cell["state"] for cell in json.loads(done.out)["cells"]}


# --- the program ---------------------------------------------------------------------------------


def main(argv: list[str]) -> int:
    from rocwheel.cli import main as ci_build

    words = [word for word in argv if word != "--json" and not word.startswith("--ci-dir=")]
    plays = json.loads(Path(os.environ["NIGHT_SCRIPT"]).read_text())
    if words[0] == "dist_wheels":
        return _dist(words, plays)
    if words[0] == "gate" and words[1] != "merge":
        return _gate(words, plays)
    if words[:2] == ["image", "runtime"] and "--push" in " ".join(words):
        return _image(words, plays)
    return ci_build(argv)


def _value(words: list[str], name: str) -> str:
    found = [word.partition("=")[2] for word in words if word.startswith(f"--{name}=")]
    return found[-1] if found else ""


def _play(plays: dict, kind: str, name: str) -> str:
    for pattern, what in plays.get(kind, {}).items():
        if fnmatch.fnmatch(name, pattern):
            return str(what)
    return "pass"


def _perform(what: str) -> str:
    """`sleep:3`, `sleep:3:fail`, `kill`, `says:8:no disk`, or a state: `infra:its reason`."""
    if what.startswith("sleep:"):
        _, seconds, *rest = what.split(":")
        time.sleep(float(seconds))
        return rest[0] if rest else "pass"
    if what == "kill":
        os.kill(os.getpid(), 9)
    if what.startswith("says:"):  # an exit status, and what the command says of it
        _, code, message = what.split(":", 2)
        print(json.dumps({"error": {"kind": "played", "message": message, "hint": ""}}))
        sys.exit(int(code))
    if what.startswith("count:"):  # infra as often as the file's number says, then a pass
        file = Path(what.removeprefix("count:"))
        left = int(file.read_text())
        file.write_text(str(left - 1))
        return "infra" if left > 0 else "pass"
    return what


def _dist(words: list[str], plays: dict) -> int:
    from support.wheelset import make_set

    import amdgpu_family_matrix as matrix
    from rocwheel.base.values import replace
    from rocwheel.records.manifest import BUILD_RECORD, MANIFEST

    families = sorted(filter(None, _value(words, "family").split(",")))
    targets = [target for name in families for target in matrix.family(name).targets]
    targets = targets or _value(words, "gfx-targets").split(",")
    what = _perform(_play(plays, "build", ",".join(targets)))
    if what != "pass":
        print(json.dumps({"error": {"kind": "bazel", "message": f"played: {what}", "hint": ""}}))
        return 12
    folder = Path(_value(words, "wheelhouse"))
    manifest = make_set(
        folder,
        pythons=tuple(_value(words, "python-versions").split(",")),
        suffix=plays.get("suffix") or _value(words, "wheel-suffix") or None,
        rocm="7.1.0",
        gfx=tuple(targets),
    )
    if len(families) > 1:
        manifest = replace(manifest, families=tuple(families))
        (folder / MANIFEST).write_bytes(manifest.to_bytes())
    (folder / BUILD_RECORD).write_bytes(b"{}\n")
    print(json.dumps({"wheelhouse": str(folder), "manifest_sha256": manifest.sha256}))
    return 0


def _gate(words: list[str], plays: dict) -> int:
    from support.wheelset import make_verdict

    import amdgpu_family_matrix as matrix
    from rocwheel.base.values import replace
    from rocwheel.records.verdict import State
    from rocwheel.release.ledger import manifests, verdicts

    suite, python, family = (_value(words, name) for name in ("suite", "python", "family"))
    shard = _value(words, "shard")
    what = _perform(_play(plays, "gate", f"{family}.{python}.{suite}.{shard or '1/1'}"))
    state, why = State(what.partition(":")[0]), what.partition(":")[2]
    test = _value(words, "test")
    if test:  # a probe: of one test, and nothing is stored
        state = State(_perform(_play(plays, "rocm", _value(words, "rocm"))))
    outcome = "passed" if state is State.PASS else "failed"
    worst = {"test": test or f"{suite}.py::test_a", "outcome": outcome, "message": "assert 1 == 2"}
    if number := plays.get("figures", {}).get(_value(words, "rocm").rpartition("/")[2]):
        worst["figures"] = {"bytes": number}
    if test:
        print(json.dumps({"state": state.value, "reason": "", "worst": worst}))
        return state.exit_code
    channel, digest = _channel(words), _value(words, "manifest")
    places = [staging for staging, _ in channel.pairs(channel.open(), family, 7)]
    place = next(place for place in places if manifests.find(place, digest))
    manifest = manifests.find(place, digest)
    verdict = make_verdict(
        manifest, suite=suite, python=python, state=state, family=matrix.family(family)
    )
    verdict = replace(verdict, reason=why or verdict.reason)
    store = channel.open(probe_key=place.runners_probe)  # where a runner may try it
    key = verdicts.add(replace(place, store=store), verdict)
    said = {"state": state.value, "reason": verdict.reason, "verdict": key}
    print(json.dumps(said | ({"worst": worst} if state is State.FAIL else {})))
    return state.exit_code


def _image(words: list[str], plays: dict) -> int:
    from support.states import image_record

    from rocwheel.base import home
    from rocwheel.base.versions import PythonVersion
    from rocwheel.image import recipe as image_recipe
    from rocwheel.image.runtime import Subject
    from rocwheel.night import image_record as record
    from rocwheel.records.verdict import State
    from rocwheel.release.ledger import log, manifests
    from rocwheel.release.ledger.state import Standing

    python, family, digest = (_value(words, name) for name in ("python", "family", "manifest"))
    what = _perform(_play(plays, "image", f"{family}.{python}"))
    state = State(what)
    channel = _channel(words)
    ((_, place),) = channel.pairs(channel.open(), family, 7)
    manifest = manifests.find(place, digest)
    assert manifest is not None, "an image of a set that is not released"
    assert log.read(place).sets[digest].standing is Standing.LISTED
    recipe = image_recipe.runtime(home.find(None).ci, _value(words, "recipe"))
    subject = Subject(
        recipe=recipe, base=recipe.base(_value(words, "base")), manifest=manifest, family=family,
        python=PythonVersion.parse(python), profile=_value(words, "profile"), is_released=True,
    )  # fmt: skip
    made = image_record(
        reference=f"{_value(words, 'push')}/{subject.reference}", manifest=digest,
        recipe=recipe.name, profile=subject.profile, python=python,
    )  # fmt: skip
    document = {"reference": made.reference, "reason": f"smoke: {state.value}"}
    if state is State.PASS:
        record.put(place, made)
        document["pull"] = f"{made.repository}@{made.digest}"
    print(json.dumps(document))
    return state.exit_code


def _channel(words: list[str]):
    from rocwheel.release.index import channels

    path, name = _value(words, "channels-file"), _value(words, "channel")
    path = path or f"{os.environ.get('ROCWHEEL_CI_DIR', '')}/channels.yaml"
    return channels.channel(Path(path), name) if name else channels.of_store(_value(words, "store"))


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT / "build"), str(ROOT), str(ROOT / "tests")]
    sys.exit(main(sys.argv[1:]))
