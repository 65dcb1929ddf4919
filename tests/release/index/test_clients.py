"""What real installers make of the index: pip (oldest supported and newest) and uv.

From an S3 server over HTTP, from one behind nginx with the documented rule, from `serve`, and from
a folder.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urljoin

import pytest
from support.nginx import in_front_of
from support.s3 import program
from support.serving import serving
from support.wheelset import FAMILY, WHO, Shop, make_set, make_wheel, pass_gate, wheel_key

from rocwheel.base.errors import StoreError
from rocwheel.base.store import SIMPLE_JSON
from rocwheel.base.values import replace
from rocwheel.cli import main
from rocwheel.cli.app import App
from rocwheel.cli.target import StoreOptions
from rocwheel.records.install import Install
from rocwheel.records.verdict import State
from rocwheel.release import audit, operations
from rocwheel.release.index import publish
from rocwheel.release.index.page import UNFOLDED, links
from rocwheel.release.index.publish import await_public
from rocwheel.release.ledger.state import Action
from rocwheel.release.trust.statements import Approval

OLDEST_PIP = "22.3.1"  # the first series that reads JSON pages and `.metadata` files
ROOT = Path(__file__).parents[3]
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
PLUGIN, PJRT = "jax-rocm7-plugin", "jax-rocm7-pjrt"

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("installers")]


@dataclass(frozen=True)
class Client:
    """An installer; every call is a fresh process without a cache or a person's configuration."""

    name: str
    argv: tuple[str, ...]
    env: dict[str, str]

    def install(self, url: str, target: Path, *what: str) -> subprocess.CompletedProcess[str]:
        shutil.rmtree(target, ignore_errors=True)
        return self.run(
            "install", "--target", str(target), "--index-url", url, *(what or (PLUGIN,))
        )

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "UV_"))}
        return subprocess.run(
            [*self.argv, *arguments], env={**clean, **self.env}, text=True, capture_output=True,
            check=False, timeout=400,
        )  # fmt: skip


def installed(target: Path) -> dict[str, str]:
    """Projects and versions in a target folder."""
    found = {}
    for info in target.glob("*.dist-info"):
        name, _, version = info.name.removesuffix(".dist-info").rpartition("-")
        found[name.replace("_", "-")] = version
    return found


@pytest.fixture(scope="session")
def clients(tmp_path_factory) -> dict[str, Client]:
    folder = tmp_path_factory.mktemp("clients")
    for name, wanted in (("old-pip", f"pip=={OLDEST_PIP}"), ("new-pip", "pip>=25")):
        install = ("-m", "pip", "install", "-q", "--target", str(folder / name), wanted)
        subprocess.run([sys.executable, *install], check=True)
    pip = ("-m", "pip", "--isolated", "--no-cache-dir", "--disable-pip-version-check")
    newest = Client("newest pip", (sys.executable, *pip), {"PYTHONPATH": str(folder / "new-pip")})
    oldest = Client("oldest pip", (sys.executable, *pip), {"PYTHONPATH": str(folder / "old-pip")})
    uv_env = {"UV_NO_CACHE": "1", "UV_NO_CONFIG": "1", "UV_PYTHON": sys.executable}
    return {
        "oldest pip": oldest,
        "newest pip": newest,
        "uv": Client("uv", (program("uv"), "pip"), uv_env),
    }


@pytest.fixture
def world(request, servers, tmp_path, monkeypatch, console) -> Iterator[tuple[Shop, str]]:
    """A shop, and the URL under which installers find its store: in a folder, on S3, …"""
    where = request.param
    if where == "folder":
        shop = Shop((tmp_path / "a store").as_uri(), console)
        yield shop, f"{shop.store.url}/"
        return
    server = {"S3": "moto", "nginx": "public"}.get(where, "seaweedfs")
    for key, value in servers[server].environ().items():
        monkeypatch.setenv(key, value)
    url = servers.fresh_url(server)
    if where == "S3":
        shop = Shop(url, console)
        yield shop, shop.store.http("")
    elif where == "nginx":
        with in_front_of(servers[server].endpoint, tmp_path) as front:
            public = url.replace("s3:/", front)
            yield Shop(url, console, public_url=public), f"{public}/"
    else:
        shop = Shop(url, console)
        with serving(shop.store) as site:
            yield shop, site.url


