"""From a build to a stranger's machine: three keys sign, public keys alone verify."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from datetime import datetime, timezone
from pathlib import Path

import pytest
from e2e.conftest import by_hand
from support import bazel_bench
from support.engines import SYSTEM

from rocwheel import dist
from rocwheel.base import home
from rocwheel.base.console import silent
from rocwheel.base.here import Here
from rocwheel.base.values import replace
from rocwheel.base.versions import PythonVersion
from rocwheel.records.manifest import MANIFEST, Manifest
from rocwheel.release.trust import envelope
from rocwheel.tools.demo import TARBALL, prepare

ROOT = Path(__file__).parents[2]
PROGRAM = (sys.executable, str(ROOT / "build" / "ci_build"))
ROLES = ("builder", "runner", "promoter")

pytestmark = [
    pytest.mark.needs("bazel", "clang-19", "cc"),
    pytest.mark.xdist_group("demo"),
]


@pytest.fixture
def data(tmp_path) -> Path:
    """A team's `ci` folder: a channel that needs three roles, and a key of each."""
    shutil.copytree(ROOT / "ci", tmp_path / "data" / "ci")
    shutil.copytree(ROOT / "suites", tmp_path / "data" / "suites")
    ci, entries = tmp_path / "data" / "ci", ""
    (tmp_path / "keys").mkdir()
    for role in ROLES:
        line = [*PROGRAM, "trust", "keygen", f"{tmp_path}/keys/{role}.pem", f"--role={role}"]
        entries += subprocess.run(line, check=True, capture_output=True, text=True).stdout
    rule = f"channels:\n  mine: {{required: [{', '.join(ROLES)}]}}\n"
    (ci / "trust.yaml").write_text(f"keys:\n{entries}{rule}")
    (ci / "channels.yaml").write_text(
        f"channels:\n  mine:\n    store: {(tmp_path / 'store').as_uri()}\n    first_sets: free\n"
        '    prefixes: {"7": {staging: v2-staging, release: v2}}\n'
    )
    return ci


def gate_of(world) -> list[str]:
    """What the demo's night gave `gate` for the oldest CPython, without its store and scratch."""
    (plan, *_) = sorted(world.wheelhouse.glob("demo/store/_rocwheel/nights/*/plan.json"))
    cells = json.loads(plan.read_bytes())["cells"]
    words = next(cell["argv"] for cell in cells if cell["kind"] == "gate")
    own = ("--store", "--output", "--runner", "--manifest", "--python")
    return [word for word in words[1:] if not word.startswith(own)]


def test_a_set_is_built_gated_and_promoted_with_three_keys_and_verified_offline(
    demo, data, tmp_path
) -> None:
    world, done = demo
    house = tmp_path / "wheelhouse"
    shutil.copytree((world.wheelhouse / "current").resolve(), house)
    manifest = done.document["manifest_sha256"]
    families = f"--family-file={ROOT}/examples/miniature/families.yaml"
    target = ("--channel=mine", families, "--family=miniature", f"--ci-dir={data}")

    def run(*words: str, signer: str = ""):
        sign = (f"--signer=file:{tmp_path}/keys/{signer}.pem",) if signer else ()
        return world.run(*words, *sign)

    assert run("trust", "sign", str(house), signer="builder").returncode == 0
    assert run("stage", str(house), *target).returncode == 0
    pythons = [item["python"] for item in done.document["installed"]]

    def gate(signer: str, pythons: list[str]) -> None:
        for python in pythons:
            words = [*gate_of(world), f"--manifest={manifest}", f"--python={python}"]
            words = [word for word in words if not word.startswith(("--family-file", "--family"))]
            output = f"--output={tmp_path}/results-{signer}-{python}"
            gated = run("gate", *words, *target, output, "--json", signer=signer)
            assert gated.returncode == 0, gated.stderr[-4000:]

    promote = ("promote", f"--manifest={manifest}", *target)
    gate("builder", pythons[:1])  # a key of another role
    refused = run(*promote, signer="promoter")
    assert refused.returncode == 9
    assert "is not a runner's key" in refused.stderr, refused.stderr
    gate("runner", pythons)
    assert run(*promote, signer="runner").returncode == 9
    promoted = run(*promote, signer="promoter")
    assert promoted.returncode == 0, promoted.stderr[-4000:]

    fresh, release = tmp_path / "fresh", tmp_path / "store" / "v2"
    fresh.mkdir()
    for wheel in release.glob("files/*/*.whl*"):
        shutil.copy(wheel, fresh)
    shutil.copy(release / f"_rocwheel/attestations/{manifest}/miniature/bundle.jsonl", fresh)
    shutil.copy(data / "trust.yaml", fresh)
    for gone in ("keys", "store", "wheelhouse", "data"):
        shutil.rmtree(tmp_path / gone)
    offline = ("unshare", "--net") if os.geteuid() == 0 else ()
    wheels = sorted(fresh.glob("*.whl"))
    assert len(wheels) == 2 * len(pythons) + 1

    def verify(wheel: Path) -> subprocess.CompletedProcess[str]:
        line = [*offline, *PROGRAM, "trust", "verify", wheel.name, "--keys=trust.yaml"]
        clean = {"PATH": os.environ["PATH"], "HOME": str(fresh)}
        return subprocess.run(
            line, cwd=fresh, env=clean, capture_output=True, text=True, check=False
        )

    for wheel in wheels:
        verified = verify(wheel)
        assert verified.returncode == 0, verified.stdout + verified.stderr
        roles = [line.split()[1] for line in verified.stdout.splitlines()]
        assert roles.count("runner") == len(pythons)
        assert set(roles) == set(ROLES)
    wheels[0].write_bytes(wheels[0].read_bytes() + b"\0")
    assert verify(wheels[0]).returncode == 9


