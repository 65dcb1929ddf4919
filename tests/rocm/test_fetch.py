"""Fetching over real sockets from a server that cuts, lies, stalls and redirects."""

from __future__ import annotations

import hashlib
import json
import re
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support import certificates, tarballs
from support.faultserver import Fault, FaultServer, Served
from support.tarballs import NAME

from rocwheel import rocm
from rocwheel.base import values
from rocwheel.base.download import Retry
from rocwheel.base.errors import ConfigError, FetchError
from rocwheel.base.values import replace
from rocwheel.records.manifest import RocmDelivery

pytestmark = pytest.mark.integration

if TYPE_CHECKING:
    from rocwheel.base.console import Console

BUILD = Path(__file__).resolve().parents[2] / "build"
RETRY = Retry(attempts=4, pause=0.01, longest=0.02, timeout=(240.0, 240.0), contact=240.0)
TARBALL = tarballs.rocm_tarball(extra=3_000_000)
SHA256 = hashlib.sha256(TARBALL).hexdigest()
OTHER = tarballs.rocm_tarball("7.10.1", extra=2_900_000)
THIRD = len(TARBALL) // 3


@dataclass(frozen=True)
class Fetcher:
    """Fetches into one cache."""

    cache: Path
    console: Console
    retry: Retry = RETRY

    def __call__(
        self,
        source: str,
        *,
        sha256: str | None = None,
        version: str | None = None,
        env: dict[str, str] | None = None,
        budget: int | None = None,
    ) -> rocm.RocmRoot:
        planned = rocm.plan(
            source, sha256=sha256, version=version, cache=self.cache, cwd=self.cache.parent
        )
        return rocm.fetch(
            planned, console=self.console, env=env, retry=self.retry, budget_bytes=budget
        )

    def left(self) -> list[str]:
        """Everything in the cache but locks and folders: names below `rocm/`."""
        top = self.cache / "rocm"
        return sorted(
            str(path.relative_to(top))
            for path in top.rglob("*")
            if path.is_file() and path.suffix != ".lock"
        )


@pytest.fixture
def fetch(tmp_path, console):
    return Fetcher(tmp_path / "cache", console)


@pytest.fixture
def server():
    with FaultServer() as running:
        yield running


@pytest.fixture
def url(server):
    return server.add(NAME, TARBALL)


def sound(root: rocm.RocmRoot) -> bool:
    """Whether every file is there with its bytes."""
    files = {**tarballs.rocm_files(), **tarballs.filler(3_000_000)}
    return all(
        (root.root / name).read_bytes() == item.data
        for name, item in files.items()
        if isinstance(item, tarballs.File)
    )


def test_a_tarball_becomes_a_checked_tree(fetch, url):
    root = fetch(url)
    assert sound(root)
    assert (str(root.version), root.facts.header_version) == ("7.10.0a20251120", "7.10.0")
    assert (root.sha256, root.origin, root.name) == (SHA256, "tarball", NAME)
    assert root.family is not None
    assert root.family.name == "gfx94X-dcgpu"
    assert (root.root / root.facts.clang).samefile(root.root / "lib/llvm/bin/clang-20")
    assert root.root == fetch.cache / "rocm/trees-3" / SHA256 / "tree"
    assert not root.cached
    assert all(not name.startswith(("partial", "staging")) for name in fetch.left())


@pytest.mark.parametrize("prefix", ["./", "rocm-7.10/"])
@pytest.mark.parametrize("kind", tarballs.COMPRESSORS)
def test_every_compression_and_both_prefixes_work(kind, prefix, fetch, tmp_path):
    data = tarballs.COMPRESSORS[kind](tarballs.tar(tarballs.rocm_files(), prefix=prefix))
    path = tmp_path / "misnamed.tar.gz"
    path.write_bytes(data)
    root = fetch(str(path))
    assert (root.root / ".info/version").read_text() == "7.10.0\n"
    assert str(root.version) == "7.10.0"


# The second run.


def test_the_second_run_asks_once_and_fetches_nothing(fetch, server, url):
    first = fetch(url)
    server.requests.clear()
    second = fetch(url)
    assert (second.root, second.sha256) == (first.root, first.sha256)
    assert second.cached
    assert [request.headers.get("if-none-match") for request in server.requests] == [
        server.files[NAME].etag
    ]


