"""A remote cache that works is used, one that does not costs nothing but a note."""

from __future__ import annotations

import re
import socket
import sys
import threading
import time
from pathlib import Path

import pytest
from support import bazel_bench, cache_server, certificates, grid, toy
from support.ports import free_port

from rocwheel import bazel
from rocwheel.base import files
from rocwheel.base.errors import BazelError, ConfigError
from rocwheel.base.process import GuestPath
from rocwheel.base.values import replace
from rocwheel.bazel import Remote
from rocwheel.bazel.remote import PROBE, ask, in_use
from rocwheel.records.build_options import RemoteOptions

pytestmark = [pytest.mark.integration, pytest.mark.needs("bazel"), pytest.mark.xdist_group("bazel")]

JAXLIB = 2  # the invocation that is built here
ACTIONS = 3  # of it
SLOW = "rocwheel.bazel.remote.SLOW_SECONDS"


def read_remote(*, workspaces=(), **asked):
    return bazel.read_remote(RemoteOptions(**asked), workspaces)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("remote")
    yield folder
    bazel_bench.stop(folder)


@pytest.fixture
def bench(folder, runner, console):
    """No disk cache: what is a hit here comes from the remote one."""
    bench = bazel_bench.make(folder, runner, console)
    bench.write("host.txt", f"host {time.time()}\n")  # nothing from an earlier test fits
    bench.write("shared.txt", f"shared {time.time()}\n")
    return replace(bench, spec=replace(bench.spec, caches=replace(bench.spec.caches, disk=None)))


@pytest.fixture(autouse=True)
def patience(monkeypatch, request):
    """What answers here is not slow, however busy the machine is, except where a test says so."""
    monkeypatch.setattr(SLOW, 2.0 if "slow-" in request.node.name else 240.0)


@pytest.fixture
def cache():
    with cache_server.cache() as server:
        yield server


@pytest.mark.needs("nginx")
def test_what_ci_wrote_into_a_real_cache_is_not_built_again(bench, tmp_path):
    with cache_server.nginx(tmp_path / "nginx") as url:
        built = bench.build(JAXLIB, remote=Remote(cache=url, upload=True))
        assert (built.record.actions_executed, built.record.cache_hits, built.record.notes) == (
            ACTIONS,
            0,
            (),
        )
        bench.wipe()
        again = bench.build(JAXLIB, remote=Remote(cache=url))
        assert (again.record.actions_executed, again.record.cache_hits) == (0, ACTIONS)
        assert all(path.is_file() for path in again.outputs.values())
        assert "(100 %)" in again.summary


@pytest.mark.needs("nginx")
def test_a_developer_reads_and_does_not_write(bench, tmp_path):
    with cache_server.nginx(tmp_path / "nginx") as url:
        built = bench.build(JAXLIB, remote=Remote(cache=url))
        assert built.record.actions_executed == ACTIONS
        assert [path for path in (tmp_path / "nginx/store").rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    ("mode", "note"),
    [
        ("broken", "answers 500"),
        ("locked", "answers 401 Unauthorized"),
        ("slow", "no answer within 2 s"),
    ],
)
def test_a_cache_that_misbehaves_is_left_out(bench, cache, talk, mode, note):
    if mode == "locked":
        cache.token = "Bearer right"
    else:
        cache.mode = mode
    built = bench.build(JAXLIB, remote=Remote(cache=cache.url, upload=True))
    assert built.record.actions_executed == ACTIONS
    (kept,) = built.record.notes
    assert kept.startswith(f"remote cache not used: {cache.url}: {note}")
    assert f"warning: {kept}" in talk.getvalue()
    assert all(files.sha256(PROBE) in request for request in cache.requests), "Bazel asked it"