NGINX = pytest.param("nginx", marks=pytest.mark.needs("nginx"))
everywhere = pytest.mark.parametrize("world", ["folder", "S3", NGINX, "serve"], indirect=True)


@everywhere
def test_every_installer_finds_the_set_everywhere(world, tmp_path, clients) -> None:
    shop, url = world
    manifest = shop.released(tmp_path / "wh", pythons=(PYTHON, "3.14"))
    version = manifest.built[0].version
    index = f"{url}{shop.release.index}/"
    for client in clients.values():
        done = client.install(index, tmp_path / "target")
        assert done.returncode == 0, f"{client.name}: {done.stdout}{done.stderr}"
        assert installed(tmp_path / "target") == {PLUGIN: version, PJRT: version}
    done = clients["newest pip"].run(
        "download",
        "--index-url",
        index,
        "-d",
        str(tmp_path / "got"),
        f"jaxlib=={version}",
        PLUGIN,
    )
    assert done.returncode == 0, done.stderr
    for path in (tmp_path / "got").iterdir():
        assert path.read_bytes() == (tmp_path / "wh" / path.name).read_bytes()
    assert len(list((tmp_path / "got").iterdir())) == 3


@pytest.mark.parametrize("world", ["folder", "S3"], indirect=True)
def test_indexes_of_nights_and_of_the_last_good_set_are_installed_from(
    world, tmp_path, clients
) -> None:
    """The third night's set was let through by a person: the last good one stays the second's."""
    shop, url = world
    sets = {}
    for number, night in enumerate(("one", "two", "three")):
        sets[night] = make_set(tmp_path / night, suffix=f"+rocm7.10.0a{number}", pythons=(PYTHON,))
        shop.stage(tmp_path / night)
        state = State.FLAKY if night == "three" else State.PASS
        pass_gate(shop.staging, sets[night], suites=("smoke",))
        pass_gate(shop.staging, sets[night], suites=("unit",), state=state)
        words = [Approval(suite="unit", python=PYTHON, by="ann", reason="known")]
        words = words if night == "three" else []
        shop.promote(sets[night], night=night, approvals=words)
    index = f"{url}{shop.release.index}"

    def check(below: str, wanted: str) -> None:
        for client in (clients["newest pip"], clients["uv"]):
            done = client.install(
                f"{index}{below}/", tmp_path / "t", *(["--prerelease=allow"] * (client.name == "uv")),
                *(["--pre"] * (client.name != "uv")), PLUGIN,
            )  # fmt: skip
            assert (done.returncode == 0) is bool(wanted), f"{below}: {done.stdout}{done.stderr}"
            found = installed(tmp_path / "t")
            assert found == (dict.fromkeys((PLUGIN, PJRT), version(wanted)) if wanted else {})

    def version(night: str) -> str:
        return sets[night].built[0].version

    check("", "three")
    for night in sets:
        check(f"/nights/{night}", night)
    check("/last-good", "two")
    shop.change(Action.ROLLBACK, sets["two"])
    check("/nights/two", "")
    check("/last-good", "one")


@pytest.mark.parametrize("world", ["S3"], indirect=True)
def test_a_name_with_underscores_is_found_on_html_pages_by_every_pip(
    world, tmp_path, clients
) -> None:
    """pip 22.3 to 23.1 compare METADATA's Name as it is spelt, where a page announces METADATA."""
    shop, _ = world
    manifest = shop.released(tmp_path / "wh", pythons=(PYTHON,))
    version = manifest.built[0].version
    for client in clients.values():
        for name in ("jax_rocm7_plugin", "JAX.ROCm7-Plugin"):
            done = client.install(shop.release.url, tmp_path / "target", name)
            assert done.returncode == 0, f"{client.name}: {name}: {done.stderr}"
            assert installed(tmp_path / "target") == {PLUGIN: version, PJRT: version}


