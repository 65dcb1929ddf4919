"""What reaches git and downloads of a person's network: CA bundle, proxy, ssh's agent."""

from __future__ import annotations

import os
import select
import shlex
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from support import certificates, git_server
from support.ports import free_port

from rocwheel.base.download import Client, DownloadError, Retry
from rocwheel.base.errors import SourceError
from rocwheel.base.git import Checkout, checkout
from rocwheel.base.process import HostRunner, base_env

pytestmark = [pytest.mark.integration, pytest.mark.needs("git", "openssl")]
PLAIN = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
BUNDLES = ["REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE"]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A git server that speaks https with a certificate of an authority of our own."""
    folder = tmp_path_factory.mktemp("site")
    made = certificates.make(folder / "tls")
    commit = git_server.repository(folder / "repositories" / "jax", {"file": "text\n"})
    with git_server.serve(folder / "repositories", tls=made) as (url, seen):
        yield made, f"{url}/jax", commit, seen


def fetch(url, commit, folder, environ):
    wanted = Checkout(repository=url, ref="", commit=commit, folder=folder)
    checkout(wanted, runner=HostRunner(base_env({**PLAIN, **environ})))


def download(url, environ):
    retry = Retry(attempts=1, contact=5)
    with Client({**PLAIN, **environ}, retry=retry, note=lambda _text: None) as client:
        return client.read(f"{url}/info/refs?service=git-upload-pack").decode()


@pytest.mark.parametrize("name", BUNDLES)
def test_one_ca_bundle_is_for_git_and_downloads(site, tmp_path, name):
    made, url, commit, _ = site
    fetch(url, commit, tmp_path / "jax", {name: str(made.authority)})
    assert (tmp_path / "jax" / "file").read_text() == "text\n"
    assert commit in download(url, {name: str(made.authority)})


def test_without_it_neither_trusts_the_server(site, tmp_path):
    _, url, commit, _ = site
    with pytest.raises(SourceError, match="certificate"):
        fetch(url, commit, tmp_path / "jax", {})
    with pytest.raises(DownloadError, match="not trusted"):
        download(url, {})


def test_gits_own_variable_and_pips_come_before_ours():
    chosen = base_env({"SSL_CERT_FILE": "/all", "GIT_SSL_CAINFO": "/git"})
    assert (chosen["GIT_SSL_CAINFO"], chosen["PIP_CERT"]) == ("/git", "/all")
    assert "GIT_SSL_CAINFO" not in base_env({})


@contextmanager
def proxy():
    """A proxy that knows CONNECT (RFC 9110 9.3.6); yields its URL and what it connected to."""
    asked = []

    def through(client):
        head = b""
        while b"\r\n\r\n" not in head:
            head += client.recv(4096)
        method, target, _ = head.split(b" ", 2)
        asked.append(f"{method.decode()} {target.decode()}")
        host, _, port = target.decode().rpartition(":")
        with socket.create_connection((host, int(port)), timeout=240) as server, client:
            client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            while True:
                ready, _, _ = select.select([client, server], [], [], 240)
                for one in ready:
                    data = one.recv(65536)
                    if not data:
                        return
                    (server if one is client else client).sendall(data)
                if not ready:
                    return

    def accept():
        while True:
            with suppress(OSError):
                client, _ = listener.accept()
                threading.Thread(target=through, args=(client,), daemon=True).start()
                continue
            return

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", asked
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("name", ["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"])
def test_one_proxy_is_for_git_and_downloads(site, tmp_path, name):
    made, url, commit, _ = site
    with proxy() as (address, asked):
        environ = {name: address, "SSL_CERT_FILE": str(made.authority)}
        fetch(url, commit, tmp_path / "jax", environ)
        by_git = len(asked)
        download(url, environ)
    assert by_git
    assert len(asked) > by_git
    assert {item.split()[0] for item in asked} == {"CONNECT"}


def test_no_proxy_is_for_both(site, tmp_path):
    made, url, commit, _ = site
    with proxy() as (address, asked):
        environ = {
            "HTTPS_PROXY": address, "NO_PROXY": "127.0.0.1", "SSL_CERT_FILE": str(made.authority),
        }  # fmt: skip
        fetch(url, commit, tmp_path / "jax", environ)
        download(url, environ)
    assert asked == []


@pytest.fixture
def over_ssh(tmp_path):
    """A real sshd that lets in who holds a key, and an agent that alone holds it."""
    keys = tmp_path / "keys"
    keys.mkdir(mode=0o700)
    for name in ("host", "mine"):
        argv = ("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", keys / name)
        subprocess.run(argv, check=True)
    (keys / "authorized").write_text((keys / "mine.pub").read_text())
    port = free_port()
    (keys / "config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {keys / 'host'}\nPidFile none\n"
        f"AuthorizedKeysFile {keys / 'authorized'}\nStrictModes no\nUsePAM no\n"
        "PasswordAuthentication no\nPermitRootLogin yes\n"
    )
    if os.geteuid() == 0:
        os.makedirs("/run/sshd", exist_ok=True)  # noqa: PTH103 - where it goes to be nobody
    sshd = subprocess.Popen(
        ["/usr/sbin/sshd", "-D", "-e", "-f", str(keys / "config")], stderr=subprocess.DEVNULL
    )
    folder = Path(tempfile.mkdtemp(prefix="ssh-"))  # a socket's path has at most 108 characters
    agent = subprocess.Popen(
        ["ssh-agent", "-D", "-a", str(folder / "agent")], stdout=subprocess.DEVNULL
    )
    until = time.monotonic() + 240
    while not (folder / "agent").exists() and time.monotonic() < until:
        time.sleep(0.02)
    environ = {"SSH_AUTH_SOCK": str(folder / "agent")}
    subprocess.run(["ssh-add", "-q", keys / "mine"], env={**PLAIN, **environ}, check=True)
    (keys / "mine").unlink()
    words = (
        *("ssh", "-F", "none", "-p", str(port), "-o", "StrictHostKeyChecking=no"),
        *("-o", "UserKnownHostsFile=/dev/null", "-o", "BatchMode=yes", "-o", "LogLevel=ERROR"),
    )
    while time.monotonic() < until:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            break
        time.sleep(0.02)
    yield environ, {"GIT_SSH_COMMAND": shlex.join(words)}
    for process in (sshd, agent):
        process.terminate()
        process.wait()
    shutil.rmtree(folder)


@pytest.mark.needs("sshd")
def test_sshs_agent_reaches_git(over_ssh, tmp_path):
    agent, how = over_ssh
    commit = git_server.repository(tmp_path / "jax", {"file": "text\n"})
    url = f"ssh://127.0.0.1{tmp_path / 'jax'}"
    with pytest.raises(SourceError, match="Permission denied"):
        fetch(url, commit, tmp_path / "out", how)
    fetch(url, commit, tmp_path / "out", {**agent, **how})
    assert (tmp_path / "out" / "file").read_text() == "text\n"