def test_with_a_checksum_the_second_run_needs_no_network(fetch, server, url):
    fetch(url)
    server.requests.clear()
    assert fetch(url, sha256=SHA256).cached
    assert server.requests == []


def test_a_tarball_that_changed_is_fetched_again(fetch, server, url):
    first = fetch(url)
    server.add(NAME, OTHER)
    second = fetch(url)
    assert second.sha256 == hashlib.sha256(OTHER).hexdigest()
    assert second.root != first.root
    assert first.root.is_dir()


def test_offline_the_hint_gives_the_checksum_that_would_do(fetch, server, url):
    fetch(url)
    server.faults[NAME].extend([Fault(status=503)] * 9)
    with pytest.raises(FetchError, match="503") as caught:
        fetch(url)
    assert f"--therock-sha256={SHA256}" in caught.value.hint


def test_the_same_bytes_from_elsewhere_are_unpacked_once(fetch, server, url):
    first = fetch(url)
    mirror = server.add("mirror/rocm.tar.gz", TARBALL)
    assert fetch(mirror, sha256=SHA256).cached
    server.add("mirror/rocm.tar.gz.sha256", f"{SHA256}  rocm.tar.gz\n".encode())
    assert fetch(mirror).root == first.root
    assert server.asked("mirror/rocm.tar.gz") == []


def test_what_a_manifest_says_of_a_rocm_is_the_same_on_every_machine(fetch, server, url, tmp_path):
    server.add(f"{NAME}.sha256", f"{SHA256}  {NAME}\n".encode())
    elsewhere = [Fetcher(tmp_path / name, fetch.console) for name in ("filled", "asked")]
    local = tmp_path / NAME
    local.write_bytes(TARBALL)
    by_path = elsewhere[0](str(local))  # so the cache has the tree, and never asked the URL
    roots = [fetch(url), fetch(url), elsewhere[0](url), elsewhere[1](url, sha256=SHA256)]
    assert [root.cached for root in roots] == [False, True, True, False]
    assert {root.delivery for root in roots} == {
        RocmDelivery(url=url, size=len(TARBALL), links=roots[0].delivery.links)
    }
    # a tarball from a disk differs by the address that it does not have, and by nothing else
    assert by_path.delivery == values.replace(roots[0].delivery, url="")
    assert (by_path.name, by_path.sha256, by_path.version) == (NAME, SHA256, roots[0].version)


def test_a_local_tarball_is_read_once(fetch, tmp_path):
    path = tmp_path / NAME
    path.write_bytes(TARBALL)
    assert not fetch(str(path)).cached
    assert fetch(str(path)).cached
    path.write_bytes(OTHER)
    assert not fetch(str(path)).cached


def test_a_cached_tree_costs_no_work_per_file(fetch, url):
    root = fetch(url)
    script = """
import sys, time
from pathlib import Path
tree, source, digest, cache = sys.argv[1:]
seen = []
def hook(event, args):
    if args and isinstance(args[0], (str, bytes)) and str(args[0]).startswith(tree):
        seen.append((event, args[0]))
sys.addaudithook(hook)
from rocwheel import rocm
from rocwheel.base.console import Console
plan = rocm.plan(source, sha256=digest, version=None, cache=Path(cache), cwd=Path(cache))
assert rocm.fetch(plan, console=Console(sys.stderr, clock=time.monotonic)).cached
sys.exit(len(seen))
"""
    argv = [sys.executable, "-c", script, str(root.root), url, SHA256, str(fetch.cache)]
    env = {"PYTHONPATH": f"{BUILD}:{BUILD.parent}"}
    assert subprocess.run(argv, env=env, check=False).returncode == 0


# Checksums.


@pytest.mark.parametrize(
    "text",
    [
        f"{SHA256} *{NAME}\n",
        SHA256.upper(),
        f"SHA256 ({NAME}) = {SHA256}\n",
        f"{'0' * 64}  other.tar.gz\n{SHA256}  ./{NAME}\n",
    ],
)
def test_checksum_files_of_all_kinds_are_read(text, fetch, server, url):
    server.add(f"{NAME}.sha256", text.encode())
    assert fetch(url).sha256 == SHA256