@everywhere
@pytest.mark.parametrize("version", ["1!2.0", "2.0+a.b.1", "2.0.post1.dev3+local.7", "2.0rc1"])
def test_the_link_of_any_version_leads_to_its_object(world, tmp_path, version: str) -> None:
    shop, url = world
    wheel = make_wheel(
        tmp_path, project="jaxlib", version=version, tag="py3-none-any", module="jaxlib"
    )
    shop.store.create(
        f"{shop.release.index}/{wheel.name}", wheel, headers=shop.release.wheel_headers
    )
    operations.perform(audit.plan_adoption(shop.release, who=WHO))
    page = f"{url}{shop.release.index}/jaxlib/"
    served = page + ("index.html" if page.startswith("file:") else "")
    with urllib.request.urlopen(served) as answer:
        (link,) = links(answer.read())
    with urllib.request.urlopen(urljoin(page, link.url)) as answer:
        data = answer.read()
    assert data == wheel.read_bytes()
    assert hashlib.sha256(data).hexdigest() == link.sha256
    with urllib.request.urlopen(urljoin(page, f"{link.url}.metadata")) as answer:
        assert hashlib.sha256(answer.read()).hexdigest() == link.metadata_sha256


@pytest.mark.parametrize("world", ["folder"], indirect=True)
def test_a_version_that_is_folded_away_for_people_is_there_for_installers(
    world, tmp_path, clients
) -> None:
    shop, url = world
    for number in range(UNFOLDED + 2):
        wheel = make_wheel(
            tmp_path, project=PJRT, version=f"1.{number}", tag="py3-none-any", module="pjrt"
        )
        shop.store.create(
            f"{shop.release.index}/{wheel.name}", wheel, headers=shop.release.wheel_headers
        )
    operations.perform(audit.plan_adoption(shop.release, who=WHO))
    for client in clients.values():
        done = client.install(f"{url}{shop.release.index}/", tmp_path / "target", f"{PJRT}==1.0")
        assert done.returncode == 0, f"{client.name}: {done.stderr}"
        assert installed(tmp_path / "target") == {PJRT: "1.0"}


def test_a_wheel_that_is_not_what_the_page_says_is_refused_by_all(shop, tmp_path, clients) -> None:
    manifest = shop.released(tmp_path / "wh", pythons=(PYTHON,))
    make_set(tmp_path / "forged", pythons=(PYTHON,), stamp="forged")
    for wheel in manifest.built:
        path = tmp_path / "store" / wheel_key(shop.release, wheel.filename)
        path.write_bytes((tmp_path / "forged" / wheel.filename).read_bytes())
    with serving(shop.store) as site:
        for client in clients.values():
            done = client.install(f"{site.url}{shop.release.index}/", tmp_path / "target")
            assert done.returncode != 0
            assert "hash" in (done.stdout + done.stderr).lower()


def test_a_yanked_set_is_passed_over_unless_it_is_pinned(shop, tmp_path, clients) -> None:
    old = shop.released(tmp_path / "a", suffix="+rocm7.9.0", rocm="7.9.0", pythons=(PYTHON,))
    new = shop.released(tmp_path / "b", pythons=(PYTHON,))
    shop.change(Action.YANK, new, reason="wrong numbers")
    with serving(shop.store) as site:
        index = f"{site.url}{shop.release.index}/"
        for client in clients.values():
            assert client.install(index, tmp_path / "target").returncode == 0
            assert installed(tmp_path / "target")[PLUGIN] == old.built[0].version
            pinned = [f"{name}=={new.built[0].version}" for name in (PLUGIN, PJRT)]
            done = client.install(index, tmp_path / "target", *pinned)
            assert done.returncode == 0
            assert installed(tmp_path / "target")[PLUGIN] == new.built[0].version
            assert "wrong numbers" in done.stdout + done.stderr


def test_resolving_reads_metadata_files_and_no_wheel(shop, tmp_path, clients) -> None:
    shop.released(tmp_path / "wh", pythons=(PYTHON,))
    for name in ("newest pip", "uv"):
        seen: list[str] = []
        with serving(shop.store, say=seen.append) as site:
            index = f"{site.url}{shop.release.index}/"
            done = clients[name].run(
                "install",
                "--dry-run",
                "--target",
                str(tmp_path / "t"),
                "--index-url",
                index,
                PLUGIN,
            )
        assert done.returncode == 0, done.stderr
        asked = "\n".join(seen)
        assert asked.count(".whl.metadata ") == 2
        assert ".whl " not in asked