@pytest.mark.soak
def test_a_set_is_built_again_byte_by_byte(demo, tmp_path, runner) -> None:
    """From other folders, with an empty cache, on another day by every clock a build may read."""
    world, _ = demo
    house = (world.wheelhouse / "current").resolve()
    manifest = Manifest.load(house)
    here = tmp_path / "quite/another/place"
    shutil.copytree(ROOT / "examples/miniature/workspace", here / "jax")
    day = {"SOURCE_DATE_EPOCH": "86400", "TZ": "Pacific/Kiritimati", "HOME": str(here)}
    base = dist.Request(
        wheelhouse=here / "out", cache=here / "cache", home=home.find(None), cwd=here,
        environ={**os.environ, **day}, pythons=tuple(map(PythonVersion.parse, manifest.pythons)),
    )  # fmt: skip
    ours = Here(
        environ=base.environ, cwd=here, cache=base.cache, home=base.home, console=silent(),
        runner=runner,
    )  # fmt: skip
    prepared = prepare(base, ours)
    (tarball,) = world.cache.rglob(TARBALL)
    request = replace(prepared.request, therock=str(tarball), jax_source_dir=here / "jax")

    def again():
        planned = dist.plan_rebuild(manifest, request)
        return dist.rebuild(manifest, house.joinpath, planned, ours, place=prepared.place)

    try:
        made = again()
        assert made.wheels == {}, "\n".join(made.lines())
        assert sum(run.record.actions_executed for _, run in made.result.bazel.done) > 0
        source = here / "jax/jaxlib/rocm/prng.cc"
        source.write_text(source.read_text().replace("Custom calls", "Custom cells"))
        made = again()
        assert len(made.wheels) == len(manifest.built), "each lists the JAX that it is made of"
        other = [
            name for name, lines in made.wheels.items() if "_prng.so: bytes: " in "".join(lines)
        ]
        assert len(other) == len(manifest.pythons), "the plugin of each CPython"
        assert any(line.startswith("jax.digest: ") for line in made.circumstances)
    finally:
        bazel_bench.stop(here / "cache")


# Runs as root in namespaces of its own: each process sees another year, this machine does not.
ELSEWHERE = """
set -e
cp -a /etc "$PLACE/etc"
echo "$FAKETIME_LIBRARY" > "$PLACE/etc/ld.so.preload"
echo -400d > "$PLACE/etc/faketimerc"
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
hostname elsewhere
ip link set lo up
umask 077
chown -R 1234:1234 "$HOME"
cd "$HOME"
# the clock's library keeps a semaphore of its user's, so it begins with that user's first process
setpriv --reuid=1234 --regid=1234 --clear-groups --inh-caps=-all,+dac_read_search \\
    --ambient-caps=+dac_read_search --bounding-set=-all,+dac_read_search \\
    sh -c 'until [ -e /etc/faketimerc ]; do sleep 0.1; done; date +%Y >&2; exec "$@"' sh "$@" &
mount --bind "$PLACE/etc" /etc
wait $!
"""
CLOCK = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")


@pytest.mark.soak
@pytest.mark.needs("faketime", "setpriv", "unshare", "ip")
@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_another_user_builds_the_same_in_another_year_on_another_machine(on_host) -> None:
    """By the command, without a network, with an empty cache and nothing that the first one had."""
    with tempfile.TemporaryDirectory(prefix="rocwheel-elsewhere-") as name:
        place = Path(name)
        place.chmod(0o755)
        for jax in (place / "first", place / "home/quite/another/place"):
            shutil.copytree(ROOT / "examples/miniature/workspace", jax)
        words = [*by_hand(on_host, place / "first"), "--python-versions=3.11", "--allow-dirty"]
        first = on_host.run("--json", "dist_wheels", *words, f"--wheelhouse={place}/wheels")
        assert first.returncode == 0, first.stderr[-4000:]
        home, (tarball, *_) = place / "home", words
        line = [*PROGRAM, "--json", "rebuild", first.document["manifest"], tarball]
        line += [f"--jax-source-dir={home}/quite/another/place", "--allow-dirty"]
        space = ["unshare", "--mount", "--uts", "--net", "--pid", "--fork", "--mount-proc"]
        clean = {"PATH": f"{SYSTEM}:/usr/sbin:/sbin", "HOME": str(home), "PLACE": name}
        clean |= {"XDG_CACHE_HOME": str(home / "cache"), "FAKETIME_LIBRARY": str(CLOCK)}
        clean |= {"TZ": "Pacific/Kiritimati", "PYTHONDONTWRITEBYTECODE": "1"}
        again = subprocess.run(
            [*space, "bash", "-c", ELSEWHERE, "bash", *line],
            env=clean, capture_output=True, text=True, check=False, timeout=1500,
        )  # fmt: skip
        assert again.returncode == 0, again.stdout + again.stderr[-4000:]
        made = json.loads(again.stdout)
        assert (made["state"], made["wheels"]) == ("reproduced", {})
        year, statement = again.stderr.partition("\n")[0], Path(made["statement"])
        assert int(year) < datetime.now(timezone.utc).year
        assert statement.stat().st_uid == 1234
        said = envelope.parse(statement.read_bytes(), name="it").statement
        assert said.subjects[MANIFEST] == made["manifest"]
        assert "@elsewhere" in str(said.part("runDetails", "builder")["id"])
        record = json.loads((statement.parent / "build.json").read_bytes())
        assert sum(run["actions_executed"] for run in record["bazel"]["invocations"]) > 0
        subprocess.run(["chmod", "-R", "u+w", name], check=True)
