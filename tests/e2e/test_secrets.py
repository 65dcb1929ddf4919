"""A marked secret in every place that takes one, with every command that has the place.

Commands end in every way they can here: a dry run, a refusal, a server that is not there, one that
says no, one that says "later" (so that the request is made again), and success. Afterwards all
that was written is searched: both streams, every file below home, cache and working directory, and
what was sent to a server that the secret is not for.
"""

from __future__ import annotations

import base64
import hashlib
import signal
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import product

import click
import pytest
from support import tarballs

from rocwheel import cli
from rocwheel.base.download import has_secret, shown_setting
from rocwheel.cli.app import App

SECRET = "s3cr3t-m4rk"
HIDDEN = (SECRET.encode(), base64.b64encode(f"me:{SECRET}".encode()))
TARBALL = "therock-dist-linux-gfx94X-dcgpu-7.10.0.tar.gz"
# option -> what it is given; HOST is a server of the test
PLACES = {
    "--therock-path": (
        f"http://me:{SECRET}@HOST/{TARBALL}",
        f"http://HOST/{TARBALL}?X-Signature={SECRET}",
    ),
    "--remote-cache": (
        f"https://me:{SECRET}@HOST",
        f"https://{SECRET}@HOST",
        f"ftp://{SECRET}@HOST",
        f"https://HOST/?token={SECRET}",
    ),
    "--remote-executor": (f"grpcs://{SECRET}@HOST",),
    "--remote-header-file": ("headers",),
    "--bazel-mirror": (f"ftp://me:{SECRET}@HOST", f"https://{SECRET}@HOST"),
    "--jax-repository": (f"https://me:{SECRET}@HOST/jax", f"https://HOST/jax?token={SECRET}"),
    "--bazel-options": (
        f"--remote_header=Authorization=Bearer {SECRET}",
        f"--remote_cache=https://me:{SECRET}@HOST",
    ),
    "--bazel-startup-options": (f"--bes_header=x-token={SECRET}",),
    "--store": (f"https://me:{SECRET}@HOST/store", f"s3://me:{SECRET}@bucket/store"),
    "--upstream": (f"https://me:{SECRET}@HOST/simple",),
    "--url": (f"https://me:{SECRET}@HOST/hook",),
    "--push": (f"me:{SECRET}@HOST/image",),
}
# what else a command needs to get as far as its option
WITH = {
    "--remote-header-file": ("--remote-cache=https://HOST",),
    "--jax-repository": ("--jax-ref=main",),
    "--upstream": ("--resolve",),
}
NEEDED = {
    "therock_path": f"--therock-path=http://HOST/{TARBALL}",
    "environment": "--environment=venv",
    "family": "--family=gfx94X-dcgpu",
    "store": "--store=file:///dev/null/none",
    "manifest": "--manifest=abcdef012345",
    "suite": "--suite=smoke",
    "python": "--python=3.12",
    "purpose": "--for=dist_wheels",
    "role": "--role=runner",
    "shards": "--shards=2",
}
HOWS = ("as it is", "--dry-run", "--json", "--debug")
# arguments of commands that need some
ARGUMENTS = {
    "night": "latest",
    "cell": "x",
    "host": "x",
    "verdict": "x",
    "wheelhouse": "wheelhouse",
}


def leaves(group, path=()):
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from leaves(command, (*path, name))
        if not isinstance(command, click.Group) or name == "gate":
            yield (*path, name), command


@dataclass(frozen=True)
class Case:
    """A command line with the secret in one place."""

    path: tuple[str, ...]
    command: click.Command
    option: str
    value: str
    how: str

    def __str__(self):
        return f"{' '.join(self.path)} {self.option}={self.value[:24]} {self.how}"

    def words(self, host):
        params = self.command.params
        has = {opt for param in params for opt in param.opts}
        own = next(param.name for param in params if self.option in param.opts)
        words = [*self.path, f"{self.option}={self.value}"]
        words += [w for w in WITH.get(self.option, ()) if w.partition("=")[0] in has]
        names = {param.name for param in params} - {own}
        words += [text for name, text in NEEDED.items() if name in names]
        words += [
            ARGUMENTS.get(param.name, "x")
            for param in params
            if isinstance(param, click.Argument) and param.nargs == 1 and param.required
        ]
        words += [self.how] if self.how.startswith("--") else []
        return [word.replace("HOST", host) for word in words]