@pytest.mark.parametrize("text", ["", "<html>not found</html>", f"{'0' * 64} a\n{'1' * 64} b\n"])
def test_a_checksum_file_without_a_checksum_is_an_error(text, fetch, server, url):
    server.add(f"{NAME}.sha256", text.encode())
    with pytest.raises(FetchError, match=r"\.sha256: holds no SHA-256") as caught:
        fetch(url)
    assert "--therock-sha256" in caught.value.hint
    assert server.asked(NAME) == []


@pytest.mark.parametrize(
    ("status", "headers"), [(404, {}), (410, {}), (403, {"x-amz-request-id": "8E5"})]
)
def test_only_a_server_that_says_so_has_no_checksum(status, headers, fetch, server, url):
    server.faults[f"{NAME}.sha256"].append(Fault(status=status, headers=headers))
    assert sound(fetch(url))


@pytest.mark.parametrize("status", [408, 425, 429, 500, 503])
def test_a_busy_server_does_not_mean_a_missing_checksum(status, fetch, server, url):
    server.add(f"{NAME}.sha256", f"{'ab' * 32}  {NAME}\n".encode())
    server.faults[f"{NAME}.sha256"].extend([Fault(status=status, headers={"Retry-After": "0"})] * 2)
    with pytest.raises(FetchError, match="not " + "ab" * 32):
        fetch(url)
    server.faults[f"{NAME}.sha256"].extend([Fault(status=status)] * 99)
    with pytest.raises(FetchError, match=rf"{NAME}: {status} .*4 attempts"):
        fetch(url)


@pytest.mark.parametrize("status", [400, 401, 403, 407])
def test_a_refusal_is_not_taken_for_a_missing_checksum(status, fetch, server, url):
    server.faults[f"{NAME}.sha256"].append(Fault(status=status))
    with pytest.raises(FetchError, match=str(status)):
        fetch(url)


def test_the_pause_a_server_asks_for_is_kept_also_when_it_is_a_date(fetch, server, url, talk):
    date, after = "Sat, 01 Jan 2028 00:00:00 GMT", "Sat, 01 Jan 2028 00:00:03 GMT"
    server.faults[NAME].append(Fault(status=429, headers={"Date": date, "Retry-After": after}))
    server.faults[NAME].append(Fault(status=503, headers={"Retry-After": "soon"}))
    assert sound(fetch(url))  # at most twice the longest pause of `RETRY` is waited
    assert "again in 0.0 s" in talk.getvalue()


@pytest.mark.parametrize("how", ["given", "published", "beside a file"])
def test_a_wrong_checksum_names_both_and_leaves_nothing(how, fetch, server, url, tmp_path):
    wrong, source = "ab" * 32, url
    if how == "published":
        server.add(f"{NAME}.sha256", wrong.encode())
    if how == "beside a file":
        (tmp_path / NAME).write_bytes(TARBALL)
        (tmp_path / f"{NAME}.sha256").write_text(wrong)
        source = str(tmp_path / NAME)
    with pytest.raises(FetchError, match=f"{SHA256}, not {wrong}"):
        fetch(source, sha256=wrong if how == "given" else None)
    assert fetch.left() == []


# What servers do.


@pytest.mark.parametrize("status", [401, 403, 404, 410])
def test_4xx_is_final_and_leaves_nothing(status, fetch, server, url):
    server.faults[NAME].append(Fault(status=status))
    with pytest.raises(FetchError, match=str(status)) as caught:
        fetch(url)
    assert caught.value.hint
    assert len(server.asked(NAME)) == 1
    assert fetch.left() == []


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503])
def test_a_busy_server_is_asked_again(status, fetch, server, url):
    server.faults[NAME].extend([Fault(status=status, headers={"Retry-After": "0"})] * 2)
    assert sound(fetch(url))
    assert len(server.asked(NAME)) == 3


def test_5xx_without_end_is_given_up(fetch, server, url, talk):
    server.faults[NAME].extend([Fault(status=503)] * 99)
    with pytest.raises(FetchError, match=r"503 Service Unavailable \(4 attempts\)"):
        fetch(url)
    assert len(server.asked(NAME)) == 4
    assert talk.getvalue().count("again in") == 3


def test_a_cut_download_continues_where_it_was_cut(fetch, server, url, talk):
    server.faults[NAME].extend([Fault(cut=THIRD), Fault(cut=THIRD)])
    assert sound(fetch(url))
    first, second, third = server.asked(NAME)
    assert first.range == ""
    for request in (second, third):
        assert request.range.startswith("bytes=")
        assert request.headers["if-range"] == server.files[NAME].etag
    assert second.range < third.range
    assert f"{url}: the connection was cut; again in" in talk.getvalue()