@pytest.mark.parametrize("mode", ["full", "forgetful"])
def test_a_cache_that_keeps_nothing_costs_no_wheel(bench, cache, mode):
    """Bazel itself copes with it: what it does not get back is built."""
    cache.mode = mode
    remote = Remote(cache=cache.url, upload=True)
    first = bench.build(JAXLIB, remote=remote)
    assert (first.record.actions_executed, first.record.notes) == (ACTIONS, ())
    bench.wipe()
    again = bench.build(JAXLIB, remote=remote)
    assert again.record.actions_executed == ACTIONS
    assert all(path.is_file() for path in again.outputs.values())


def test_a_wheel_that_was_left_in_the_cache_is_missed(bench, cache):
    """All of it is a remote hit, and with the user's option no file comes to this disk."""
    remote = Remote(cache=cache.url, upload=True)
    bench.build(JAXLIB, remote=remote)
    bench.wipe()
    with pytest.raises(BazelError, match="Bazel says it made this file, but it is not there"):
        bench.build(JAXLIB, remote=remote, options=("--remote_download_minimal",))


def test_a_cache_that_turns_bad_between_two_builds_spoils_no_wheel(bench, cache):
    good = bench.build(JAXLIB, remote=Remote(cache=cache.url, upload=True))
    wheel = next(iter(good.outputs.values())).read_bytes()
    bench.wipe()
    cache.mode = "wrong bytes"
    again = bench.build(JAXLIB, remote=Remote(cache=cache.url, upload=True))
    assert next(iter(again.outputs.values())).read_bytes() == wheel
    assert again.record.actions_executed == ACTIONS
    assert any("does not match" in warning for warning in again.record.warnings)


def test_a_cache_that_dies_during_the_build_is_warned_of(bench, cache):
    cache.lives_for = 3  # requests: ours, and two of Bazel's
    built = bench.build(JAXLIB, remote=Remote(cache=cache.url))
    assert built.record.actions_executed == ACTIONS
    assert any("Reading from Remote Cache" in warning for warning in built.record.warnings)


@pytest.mark.soak
def test_a_cache_that_hangs_during_a_build_is_left_out(bench, cache, talk, monkeypatch):
    """Bazel would show "Compiling…" for a minute per action, and five times that over gRPC."""
    monkeypatch.setattr(SLOW, 0.5)
    monkeypatch.setattr(sys.modules["rocwheel.bazel.build"], "QUIET_SECONDS", 2.0)
    cache.mode, cache.lives_for = "silent", 3
    started = time.monotonic()
    built = bench.build(JAXLIB, remote=Remote(cache=cache.url))
    assert time.monotonic() - started < 45
    assert built.record.actions_executed == ACTIONS
    (note,) = built.record.notes
    assert re.search(r"no action ended for 4 s: remote cache not used: http://\S+: no answer", note)
    assert f"warning: {note}" in talk.getvalue()


@pytest.mark.slow
def test_a_real_executor_runs_the_actions_and_the_outputs_are_here(bench, tmp_path):
    with grid.serve(tmp_path / "grid") as server:
        remote = Remote(executor=server.url)
        built = bench.build(JAXLIB, remote=remote)
        assert (built.record.actions_executed, built.record.cache_hits, built.record.notes) == (
            ACTIONS,
            0,
            (),
        )
        assert len(server.actions) == ACTIONS
        assert toy.text_of(next(iter(built.outputs.values()))).startswith("host ")
        bench.wipe()
        again = bench.build(JAXLIB, remote=remote)
        assert (again.record.actions_executed, again.record.cache_hits) == (0, ACTIONS)
        assert len(server.actions) == ACTIONS


@pytest.mark.needs("nginx", "openssl")
def test_a_cache_with_tls_is_asked_with_the_files_that_were_given(bench, tmp_path):
    """Debian's Bazel cannot use them: it ignores them for https and crashes over grpcs."""
    ours, others = (certificates.make(tmp_path / name) for name in ("ours", "others"))
    with cache_server.nginx(tmp_path / "nginx", ours) as url:
        remote = read_remote(
            cache=url,
            tls_ca=ours.authority,
            tls_certificate=ours.client,
            tls_key=ours.client_key,
            upload=True,
            workspaces=[bench.workspace],
        )
        assert ask(remote)[1] == []
        (note,) = ask(replace(remote, tls_ca=others.authority))[1]
        assert "certificate verify failed" in note
        (note,) = ask(replace(remote, tls_certificate=None))[1]
        assert note == f"remote cache not used: {url}: answers 400 Bad Request"
        assert bench.build(JAXLIB, remote=remote).record.actions_executed == ACTIONS
    assert {f"--tls_{name}" for name in ("certificate", "client_certificate", "client_key")} < {
        option.partition("=")[0] for option in remote.options
    }