def cases():
    """Every command with every option, value and way; a merge tries each value and way once."""
    for path, command in leaves(cli.ci_build):
        has = {opt: param for param in command.params for opt in param.opts}
        for option, values in PLACES.items():
            if option not in has:
                continue
            # a demo takes minutes when nothing refuses it: its dry run is the one tried here
            ways = HOWS if path != ("demo",) else ("--dry-run",)
            hows = [how for how in ways if not how.startswith("--dry") or how in has]
            most = max(len(values), len(hows))
            merged = {(n % len(values), n % len(hows)) for n in range(most)}
            for pair in product(range(len(values)), range(len(hows))):
                case = Case(path, command, option, values[pair[0]], hows[pair[1]])
                marks = () if pair in merged else (pytest.mark.soak,)
                yield pytest.param(case, id=str(case), marks=marks)


class Server(ThreadingHTTPServer):
    """Says no, or "later" at first, or serves a tarball; remembers what was sent."""

    daemon_threads = True

    def __init__(self):
        self.seen = []
        self.body, self.later, self.asked = b"", 0, 0
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def answers(self, body=b"", *, later=0):
        self.seen.clear()
        self.body, self.later, self.asked = body, later, 0

    @property
    def host(self):
        return f"127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server = self.server
        server.seen.append(f"{self.path}\n{self.headers}")
        server.asked += 1
        status = 503 if server.asked <= server.later else 200 if server.body else 404
        body = server.body
        if status == 200 and self.path.partition("?")[0].endswith(".sha256"):
            body = hashlib.sha256(server.body).hexdigest().encode()
        body = body if status == 200 else b""
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_args):
        pass


@pytest.fixture(scope="module")
def server():
    found = Server()
    yield found
    found.shutdown()
    found.server_close()


@pytest.fixture
def written(tmp_path, monkeypatch, capfd):
    """Run a command line in this process; gives its status, and nothing holds the secret."""
    for name in ("home", "work"):
        (tmp_path / name).mkdir()
    headers = tmp_path / "work" / "headers"
    headers.write_text(f"Authorization: Bearer {SECRET}\n")
    headers.chmod(0o600)
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path / "home"), "NO_PROXY": "*"}
    monkeypatch.setattr(cli, "start", lambda: App(environ, tmp_path / "work"))
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))

    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}

    def run(*words):
        monkeypatch.setattr("sys.argv", ["rocwheel", *words])
        status = cli.main(list(words))
        out, err = capfd.readouterr()
        said = f"{out}{err}".encode()
        for secret in HIDDEN:
            assert secret not in said, said.decode()
            for path in tmp_path.rglob("*"):
                if path.is_file() and path != headers:
                    assert secret not in path.read_bytes(), path
        return status, out, err

    yield run
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("case", list(cases()))
def test_no_secret_is_written_anywhere(written, server, case):
    """A dry run, a refusal, or a server that has nothing."""
    server.answers()
    status, _, err = written(*case.words(server.host))
    assert "Traceback" not in err or case.how == "--debug", err
    assert status or case.how == "--dry-run" or case.path[0] == "doctor"


@pytest.mark.parametrize("value", PLACES["--therock-path"])
def test_a_server_out_of_reach_is_named_without_the_secret(written, value):
    status, _, err = written("fetch_rocm", f"--therock-path={value.replace('HOST', '127.0.0.1:9')}")
    assert status == 4
    assert "127.0.0.1:9" in err


@pytest.mark.parametrize("value", PLACES["--therock-path"])
@pytest.mark.parametrize("later", [0, 1])
def test_a_download_keeps_its_secret(written, server, value, later):
    """At once, and after the server said "later"."""
    server.answers(tarballs.rocm_tarball(), later=later)
    status, _, err = written(
        "fetch_rocm", "--debug", f"--therock-path={value}".replace("HOST", server.host)
    )
    assert status == 0
    assert bool(later) == ("503" in err)
    assert any(secret.decode() in asked for asked in server.seen for secret in HIDDEN)
    assert written("cache", "list")[0] == 0  # what is kept says it neither


def test_what_is_kept_of_a_command_line_has_no_credentials():
    line = ("ci_build", f"--remote-cache=https://a:{SECRET}@host/x", "--bazel-options",
            f"--remote_header=Authorization=Bearer {SECRET}", "--jobs=3")  # fmt: skip
    kept = tuple(shown_setting("", word) for word in line)
    assert SECRET not in " ".join(kept)
    assert kept[1] == "--remote-cache=https://host/x"
    assert kept[3:] == ("--remote_header=[redacted]", "--jobs=3")
    assert not has_secret("--config=rocm")
    assert not has_secret("--remote_cache=https://host")