@contextlib.contextmanager
def static(store):
    """Any web server on a folder: it knows HTML pages alone."""
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(store.root))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield SimpleNamespace(url=f"http://127.0.0.1:{server.server_address[1]}/")
        server.shutdown()


@pytest.mark.parametrize("serve", [serving, static])
def test_uv_sees_upload_times_whatever_serves_them(shop, tmp_path, clients, serve) -> None:
    for number, month in ((0, 5), (1, 6)):
        who = replace(WHO, now=datetime(2026, month, 2, tzinfo=timezone.utc))
        folder = tmp_path / str(number)
        manifest = make_set(folder, suffix=f"+rocm7.10.0a{number}", pythons=(PYTHON,))
        shop.stage(folder, who)
        pass_gate(shop.staging, manifest)
        shop.promote(manifest, who)
    with serve(shop.store) as site:
        index = f"{site.url}{shop.release.index}/"
        for before, expected in (("2026-05-15", "a0"), ("2026-06-15", "a1")):
            done = clients["uv"].install(
                index,
                tmp_path / "t",
                "--prerelease=allow",
                f"--exclude-newer={before}T00:00:00Z",
                PLUGIN,
            )
            assert done.returncode == 0, done.stderr
            assert installed(tmp_path / "t")[PLUGIN].endswith(expected)
        done = clients["uv"].install(
            index, tmp_path / "t", "--exclude-newer=2026-04-01T00:00:00Z", PLUGIN
        )
        assert done.returncode != 0


def test_pip_takes_no_wheel_that_is_too_young_where_json_is_served(shop, tmp_path, clients) -> None:
    """From HTML pages alone it takes nothing, and says so: docs/reference/clients.md."""
    shop.released(tmp_path / "wh", pythons=(PYTHON,))
    pip = clients["newest pip"]
    for serve, day, code in (
        (serving, "2026-06-01", 0), (serving, "2026-04-01", 1), (static, "2026-06-01", 1),
    ):  # fmt: skip
        with serve(shop.store) as site:
            index = f"{site.url}{shop.release.index}/"
            done = pip.install(index, tmp_path / "t", f"--uploaded-prior-to={day}", PLUGIN)
        assert done.returncode == code, done.stderr


@pytest.mark.parametrize("world", [NGINX], indirect=True)
def test_the_documented_rule_serves_json_to_those_who_ask(world, tmp_path, clients) -> None:
    shop, url = world
    shop.released(tmp_path / "wh", pythons=(PYTHON,))
    page = f"{url}{shop.release.index}/{PLUGIN}/"
    request = urllib.request.Request(page, headers={"Accept": SIMPLE_JSON})
    with urllib.request.urlopen(request) as answer:
        assert answer.headers["Content-Type"] == SIMPLE_JSON
        assert "Accept" in answer.headers.get_all("Vary")
        assert json.load(answer)["name"] == PLUGIN
    with urllib.request.urlopen(page) as answer:
        assert answer.headers["Content-Type"].startswith("text/html")
    done = clients["uv"].install(
        f"{url}{shop.release.index}/", tmp_path / "t", "--exclude-newer=2027-01-01", PLUGIN
    )
    assert done.returncode == 0, done.stderr


# R5: a closed world