@pytest.mark.slow
def test_an_executor_that_dies_during_the_build_costs_time_and_no_wheel(bench, tmp_path, talk):
    bench.write("host.txt", f"SLEEP 3 {time.time()}\n")
    with grid.serve(tmp_path / "grid") as server:

        def kill() -> None:
            while not server.actions:  # the first action is done, the slow one is under way
                time.sleep(0.05)
            server.stop()

        threading.Thread(target=kill, daemon=True).start()
        built = bench.build(JAXLIB, remote=Remote(executor=server.url, timeout=5))
    assert all(path.is_file() for path in built.outputs.values())
    assert built.record.notes or built.record.warnings


def test_an_executor_that_is_down_is_left_out(bench):
    port = free_port()
    built = bench.build(JAXLIB, remote=Remote(executor=f"grpc://127.0.0.1:{port}"))
    assert built.record.actions_executed == ACTIONS
    assert built.record.notes == (
        f"remote executor not used: grpc://127.0.0.1:{port}: Connection refused",
    )


def test_headers_reach_the_cache_and_no_file_that_is_kept(bench, cache, tmp_path, talk):
    secret = "Bearer s3cr3t=/token"
    cache.token = secret
    headers = tmp_path / "headers"
    headers.write_text(f"# for the cache\n\nAuthorization: {secret}\n")
    headers.chmod(0o600)
    remote = read_remote(
        cache=cache.url, header_file=headers, upload=True, workspaces=[bench.workspace]
    )
    built = bench.build(JAXLIB, remote=remote, options=("--announce_rc",))
    assert built.record.notes == ()
    assert any(request.startswith("PUT /ac/") for request in cache.requests)
    assert secret not in repr(remote)
    assert secret not in str(bench.invocation(JAXLIB, remote=remote).command_line())
    kept = [path for path in (bench.folder / "logs").iterdir() if path.suffix != ".gz"]
    assert kept
    assert not any("s3cr3t" in path.read_text() for path in kept)
    assert "s3cr3t" not in talk.getvalue()
    (rc,) = (bench.folder / "bazel").glob("headers-*.bazelrc")
    assert rc.stat().st_mode & 0o777 == 0o600
    assert not any(bench.workspace in path.parents for path in (rc, headers))


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        ({"cache": "ftp://host"}, "not an address of this kind"),
        ({"cache": "http://"}, "not an address of this kind"),
        ({"executor": "http://host"}, "not an address of this kind"),
        ({"cache": "https://me:secret@host"}, "has a password or token in it"),
        ({"cache": "https://secret@host"}, "has a password or token in it"),
        ({"executor": "grpcs://secret@host"}, "has a password or token in it"),
        ({"cache": "ftp://me:secret@host"}, "not an address of this kind"),
        ({"tls_ca": Path("authority")}, "no such file"),
    ],
)
def test_addresses_and_files_are_checked(asked, problem):
    with pytest.raises(ConfigError, match=problem) as caught:
        read_remote(**asked)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("file", ["tls_certificate", "header_file", "tls_ca"])
def test_a_file_of_credentials_that_is_missing_leaves_the_cache_out(bench, cache, tmp_path, file):
    """As on a runner that is given none: TheRock's #7912."""
    (tmp_path / "key").write_text("BEGIN PRIVATE KEY")
    more = {"tls_key": tmp_path / "key"} if file == "tls_certificate" else {}
    remote = read_remote(cache=cache.url, upload=True, **{file: tmp_path / "gone"}, **more)
    said = f"remote cache not used: {tmp_path}/gone: no such file"
    assert (remote.options, ask(remote)[1]) == ((), [said])
    if file == "tls_certificate":
        built = bench.build(JAXLIB, remote=remote)
        assert (built.record.actions_executed, built.record.notes) == (ACTIONS, (said,))
    assert not cache.requests


