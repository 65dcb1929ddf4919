"""Releases under fire: every storage request fails once, runs are killed, runs meet each other.

The full campaigns take about forty minutes: `ROCWHEEL_CAMPAIGN=full pytest -n 2
tests/release/test_faults.py`. Without that a spread of points is taken.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.faults import KINDS, Fault
from support.tiers import merge_tries
from support.wheelset import FAMILY, Shop, make_set, pass_gate, wheel_key

from rocwheel.base.errors import ObjectMissingError, RocwheelError, StoreError
from rocwheel.base.parallel import each
from rocwheel.base.store import Headers, Options
from rocwheel.base.store.opening import open_store
from rocwheel.base.values import replace
from rocwheel.release import audit, operations
from rocwheel.release.index.channels import Prefixes
from rocwheel.release.index.page import links
from rocwheel.release.index.serve import Site
from rocwheel.release.ledger import log

pytestmark = pytest.mark.integration

FULL = os.environ.get("ROCWHEEL_CAMPAIGN") == "full"
ROOT = Path(__file__).parents[2]
PJRT, JAXLIB, PLUGIN = "jax-rocm7-pjrt", "jaxlib", "jax-rocm7-plugin"
QUICK = Options(attempts=1, read_seconds=240, connect_seconds=60, connections=4)


def hasty(kind: str, attempts: int = 1) -> Options:
    """Options of the run that meets a fault; only a time-out is worth not waiting for."""
    seconds = 4.0 if kind == "timeout" else QUICK.read_seconds
    return replace(QUICK, attempts=attempts, read_seconds=seconds)


def points(total: int, count: int, shift: int) -> list[int]:
    """Which requests fail: all in the full campaign, else `count` spread over them."""
    if FULL:
        return list(range(1, total + 1))
    step = max(1, total // count)
    return list(range(1 + shift % step, total + 1, step))


def at_prefix(shop: Shop, name: str, options: Options = QUICK) -> Shop:
    """The same store with other prefixes, and a store object that has tried nothing yet."""
    prefixes = {0: Prefixes(staging=f"staging{name}", release=f"release{name}")}
    channel = replace(shop.channel, prefixes=prefixes, options=options)
    return Shop(shop.store.url, shop.console, **vars(channel) | {"name": ""})


def listed(place, project: str) -> dict[str, str]:
    """File names and hashes as pip sees them; read from the page that is served."""
    key = f"{place.index}/{project}/index.html"
    try:
        data, _ = place.store.read(key)
    except ObjectMissingError:
        return {}
    return {link.filename: link.sha256 for link in links(data)}


def assert_consistent(place, manifest) -> None:
    """Each page is as before or complete; no plugin without its pjrt; no file that is not there."""
    plugin, pjrt = listed(place, PLUGIN), listed(place, PJRT)  # the dependent first
    for project in (PJRT, JAXLIB, PLUGIN):
        ours = {w.filename: w.sha256 for w in manifest.built if w.project == project}
        shown = listed(place, project)
        assert shown in ({}, ours)
        for name, sha256 in shown.items():
            info = place.store.info(wheel_key(place, name))
            assert info is not None
            assert place.store.digest(info) == sha256
            assert place.store.info(f"{wheel_key(place, name)}.metadata") is not None
    assert not plugin or pjrt


def rehearsed(front, work: Callable[[str], object], only: str = "") -> int:
    """How many requests it takes when nothing fails, at the second of two new places."""
    work("first")  # at a new store the probe writes
    front.faults.arm(None)
    work("second")
    return sum(1 for name in front.faults.seen if re.match(only, name))


@pytest.mark.parametrize("command", ["stage", "promote"])
@pytest.mark.parametrize("kind", merge_tries("500", "lost", of=KINDS))
def test_whichever_request_fails_the_index_is_whole_and_the_next_run_ends_it(
    *, front, servers, tmp_path, console, kind: str, command: str
) -> None:  # fmt: skip
    base = Shop(servers.fresh_url("seaweedfs"), console)
    manifest = make_set(tmp_path / "wh", pythons=("3.12",))
    if command == "promote":
        staged = at_prefix(base, "-s")
        staged.stage(tmp_path / "wh")
        pass_gate(staged.staging, manifest)

    def to(name: str, options: Options = QUICK) -> Shop:
        staging = "staging-s" if command == "promote" else f"staging-{name}"
        prefixes = {0: Prefixes(staging=staging, release=f"release-{name}")}
        return Shop(base.store.url, console, prefixes=prefixes, options=options)

    def act(shop: Shop) -> object:
        return shop.promote(manifest) if command == "promote" else shop.stage(tmp_path / "wh")

    total = rehearsed(front, lambda name: act(to(name)))
    assert total > (50 if command == "promote" else 40)
    for number in points(total, 5, KINDS.index(kind) * 3):
        shop, again = to(f"{kind}-{number}", hasty(kind)), to(f"{kind}-{number}")
        fault = front.faults.arm(Fault(number, kind))
        try:
            act(shop)
            failed = None
        except RocwheelError as exc:
            failed = exc
        front.faults.arm(None)
        where = f"{kind} at {number}: {fault.hit}"
        place = again.release if command == "promote" else again.staging
        assert fault.hit, where
        assert_told(fault.hit, failed, base.store.url, where)
        assert_consistent(place, manifest)
        act(again)
        assert command == "stage" or again.plan(manifest).is_done
        assert audit.check(place).problems == (), where


def assert_told(hit: str, failed: Exception | None, url: str, where: str) -> None:
    """A failure names its object, unless it was none: the snapshot only saves time, and a commit
    or a page whose write was carried out and not answered is there when it is looked for."""
    saves = "/_rocwheel/state.json" in hit or "/_rocwheel/files.json" in hit
    looked_for = hit.startswith("PUT") and ("/log/" in hit or "/index." in hit)
    if failed is None and (saves or looked_for):
        return
    assert isinstance(failed, StoreError), where
    assert failed.hint, where
    assert named(hit, url) in str(failed), f"{where}: {failed}"


def named(hit: str, url: str) -> str:
    """The key a failed request was about, as a message should show it."""
    path, _, query = hit.partition(" ")[2].partition("?")
    key = path.removeprefix("/" + url.removeprefix("s3://"))
    if "prefix=" in query:
        return ""  # a listing is named by its prefix
    return key.lstrip("/")


@pytest.mark.parametrize(
    "kind", merge_tries("cut", "409", of=["500", "503", "cut", "lost", "timeout", "409"])
)
def test_one_passing_failure_is_retried_and_nobody_notices(
    front, servers, tmp_path, console, kind: str
) -> None:  # fmt: skip
    base = Shop(servers.fresh_url("seaweedfs"), console)
    manifest = make_set(tmp_path / "wh", pythons=("3.12",))
    # Only conditional writes may be answered so; what is written for the probe is retried by nobody.
    only = r"PUT (?!.*probe)" if kind == "409" else ""
    total = rehearsed(front, lambda name: at_prefix(base, f"-{name}").stage(tmp_path / "wh"), only)
    for number in points(total, 3, 11):
        shop = at_prefix(base, f"-{kind}-{number}", hasty(kind, attempts=3))
        fault = front.faults.arm(Fault(number, kind, sticky=False, only=only))
        shop.stage(tmp_path / "wh")
        assert fault.hit
        front.faults.arm(None)
        assert set(listed(shop.staging, PJRT)) == {
            w.filename for w in manifest.built if w.project == PJRT
        }
        assert audit.check(shop.staging).problems == ()


def test_a_conflict_on_a_conditional_write_is_tried_again(front, servers) -> None:
    store = open_store(servers.fresh_url("seaweedfs"), replace(QUICK, attempts=4))
    store.abilities()
    for write in (
        lambda: store.create("a", b"a", headers=Headers(content_type="x/y")),
        lambda: store.replace("b", b"b", previous=None, headers=Headers(content_type="x/y")),
    ):
        fault = front.faults.arm(Fault(1, "409", sticky=False))
        write()
        assert fault.hit.startswith("PUT ")
        assert len(front.faults.seen) == 2
    front.faults.arm(Fault(1, "409"))
    with pytest.raises(StoreError, match="409 ConditionalRequestConflict"):
        store.create("c", b"c", headers=Headers(content_type="x/y"))
    assert len(front.faults.seen) == 4  # bounded


def test_a_refusal_for_good_is_asked_once(front, servers) -> None:
    store = open_store(servers.fresh_url("seaweedfs"), replace(QUICK, attempts=5))
    front.faults.arm(Fault(1, "403"))
    with pytest.raises(StoreError, match="403"):
        store.info("a")
    assert len(front.faults.seen) == 1


def test_a_wrong_clock_is_called_by_its_name(front, servers) -> None:
    store = open_store(servers.fresh_url("seaweedfs"), QUICK)
    front.faults.arm(Fault(1, "skew"))
    with pytest.raises(StoreError, match="RequestTimeTooSkewed") as caught:
        store.read("a")
    assert "clock" in caught.value.hint


def test_a_download_that_breaks_is_taken_up_where_it_broke(front, servers) -> None:
    store = open_store(servers.fresh_url("seaweedfs"), replace(QUICK, attempts=3))
    data = random.Random(1).randbytes(300_000)
    store.create("a", data, headers=Headers(content_type="x/y"))
    front.faults.arm(Fault(1, "cut", sticky=False))
    assert store.read("a")[0] == data
    assert len(front.faults.seen) == 2
    front.faults.arm(Fault(1, "cut"))
    with pytest.raises(StoreError, match="the download broke 3 times"):
        store.read("a")


# Two at once


@pytest.mark.parametrize("where", ["seaweedfs", "file"])
def test_promotions_of_different_sets_at_once_lose_nothing(
    servers, tmp_path, monkeypatch, console, where: str
) -> None:  # fmt: skip
    url = (tmp_path / "store").as_uri()
    if where != "file":
        for key, value in servers[where].environ().items():
            monkeypatch.setenv(key, value)
        url = servers.fresh_url(where)
    shop = Shop(url, console)
    manifests = [
        make_set(tmp_path / str(number), jax=f"0.9.{number}", pythons=("3.12",))
        for number in range(6)
    ]
    each(lambda number: Shop(url, console).stage(tmp_path / str(number)), range(6), threads=6)
    for manifest in manifests:
        pass_gate(shop.staging, manifest)
    each(lambda manifest: Shop(url, console).promote(manifest), manifests, threads=6)
    assert {i.version for i in shop.shown(shop.release, PLUGIN)} == {
        manifest.built[0].version for manifest in manifests
    }
    assert audit.check(shop.release).problems == ()
    assert audit.check(shop.staging).problems == ()


# kill -9


class Watcher:
    """Looks at the index and installs from it all the time; remembers what was wrong."""

    def __init__(self, place, index_url: str, folder: Path) -> None:
        self.problems: list[str] = []
        self.looks = self.installs = 0
        self._folder = folder
        self._place, self._url = place, index_url
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=loop, daemon=True) for loop in (self._look, self._install)
        ]

    def __enter__(self) -> Watcher:  # noqa: PYI034
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_exc) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _look(self) -> None:
        """The page of the plugin first: what it lists must be installable at that moment."""
        while not self._stop.is_set():
            plugins = listed(self._place, PLUGIN)
            pjrt = {name.split("-")[1] for name in listed(self._place, PJRT)}
            for name in plugins:
                if name.split("-")[1] not in pjrt:
                    self.problems.append(f"{name} without its pjrt")
            self.looks += 1
            time.sleep(0.02)

    def _install(self) -> None:
        """pip, from a fresh process into a fresh folder each time."""
        argv = [sys.executable, "-m", "pip", "--isolated", "--no-cache-dir", "install", "--quiet",
                "--no-compile", "--report", "-", "--index-url", self._url, "--pre", PLUGIN]  # fmt: skip
        while not self._stop.is_set():
            target = self._folder / str(self.installs)
            done = subprocess.run(
                [*argv, "--target", str(target)], capture_output=True, text=True, check=False
            )
            if done.returncode:
                self.problems.append(done.stderr)
            else:
                chosen = {
                    item["metadata"]["version"] for item in json.loads(done.stdout)["install"]
                }
                there = {path.stem.split("-")[1] for path in target.glob("jax_rocm*.dist-info")}
                if len(chosen) != 1 or there != chosen:
                    self.problems.append(f"pip chose {chosen} and installed {there}")
            self.installs += 1


def test_pip_never_sees_half_a_release_however_often_promotions_are_killed(
    servers, tmp_path, monkeypatch, console
) -> None:  # fmt: skip
    for key, value in servers["seaweedfs"].environ().items():
        monkeypatch.setenv(key, value)
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    shop = Shop(servers.fresh_url("seaweedfs"), console)
    shop.released(tmp_path / "0", suffix="+rocm7.10.0a00", pythons=(python,))
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'build'}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-c", "import sys; from rocwheel.cli import main; sys.exit(main())"]
    dice = random.Random(20261121)
    moments: list[str] = []
    with (
        Site(shop.store).running() as site,
        Watcher(shop.release, f"{site.url}{shop.release.index}/", tmp_path / "pip") as watcher,
    ):
        for number in range(1, 51 if FULL else 21):
            if not FULL and number > 3 and any(item.startswith("open") for item in moments):
                break  # three kills, and more where none of them cut a promotion
            folder = tmp_path / str(number)
            manifest = shop.gated(folder, suffix=f"+rocm7.10.0a{number:02}", pythons=(python,))
            argv = [*command, "promote", "--manifest", str(folder), "--quiet"]
            argv += ["--family", FAMILY.name, "--store", shop.store.url]
            process = subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL)
            first = shop.release.manifest(manifest.sha256)  # that a promotion writes
            while process.poll() is None and shop.store.info(first) is None:
                time.sleep(0.01)
            time.sleep(dice.uniform(0, 0.5))
            process.send_signal(signal.SIGKILL)
            process.wait()
            state = log.read(shop.release)
            is_done = manifest.sha256 in state.sets and operations.is_settled(state)
            shown = {PLUGIN, PJRT, JAXLIB} & {
                project
                for project in (PLUGIN, PJRT, JAXLIB)
                if set(listed(shop.release, project)) & {w.filename for w in manifest.built}
            }
            moments.append(f"{'done' if is_done else 'open'} {len(shown)}")
            done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
        until = time.monotonic() + 400
        while (watcher.looks <= 10 or watcher.installs <= 1) and time.monotonic() < until:
            time.sleep(0.1)  # where the machine is busy, pip is slower than the kills
    assert watcher.problems == []
    assert watcher.looks > 10
    assert watcher.installs > 1
    assert any(moment.startswith("open") for moment in moments), moments  # some were really cut
    assert audit.check(shop.release).problems == ()
    print(
        f"{len(moments)} kills: {sorted(moments)}, {watcher.looks} looks, {watcher.installs} installs"
    )


def test_sigterm_ends_a_promotion_in_two_lines_and_the_next_run_completes_it(
    servers, tmp_path, monkeypatch, console, front
) -> None:  # fmt: skip
    shop = Shop(servers.fresh_url("seaweedfs"), console)
    manifest = shop.gated(tmp_path / "wh", pythons=("3.12",))
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'build'}{os.pathsep}{ROOT}"}
    argv = [sys.executable, "-c", "import sys; from rocwheel.cli import main; sys.exit(main())"]
    argv += ["promote", "--manifest", str(tmp_path / "wh"), "--family", FAMILY.name]
    argv += ["--store", shop.store.url, "--quiet"]
    front.faults.arm(Fault(10, "timeout", seconds=4))  # a signal waits for requests under way
    with subprocess.Popen(argv, env=env, stderr=subprocess.PIPE, text=True) as process:
        while not (front.faults.fault and front.faults.fault.hit):
            assert process.poll() is None, "it ended before the request that was to hang"
            time.sleep(0.01)
        process.terminate()
        _, err = process.communicate(timeout=240)
    front.faults.arm(None)
    assert process.returncode == 130
    assert err.splitlines()[-2:] == [
        "error: interrupted",
        "hint:  run the same command again; it continues from what is complete",
    ]
    shop.promote(manifest)
    assert audit.check(shop.release).problems == ()