def test_pip_resolves_each_set_for_each_cpython_with_its_names_from_nowhere_else(
    tmp_path, shop, console, runner
) -> None:
    upstream = Shop((tmp_path / "pypi").as_uri(), console)
    upstream.released(tmp_path / "decoy", suffix=".post9", pythons=("3.11", "3.12"))
    other = make_wheel(
        tmp_path, project="elsewhere", version="3", tag="py3-none-any", module="elsewhere"
    )
    upstream.store.create(
        f"{upstream.release.index}/{other.name}", other, headers=upstream.release.wheel_headers
    )
    operations.perform(audit.plan_adoption(upstream.release, who=WHO))

    shop.released(tmp_path / "wh")
    with serving(upstream.store) as pypi:
        ask = {"upstream": f"{pypi.url}{upstream.release.index}", "python": Path(sys.executable)}
        assert audit.resolve(shop.release, runner=runner, **ask) == []
        page = tmp_path / "store" / shop.release.index / PJRT
        shutil.rmtree(page)  # the decoy upstream has a pjrt, which must not be taken
        said = audit.resolve(shop.release, runner=runner, **ask)
    assert len(said) == 2
    assert "CPython 3.11" in said[0]


def test_what_the_store_lacks_is_redirected_upstream(shop, tmp_path) -> None:
    shop.released(tmp_path / "wh", pythons=(PYTHON,))
    with serving(shop.store, upstream="https://upstream.example/simple/") as site:
        opener = urllib.request.build_opener(NoRedirect)
        with pytest.raises(urllib.error.HTTPError) as caught:
            opener.open(f"{site.url}{shop.release.index}/numpy/")
        assert caught.value.code == 307
        assert caught.value.headers["Location"] == "https://upstream.example/simple/numpy/"
        caught.value.close()
        with urllib.request.urlopen(f"{site.url}{shop.release.index}/{PLUGIN}/") as answer:
            assert answer.status == 200


class NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_args):
        return None


@pytest.mark.parametrize("upstream", [False, True])
def test_a_page_installs_the_jaxlib_that_its_set_brings(shop, tmp_path, upstream) -> None:
    made = shop.staged(tmp_path / "wh", pythons=(PYTHON,), upstream_jaxlib=upstream)
    pages = [
        shop.store.read(key)[0].decode()
        for project in ("jax-rocm7-pjrt", "jax-rocm7-plugin")
        for key in shop.staging.views(project, folder_keys=False)
    ]
    (ours, _) = Install.of(made, shop.staging.url).pip
    assert ("jaxlib==" in ours) is not upstream
    assert pages
    for page in pages:
        assert sorted(ours.split()) == sorted(
            re.search("pip install --no-deps [^<\n]*", page)[0].split()
        )


def test_the_local_server_keeps_to_http(shop, tmp_path) -> None:
    manifest = shop.released(tmp_path / "wh", pythons=(PYTHON,))
    name = wheel_key(shop.release, manifest.built[0].filename).replace("+", "%2B")
    with serving(shop.store) as site:
        base = f"{site.url}{shop.release.index}"
        with urllib.request.urlopen(f"{site.url}{name}") as answer:
            assert len(answer.read()) == manifest.built[0].size
        for url, code in (
            (f"{base}/nothing.whl", 404),
            (f"{base}/nothing/", 404),
            (f"{site.url}../../etc/passwd", 404),
            (f"{site.url}%2e%2e/etc/passwd", 404),
        ):
            with pytest.raises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(url)
            assert caught.value.code == code
            said = caught.value.read().decode()
            assert shop.store.url not in said  # whose disk it is concerns no client
            assert str(tmp_path) not in said
            caught.value.close()
        head = urllib.request.Request(f"{site.url}{name}", method="HEAD")
        with urllib.request.urlopen(head) as answer:
            assert (answer.headers["Content-Length"], answer.read()) == (
                str(manifest.built[0].size),
                b"",
            )


# R11: done means served


def test_publishing_ends_when_the_public_url_lists_the_files(tmp_path, console) -> None:
    hidden = Shop((tmp_path / "store").as_uri(), console)
    hidden.released(tmp_path / "wh", pythons=(PYTHON,))
    entries = {PLUGIN: list(hidden.shown(hidden.release, PLUGIN))}
    empty = Shop((tmp_path / "cdn").as_uri(), console)
    with serving(empty.store) as cdn:
        place = replace(hidden.release, public_url=cdn.url)
        with pytest.raises(StoreError, match=r"jax_rocm7_plugin.*: 404 .* after 0 s"):
            await_public(place, entries, seconds=0)
        timer = threading.Timer(
            1, lambda: shutil.copytree(tmp_path / "store", tmp_path / "cdn", dirs_exist_ok=True)
        )
        timer.start()
        await_public(place, entries, seconds=30)
        assert not timer.is_alive()
        with pytest.raises(StoreError, match="still listed after 0 s"):
            await_public(place, entries, seconds=0, absent=True)