@pytest.mark.parametrize(
    ("answers", "said"),
    [("", "no answer within 0.5 s"), ("HTTP/1.1 400 Bad Request", "answers, and not as gRPC does")],
)
def test_a_grpc_server_that_hangs_or_speaks_something_else_is_left_out(answers, said, monkeypatch):
    monkeypatch.setattr(SLOW, 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"grpc://127.0.0.1:{server.getsockname()[1]}"

        def serve() -> None:
            link, _ = server.accept()
            with link:
                link.sendall(answers.encode())
                time.sleep(1)

        threading.Thread(target=serve, daemon=True).start()
        left, notes = ask(Remote(cache=url))
    assert (left.options, notes) == ((), [f"remote cache not used: {url}: {said}"])


def test_credentials_below_a_workspace_are_refused(tmp_path):
    (tmp_path / "ws").mkdir()
    key = tmp_path / "ws" / "headers"
    key.write_text("A: b\n")
    key.chmod(0o600)
    link = tmp_path / "link"
    link.symlink_to(key)
    for path in (key, link):
        with pytest.raises(ConfigError, match="below the workspace"):
            read_remote(header_file=path, workspaces=[tmp_path / "ws"])
    with pytest.raises(ConfigError, match="belong together"):
        read_remote(tls_key=key)
    with pytest.raises(ConfigError, match="no PKCS #8 key") as caught:
        read_remote(tls_key=key, tls_certificate=key)
    assert caught.value.hint.startswith("openssl pkcs8 -topk8")


@pytest.mark.parametrize(
    ("text", "mode", "problem"),
    [
        ("Authorization: x\n", 0o644, "others may read"),
        ("no header here\n", 0o600, "headers:1: no header"),
        ("\nTwo Words: x\n", 0o600, "headers:2: no header"),
    ],
)
def test_a_header_file_is_private_and_well_formed(tmp_path, text, mode, problem):
    path = tmp_path / "headers"
    path.write_text(text)
    path.chmod(mode)
    with pytest.raises(ConfigError, match=problem):
        read_remote(header_file=path)


# Which CA bundle Bazel's JVM trusts, and the mistakes in naming one.


def test_a_machine_without_such_a_variable_changes_nothing():
    assert in_use({"PATH": "/bin"}) is None


@pytest.mark.needs("openssl")
def test_the_variables_of_other_programs_count(tmp_path):
    issued = certificates.make(tmp_path)
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        others = {"SSL_CERT_FILE": "/nowhere"} if name == "REQUESTS_CA_BUNDLE" else {}
        found = in_use({**others, name: str(issued.authority)})  # the one that downloads use
        assert found is not None
        store, *others = found.startup(GuestPath("/out"))
        assert store == f"--host_jvm_args=-Djavax.net.ssl.trustStore=/out/{found.name}"
        assert len(others) == 2


def test_a_trust_store_among_the_users_options_wins(tmp_path):
    own = ("--host_jvm_args=-Djavax.net.ssl.trustStore=/mine",)
    assert in_use({"SSL_CERT_FILE": str(tmp_path / "none")}, options=own) is None


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "No such file"),
        (b"", "holds no certificates"),
        (b"-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n", "holds no certificates"),
        (b"\xff\xfe", "holds no certificates"),
    ],
)
def test_a_bundle_that_is_none_is_refused_before_the_build(tmp_path, content, problem):
    bundle = tmp_path / "ca.pem"
    if content is not None:
        bundle.write_bytes(content)
    with pytest.raises(ConfigError, match=problem):
        in_use({"SSL_CERT_FILE": str(bundle)})