def test_cuts_that_make_progress_are_no_reason_to_give_up(fetch, server):
    data = tarballs.rocm_tarball(extra=12_000_000)
    url = server.add(NAME, data)
    server.faults[NAME].extend([Fault(cut=(1 << 20) + (1 << 19))] * 7)
    assert fetch(url).sha256 == hashlib.sha256(data).hexdigest()


def test_a_server_that_ignores_ranges_is_read_again_from_the_start(fetch, server):
    url = server.add(NAME, TARBALL, ranges=False)
    server.faults[NAME].append(Fault(cut=THIRD))
    assert sound(fetch(url))


def test_a_file_that_cannot_be_recognised_is_fetched_whole(fetch, server):
    url = server.add(NAME, TARBALL, etag="", modified="")
    server.faults[NAME].append(Fault(cut=THIRD))
    assert sound(fetch(url))
    assert [request.range for request in server.asked(NAME)] == ["", ""]


def test_a_weak_tag_is_no_condition_for_a_range(fetch, server):
    url = server.add(NAME, TARBALL, etag='W/"weak"')
    server.faults[NAME].append(Fault(cut=THIRD))
    assert sound(fetch(url))
    assert server.asked(NAME)[1].headers["if-range"] == server.files[NAME].modified


def test_a_file_replaced_during_a_download_is_fetched_again(fetch, server, url, talk):
    new = Served(data=OTHER, etag='"new"')
    server.faults[NAME].extend([Fault(cut=THIRD), Fault(replaced=new)])
    root = fetch(url)
    assert root.sha256 == hashlib.sha256(OTHER).hexdigest()
    assert "changed while it was fetched" in talk.getvalue()


def test_a_file_that_never_stays_the_same_is_given_up(fetch, server):
    url = server.add(NAME, TARBALL, etag="", modified="")
    server.faults[NAME].extend([Fault(cut=THIRD)] * 99)
    with pytest.raises(FetchError, match="changes faster"):
        fetch(url)
    assert fetch.left() == []


def test_the_next_run_continues_a_download(fetch, server, url, talk):
    server.faults[NAME].extend([Fault(cut=THIRD), *[Fault(status=503)] * 3])
    with pytest.raises(FetchError, match="503") as caught:
        fetch(url)
    assert "continues after" in caught.value.hint
    assert [name for name in fetch.left() if name.startswith("partial")]
    server.requests.clear()
    assert sound(fetch(url))
    assert [request.range for request in server.asked(NAME)] == [f"bytes={THIRD}-"]
    assert "continuing after" in talk.getvalue()
    assert not [name for name in fetch.left() if name.startswith("partial")]


def test_the_next_run_does_not_continue_another_file(fetch, server, url):
    server.faults[NAME].extend([Fault(cut=THIRD), *[Fault(status=503)] * 3])
    with pytest.raises(FetchError):
        fetch(url)
    server.add(NAME, OTHER)
    assert fetch(url).sha256 == hashlib.sha256(OTHER).hexdigest()


def test_a_complete_download_is_only_confirmed(fetch, server, url):
    """A run killed while it unpacked the last file: all bytes are there, no tree is."""
    fetch(url)
    key = rocm.plan(url, sha256=None, version=None, cache=fetch.cache, cwd=fetch.cache).key
    other = Fetcher(fetch.cache.parent / "other", fetch.console)
    partial = other.cache / "rocm/partial"
    partial.mkdir(parents=True)
    (partial / f"{key}.part").write_bytes(TARBALL)
    seen = json.loads((fetch.cache / f"rocm/sources/{key}.json").read_text())
    (partial / f"{key}.json").write_text(json.dumps(seen["remote"]))
    server.requests.clear()
    assert sound(other(url))
    assert [request.range for request in server.asked(NAME)] == [f"bytes={len(TARBALL) - 1}-"]


def test_an_unknown_partial_download_is_started_over(fetch, server, url):
    key = rocm.plan(url, sha256=None, version=None, cache=fetch.cache, cwd=fetch.cache).key
    partial = fetch.cache / "rocm/partial"
    partial.mkdir(parents=True)
    (partial / f"{key}.part").write_bytes(b"what is this")
    assert sound(fetch(url))