def test_the_public_page_is_read_afresh_through_the_callers_proxy_and_never_without_end(
    tmp_path, shop, monkeypatch
) -> None:
    asked = []

    class AsProxy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers["Cache-Control"]))
            self.send_response(200)
            self.end_headers()
            with contextlib.suppress(ConnectionError):
                while True:
                    self.wfile.write(b" " * 65536)

        def log_message(self, *_) -> None:
            pass

    monkeypatch.setattr(publish, "PAGE_BYTES", 1 << 20)
    shop.released(tmp_path / "wh", pythons=(PYTHON,))
    entries = {PLUGIN: list(shop.shown(shop.release, PLUGIN))}
    with ThreadingHTTPServer(("127.0.0.1", 0), AsProxy) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        channels_file = tmp_path / "channels.yaml"
        channels_file.write_text(
            (ROOT / "ci" / "channels.yaml")
            .read_text()
            .replace("public_url: https:", "public_url: http:")
        )
        proxy = f"http://127.0.0.1:{server.server_port}"
        app = App({"http_proxy": proxy})
        options = StoreOptions(channel="nightly", store="", channels_file=channels_file)
        opened = options.open(app)
        assert opened.public_url.startswith("http://")
        place = replace(opened.pairs(shop.store, FAMILY.name, 7)[0][1], root=shop.release.root)
        with pytest.raises(StoreError, match=r"larger than 1\.0 MiB after 0 s"):
            await_public(place, entries, seconds=0)
        server.shutdown()
    assert asked == [(f"{opened.public_url.rstrip('/')}/{place.index}/{PLUGIN}/", "no-cache")]


def test_serve_tells_where_it_serves_and_ends_on_a_signal(tmp_path, shop) -> None:
    shop.released(tmp_path / "wh", pythons=(PYTHON,))
    argv = [sys.executable, "-c", "import sys; from rocwheel.cli import main; sys.exit(main())"]
    argv += ["index", "serve", "--store", shop.store.url, "--port", "0", "--json"]
    env = {**os.environ, "PYTHONPATH": "build" + os.pathsep + "."}
    root = Path(__file__).parents[3]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=env, cwd=root) as process:
        try:
            lines = []
            while not lines or lines[-1] != "}\n":
                lines.append(process.stdout.readline())
            said = json.loads("".join(lines))
            assert said["indexes"][0].endswith("/v2/gfx90a/")
            with urllib.request.urlopen(f"{said['indexes'][0]}{PLUGIN}/") as answer:
                assert answer.status == 200
        finally:
            process.terminate()
        assert process.wait(240) == 0, "who ends a server is done with it"


def test_serve_on_a_taken_port_is_two_lines(shop, tmp_path, capsys) -> None:
    shop.released(tmp_path / "wh", pythons=(PYTHON,))
    with serving(shop.store) as site:
        port = str(site.server_address[1])
        argv = ["serve", "--store", shop.store.url, "--family", FAMILY.name, "--port", port]
        assert main(argv) == 8
    assert "choose another --port" in capsys.readouterr().err


def test_a_page_that_changes_while_it_is_served_is_served_whole(shop, tmp_path) -> None:
    """Size and content are read as one: a size of before would cut a longer page."""
    shop.released(tmp_path / "wh", pythons=(PYTHON,))
    key = shop.release.json(PLUGIN)
    stop = threading.Event()

    def change() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            _, seen = shop.store.read(key)
            body = json.dumps({"pad": "x" * (number * 997 % 20_000)}).encode()
            shop.store.replace(key, body, previous=seen, headers=shop.release.json_headers)

    with serving(shop.store) as site:
        writer = threading.Thread(target=change)
        writer.start()
        try:
            for _ in range(200):
                with urllib.request.urlopen(f"{site.url}{key}") as answer:
                    json.loads(answer.read())
        finally:
            stop.set()
            writer.join()
