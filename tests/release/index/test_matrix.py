"""Which installers can do what with the index behind which server: the table in the documentation.

CI tries a spread; `ROCWHEEL_CLIENTS=all python3 tests/run.py tests/release/index/test_matrix.py`
tries all of them. What is not as the table in docs/reference/clients.md says is a failure.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.nginx import in_front_of
from support.ports import free_port
from support.s3 import program, running
from support.serving import serving
from support.wheelset import WHO, Shop, make_wheel

from rocwheel.base.console import Console
from rocwheel.base.host import machine
from rocwheel.base.process import HostRunner, base_env
from rocwheel.release import audit, operations
from rocwheel.release.ledger.state import Action

PAGE = Path(__file__).parents[3] / "docs/reference/clients.md"
ALL = os.environ.get("ROCWHEEL_CLIENTS") == "all"
PLUGIN, PJRT, VERSION = "jax-rocm7-plugin", "jax-rocm7-pjrt", "0.9.1+rocm7.10.0"
SERVERS = ("public bucket", "nginx before a bucket", "http.server", "serve")

# The pip that came with the first release of each CPython; one that compares names as they are
# spelt; one of every series is what the newest is.
PIPS = {
    "3.10": ("21.2.3", "23.0.1"),
    "3.11": ("22.3",),
    "3.12": ("23.2.1",),
    "3.13": ("24.2",),
}
TOOLS = ("newest pip", "uv", "poetry", "pdm")
NAMES = (*(f"pip {pip}, CPython {python}" for python, pips in PIPS.items() for pip in pips), *TOOLS)
SPREAD = ("newest pip", "uv")
pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("installers")]


@dataclass(frozen=True)
class Index:
    """An index with everything that is tried, behind one server."""

    name: str
    url: str


@dataclass(frozen=True)
class Client:
    """An installer: what it would take of one requirement."""

    name: str
    # Requirement, URL, options -> what was taken, by project; None where it refused.
    take: Callable[..., dict[str, str] | None]
    pre: tuple[str, ...] | None  # how pre-releases are allowed
    newer: tuple[str, ...] | None = None  # how what is newer than a day is passed over


def wheel(shop: Shop, folder: Path, project: str, version: str, **options) -> Path:
    made = make_wheel(
        folder, project=project, version=version, tag="py3-none-any",
        module=project.replace("-", "_"), **options,
    )  # fmt: skip
    shop.store.create(f"{shop.release.index}/{made.name}", made, headers=shop.release.wheel_headers)
    return made


def fill(shop: Shop, folder: Path) -> str:
    """Wheels of each kind; return the path of their index."""
    folder.mkdir()
    wheel(shop, folder, PLUGIN, VERSION, requires=(f"{PJRT}=={VERSION}",))
    wheel(shop, folder, PJRT, VERSION)
    wheel(shop, folder, "pulled", "1.0")
    pulled = wheel(shop, folder, "pulled", "2.0")
    wheel(shop, folder, "early", "1.0")
    wheel(shop, folder, "early", "2.0rc1")
    swapped = wheel(shop, folder, "swapped", "1.0")
    operations.perform(audit.plan_adoption(shop.release, who=WHO))
    shop.change(Action.YANK, files=(pulled.name,), reason="wrong numbers")
    other = make_wheel(
        folder, project="swapped", version="1.0", tag="py3-none-any", module="swapped", stamp="x"
    )
    shop.store.delete(f"{shop.release.index}/{swapped.name}")
    shop.store.create(
        f"{shop.release.index}/{swapped.name}", other, headers=shop.release.wheel_headers
    )
    return f"{shop.release.index}/"


@pytest.fixture(scope="module")
def indexes(servers, tmp_path_factory) -> Iterator[list[Index]]:
    folder = tmp_path_factory.mktemp("matrix")
    console = Console(sys.stderr, clock=lambda: 0.0, verbosity=-1)
    with contextlib.ExitStack() as stack:
        buckets = []
        # moto keeps an object `a/` beside `a/b`, as AWS does; SeaweedFS needs nginx for that.
        for name in ("moto", "public"):
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            for key, value in servers[name].environ().items():
                patch.setenv(key, value)
            buckets.append(Shop(servers.fresh_url(name), console))
            root = fill(buckets[-1], folder / name)
        bucket, behind = buckets
        files = Shop((folder / "store").as_uri(), console)
        assert fill(files, folder / "files") == root
        (folder / "nginx").mkdir()
        endpoint = servers["public"].endpoint
        front = stack.enter_context(in_front_of(endpoint, folder / "nginx"))
        port = free_port()
        argv = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"]
        plain = f"http://127.0.0.1:{port}/"
        stack.enter_context(running(argv, plain, folder / "log", cwd=folder / "store"))
        urls = (
            bucket.store.http(""),
            f"{behind.store.url.replace('s3:/', front)}/",
            plain,
            stack.enter_context(serving(files.store)).url,
        )
        yield [Index(name, url + root) for name, url in zip(SERVERS, urls, strict=True)]


def run(*argv: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "UV_", "PYTHON"))}
    return subprocess.run(
        argv, env={**clean, **env}, cwd=cwd, text=True, capture_output=True, check=False,
        timeout=300,
    )  # fmt: skip


def installed(target: Path) -> dict[str, str]:
    found = {}
    for info in target.glob("*.dist-info"):
        name, _, version = info.name.removesuffix(".dist-info").rpartition("-")
        found[name.replace("_", "-")] = version
    return found


def pip(name: str, python: str, wanted: str, folder: Path) -> Client | None:
    """A pip in a folder of its own; None where there is no such CPython."""
    here = machine.pythons(os.environ, runner=HostRunner(base_env(os.environ)))
    found = {str(item.version): str(item.executable) for item in here}
    interpreter = found.get(python) if python else sys.executable
    if not interpreter:
        return None
    own = folder / name.replace(" ", "-").replace(",", "")
    got = run(
        sys.executable, "-m", "pip", "install", "-q", "--target", str(own), wanted, cwd=folder
    )
    assert got.returncode == 0, got.stderr
    target = folder / "target"

    def take(requirement: str, url: str, *options: str) -> dict[str, str] | None:
        shutil.rmtree(target, ignore_errors=True)
        done = run(
            interpreter, "-m", "pip", "--isolated", "--no-cache-dir", "install", "-q", "--target",
            str(target), "--index-url", url, "--trusted-host", "127.0.0.1", *options, requirement,
            cwd=folder, PYTHONPATH=str(own),
        )  # fmt: skip
        return installed(target) if done.returncode == 0 else None

    return Client(name, take, pre=("--pre",))


def uv(folder: Path) -> Client:
    target = folder / "uv-target"

    def take(requirement: str, url: str, *options: str) -> dict[str, str] | None:
        shutil.rmtree(target, ignore_errors=True)
        done = run(
            program("uv"), "pip", "install", "--target", str(target), "--index-url", url, *options,
            requirement, cwd=folder, UV_NO_CACHE="1", UV_NO_CONFIG="1", UV_PYTHON=sys.executable,
        )  # fmt: skip
        return installed(target) if done.returncode == 0 else None

    return Client("uv", take, pre=("--prerelease=allow",), newer=("--exclude-newer",))


PROJECT = """\
[project]
name = "asks"
version = "1"
requires-python = ">=3.10,<3.14"
dependencies = ["{requirement}"]
[[tool.{tool}.source]]
name = "ours"
url = "{url}"
{more}
[tool.poetry]
package-mode = false
[tool.pdm]
distribution = false
"""
HOW = {
    "poetry": (
        'priority = "primary"',
        (("poetry", "config", "virtualenvs.in-project", "true", "--local"),
         ("poetry", "install", "--no-root", "-n")),
    ),
    "pdm": ("verify_ssl = false", (("pdm", "install"),)),
}  # fmt: skip


# pdm 2.29.3 takes newer ones of these and ends in a traceback with them.
WORKS_WITH = {"pdm": ("hishel<2", "unearth<0.18")}


def project_tool(name: str, folder: Path) -> Client:
    """poetry, pdm: they lock a project, then install into its environment."""
    own = folder / f"own-{name}"
    for line in (
        (sys.executable, "-m", "venv", str(own)),
        (str(own / "bin/python"), "-m", "pip", "install", "-q", name, *WORKS_WITH.get(name, ())),
    ):
        got = run(*line, cwd=folder)
        assert got.returncode == 0, got.stderr
    more, lines = HOW[name]

    def take(requirement: str, url: str) -> dict[str, str] | None:
        work = folder / f"work-{name}"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        source = f'name = "ours"\nurl = "{url}"'
        text = PROJECT.format(requirement=requirement, tool=name, url=url, more=more)
        if name == "pdm":  # its only source, in place of PyPI
            text = text.replace(source, f'name = "pypi"\nurl = "{url}"')
        (work / "pyproject.toml").write_text(text)
        for argv in lines:
            done = run(
                str(own / "bin" / argv[0]), *argv[1:], cwd=work, HOME=str(work),
                XDG_CACHE_HOME=str(work / "cache"), PDM_CHECK_UPDATE="0",
            )  # fmt: skip
            if done.returncode:
                return None
        (packages,) = (work / ".venv" / "lib").glob("python*/site-packages")
        return {k: v for k, v in installed(packages).items() if k not in {"pip", "setuptools"}}

    return Client(name, take, pre=None)


def client(name: str, folder: Path) -> Client | None:
    if name == "uv":
        return uv(folder)
    if name in HOW:
        return project_tool(name, folder)
    if name == "newest pip":
        return pip(name, "", "pip>=25", folder)
    version, python = re.fullmatch(r"pip (\S+), CPython (\S+)", name).groups()
    return pip(name, python, f"pip=={version}", folder)


SET = {PLUGIN: VERSION, PJRT: VERSION}


def checks(who: Client, url: str) -> Iterator[tuple[str, bool]]:
    """What is asked of each, and whether it is so."""
    for label, asked in (
        ("name", PLUGIN),
        ("underscores", "jax_rocm7_plugin"),
        ("capitals and dots", "JAX.ROCm7-Plugin"),
        ("`+`", f"{PLUGIN}=={VERSION}"),
    ):
        yield label, who.take(asked, url) == SET
    yield "hash", who.take("swapped", url) is None
    yield "yanked passed over", who.take("pulled", url) == {"pulled": "1.0"}
    yield "yanked, pinned", who.take("pulled==2.0", url) == {"pulled": "2.0"}
    yield "no pre-release", who.take("early", url) == {"early": "1.0"}
    if who.pre:
        yield "pre-release, asked for", who.take("early", url, *who.pre) == {"early": "2.0rc1"}
    else:
        yield "pre-release, asked for", who.take("early==2.0rc1", url) == {"early": "2.0rc1"}
    if who.newer:
        day = [who.take("early", url, *who.newer, day) for day in ("2020-01-01", "2100-01-01")]
        yield "exclude-newer", day == [None, {"early": "1.0"}]


def table() -> dict[tuple[str, str], str]:
    """The cells of the table in the documentation, by client and server."""
    _, _, rest = PAGE.read_text().partition("<!-- table -->\n")
    lines = rest.partition("<!-- end of table -->")[0].splitlines()
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {
        (row[0], server): cell
        for row in rows
        for server, cell in zip(head[1:], row[1:], strict=True)
    }


@pytest.mark.needs("nginx")
@pytest.mark.timeout(3600 if ALL else 1800)
@pytest.mark.parametrize("name", NAMES if ALL else SPREAD)
def test_an_installer_does_what_the_table_in_the_documentation_says(
    indexes, tmp_path, name
) -> None:
    who = client(name, tmp_path)
    if who is None:
        pytest.skip(f"{name}: there is no such CPython here")
    found = {}
    for index in indexes if ALL else indexes[1::2]:
        lacks = [label for label, holds in checks(who, index.url) if not holds]
        found[name, index.name] = f"not: {', '.join(lacks)}" if lacks else "all"
    assert {key: table().get(key) for key in found} == found


def test_the_documentation_has_a_cell_for_each_client_and_server() -> None:
    assert set(table()) == {(name, server) for name in NAMES for server in SERVERS}