def test_silence_is_a_cut(fetch, server, url):
    server.faults[NAME].append(Fault(stall=900, after=THIRD))
    assert sound(replace(fetch, retry=replace(RETRY, timeout=(240.0, 1.0)))(url))
    assert len(server.asked(NAME)) >= 2


@pytest.fixture
def silent():
    """A host that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("host", ["127.0.0.1:9", "nowhere.invalid", ""])
def test_an_unreachable_address_is_reported_in_time_as_given(host, silent, console, tmp_path):
    """The time is the first contact's, not that of all attempts, each as long as a connection."""
    retry = Retry(timeout=(300.0, 300.0), contact=0.5)
    assert Retry().contact < 5
    url = f"https://{host or silent}/{NAME}"
    planned = rocm.plan(url, sha256=None, version=None, cache=tmp_path, cwd=tmp_path)
    began = time.monotonic()
    with pytest.raises(FetchError, match=f"^{re.escape(url)}"):
        rocm.fetch(planned, console=console, env={}, retry=retry)
    assert time.monotonic() - began < 200


def test_a_server_that_answers_with_another_range_is_not_believed(fetch, server, url):
    server.faults[NAME].extend(
        [Fault(cut=THIRD), Fault(headers={"Content-Range": f"bytes 7-9/{len(TARBALL)}"})]
    )
    assert sound(fetch(url))


def test_a_body_longer_than_it_should_be_is_not_believed(fetch, server, url):
    wrong = {"Content-Range": f"bytes {THIRD}-{len(TARBALL) - 100}/{len(TARBALL) - 99}"}
    server.faults[NAME].extend([Fault(cut=THIRD), Fault(headers=wrong)])
    assert sound(fetch(url))


def test_a_download_whose_bytes_are_damaged_leaves_nothing(fetch, server, url):
    server.faults[NAME].append(Fault(flip=len(TARBALL) // 2))
    with pytest.raises(FetchError, match="damaged"):
        fetch(url)
    assert fetch.left() == []
    assert sound(fetch(url))


def test_credentials_in_the_url_are_sent_and_not_shown(fetch, server, url, talk):
    fetch(url.replace("://", "://user:hidden@"))
    assert server.asked(NAME)[0].headers["authorization"].startswith("Basic ")
    stored = "".join(path.read_text() for path in (fetch.cache / "rocm").rglob("*.json"))
    assert "hidden" not in talk.getvalue() + stored


# Redirects and TLS.


def moved(target: str, status: int = 302) -> Fault:
    return Fault(status=status, headers={"Location": target})


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_followed(status, fetch, server, url):
    server.faults["old/x.tar.gz"].append(moved(f"/{NAME}", status))
    assert sound(fetch(server.url("old/x.tar.gz")))


@pytest.mark.parametrize("target", ["http://[bad", "//[::1", "http://host:port/x"])
def test_a_redirect_to_nonsense_is_the_server_s_mistake(target, fetch, server):
    server.faults["odd.tar.gz"].append(moved(target))
    with pytest.raises(FetchError, match=r"odd\.tar\.gz"):
        fetch(server.url("odd.tar.gz"), sha256=SHA256)


def test_redirects_without_end_are_given_up(fetch, server):
    server.faults["round.tar.gz"].extend([moved("round.tar.gz")] * 99)
    with pytest.raises(FetchError, match="redirected more than 10 times"):
        fetch(server.url("round.tar.gz"))


@pytest.fixture
def tls(tmp_path):
    """An https server and the CA to trust."""
    made = certificates.make(tmp_path / "tls")
    with FaultServer(certificate=(made.server, made.server_key)) as running:
        running.add(NAME, TARBALL)
        yield running, made.authority


@pytest.mark.needs("openssl")
def test_an_unknown_certificate_is_refused_at_once(fetch, tls):
    server, _ = tls
    with pytest.raises(FetchError, match="certificate is not trusted") as caught:
        fetch(server.url(NAME))
    assert "REQUESTS_CA_BUNDLE" in caught.value.hint
    assert server.requests == []


@pytest.mark.needs("openssl")
def test_an_own_ca_is_trusted_when_it_is_named(fetch, tls):
    server, ca = tls
    server.faults[NAME].append(Fault(cut=THIRD))
    assert sound(fetch(server.url(NAME), env={"REQUESTS_CA_BUNDLE": str(ca)}))


@pytest.mark.needs("openssl")
def test_a_certificate_for_another_host_is_refused(fetch, tmp_path):
    made = certificates.make(tmp_path / "tls", "DNS:elsewhere.example")
    with FaultServer(certificate=(made.server, made.server_key)) as server:
        server.add(NAME, TARBALL)
        with pytest.raises(FetchError, match="certificate is not trusted"):
            fetch(server.url(NAME), env={"REQUESTS_CA_BUNDLE": str(made.authority)})


@pytest.mark.needs("openssl")
def test_https_never_follows_to_http(fetch, tls, url, server):
    secure, ca = tls
    secure.faults[NAME].append(moved(url))
    with pytest.raises(FetchError, match="redirects from https to http://"):
        fetch(secure.url(NAME), env={"REQUESTS_CA_BUNDLE": str(ca)})
    assert server.asked(NAME) == []
    assert fetch.left() == []


@pytest.mark.needs("openssl")
def test_nor_does_http_that_was_https_in_between(fetch, tls, url, server):
    secure, ca = tls
    secure.faults[NAME].append(moved(url))
    server.faults["start.tar.gz"].append(moved(secure.url(NAME)))
    with pytest.raises(FetchError, match="redirects from https to http://"):
        fetch(server.url("start.tar.gz"), env={"REQUESTS_CA_BUNDLE": str(ca)})


@pytest.mark.needs("openssl")
def test_a_ca_bundle_that_is_not_there_is_the_user_s_mistake(fetch, tls):
    with pytest.raises(ConfigError, match="/no/bundle") as caught:
        fetch(tls[0].url(NAME), env={"REQUESTS_CA_BUNDLE": "/no/bundle.pem"})
    assert "REQUESTS_CA_BUNDLE" in caught.value.hint


def test_proxies_of_the_process_are_not_used_those_given_are(fetch, url, monkeypatch):
    nobody = "http://127.0.0.1:9"
    monkeypatch.setenv("http_proxy", nobody)
    monkeypatch.setenv("HTTP_PROXY", nobody)
    with pytest.raises(FetchError):
        fetch(url, env={"http_proxy": nobody})
    assert sound(fetch(url, env={"http_proxy": nobody, "no_proxy": "127.0.0.0/8"}))
    assert fetch(url).cached


# Bad tarballs and trees, all the way.


def test_no_malicious_tarball_leaves_anything(fetch, server):
    for title, (data, says) in tarballs.malicious().items():
        url = server.add(NAME, data)
        with pytest.raises(FetchError) as caught:
            fetch(url)
        assert says in str(caught.value), title
        assert fetch.left() == [], title
    everything = {path.name for path in fetch.cache.parent.rglob("*")}
    assert not {"evil", "x", "new"} & everything


def test_the_budget_removes_the_oldest_tree_but_not_this_one(fetch, server, url):
    old = fetch(url).root
    other = server.add("other.tar.gz", OTHER)
    kept = fetch(other, budget=1)
    assert not old.exists()
    assert kept.root.is_dir()


def test_the_budget_holds_also_when_nothing_is_fetched(fetch, server, url):
    old = fetch(url).root
    other = server.add("other.tar.gz", OTHER)
    fetch(other)
    fetch(other, sha256=hashlib.sha256(OTHER).hexdigest(), budget=1)
    assert not old.exists()


def test_memory_stays_below_150_mib(fetch, tmp_path):
    path = tmp_path / NAME
    big = {f"lib/big{number}.so": tarballs.File(data=bytes(64 << 20)) for number in range(5)}
    path.write_bytes(tarballs.gz(tarballs.tar({**tarballs.rocm_files(), **big})))
    script = """
import sys, time
from pathlib import Path
from rocwheel import rocm
from rocwheel.base.console import Console
source, cache = sys.argv[1:]
plan = rocm.plan(source, sha256=None, version=None, cache=Path(cache), cwd=Path(cache))
rocm.fetch(plan, console=Console(sys.stderr, clock=time.monotonic))
status = Path("/proc/self/status").read_text()
print(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))
"""
    argv = [sys.executable, "-c", script, str(path), str(fetch.cache)]
    env = {"PYTHONPATH": f"{BUILD}:{BUILD.parent}"}
    done = subprocess.run(argv, env=env, check=True, capture_output=True, text=True)
    assert int(done.stdout) < 150 << 10  # KiB
