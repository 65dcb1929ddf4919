"""Pages that list tarballs. TheRock's is imitated in shape only; tests/real runs its generators."""

from __future__ import annotations

import json
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest
from support.faultserver import Fault, FaultServer

from rocwheel.base.download import Client, Retry
from rocwheel.base.errors import ConfigError, FetchError
from rocwheel.rocm import listing, therock

if TYPE_CHECKING:
    from pathlib import Path

OLD = "therock-dist-linux-gfx94X-dcgpu-7.13.0a20260430.tar.gz"
NEW = "therock-dist-linux-gfx94X-dcgpu-7.15.0a20260630.tar.gz"
DEV = "therock-dist-linux-gfx90a-7.14.0.dev0+13caf791.tar.gz"
ALL = "therock-dist-linux-multiarch-7.15.0a20260630.tar.gz"
TESTS = "therock-dist-linux-gfx94X-dcgpu-tests-7.15.0a20260701.tar.gz"
WINDOWS = "therock-dist-windows-gfx94X-dcgpu-7.15.0a20260702.tar.gz"
NAMES = (NEW, OLD, DEV, ALL, TESTS, WINDOWS)


def script_page(*names: str, times: dict[str, float] | None = None) -> str:
    """Imitate the page of TheRock's index_generation_s3_tar.py: no link, one constant."""
    files = json.dumps([{"name": name, "mtime": (times or {}).get(name, 1.5)} for name in names])
    return f"""<html><head><title>Tarballs</title><script>
        const files = {files};
        function show(list) {{ li.innerHTML = `<a href="${{href}}">x</a>`; }}
    </script></head><body><select><option value="gfx94X">gfx94X</option></select></body></html>"""


def link_page(*names: str) -> str:
    """Imitate a web server's own listing of a folder."""
    links = (name.replace("+", "%2B") for name in names)
    return "".join(f'<a href="./{name}">{name}</a>  8G\n<a HREF={name}>again</a>' for name in links)


def bucket_page(*names: str, days: dict[str, str] | None = None) -> str:
    """Imitate the answer of S3's ListObjectsV2."""
    day = (days or {}).get
    entries = "".join(
        f"<Contents><Key>v4/tarball/{name}</Key>"
        f"<LastModified>{day(name, '2026-06-30')}</LastModified>"
        f"<ETag>&quot;1&quot;</ETag><Size>7</Size></Contents>"
        for name in names
    )
    return f"<?xml version='1.0'?><ListBucketResult>{entries}</ListBucketResult>"


@pytest.fixture
def client():
    with Client({}, retry=Retry(attempts=1, pause=0.01), note=print) as made:
        yield made


def newest(page: str | bytes, client: Client, tmp_path: Path, *, path: str = "tarball-multi-arch/"):
    with FaultServer() as server:
        url = server.add(path, page if isinstance(page, bytes) else page.encode())
        found = listing.newest_of(listing.every(url, client=client, cwd=tmp_path), url)
        return {group: item.source.replace(server.url(""), "/") for group, item in found.items()}


@pytest.mark.parametrize("page", [script_page, link_page])
def test_each_family_gets_its_newest_tarball(page, client, tmp_path):
    found = newest(page(*NAMES), client, tmp_path)
    assert found == {
        "gfx94X-dcgpu": f"/tarball-multi-arch/{NEW}",
        "gfx90a": f"/tarball-multi-arch/{DEV.replace('+', '%2B')}",
        "multiarch": f"/tarball-multi-arch/{ALL}",
    }


LATER = "therock-dist-linux-gfx90a-7.14.0.dev0+0a0a0a0a.tar.gz"


@pytest.mark.parametrize(
    ("page", "path"),
    [
        (script_page(DEV, LATER, times={DEV: 1780000000.0, LATER: 1780000000.25}), "dev/"),
        (script_page(LATER, DEV, times={DEV: 1780000000.0, LATER: 1780000000.25}), "dev/"),
        (bucket_page(LATER, DEV, days={DEV: "2026-06-01", LATER: "2026-06-02"}), ""),
    ],
    ids=["later-last", "later-first", "bucket"],
)
def test_of_builds_that_a_commit_alone_tells_apart_the_later_one_is_newer(
    page, path, client, tmp_path
):
    assert newest(page, client, tmp_path, path=path)["gfx90a"].endswith("dev0%2B0a0a0a0a.tar.gz")


def test_a_newer_version_is_newer_whenever_it_was_put_there(client, tmp_path):
    page = script_page(OLD, NEW, times={NEW: 1780000000.0, OLD: 1790000000.0})
    assert newest(page, client, tmp_path)["gfx94X-dcgpu"].endswith(NEW)


@pytest.mark.parametrize(
    ("path", "root"), [("", ""), ("bucket", "/bucket"), ("bucket/", "/bucket")]
)
def test_a_buckets_own_listing_is_read_from_its_root_or_its_name(path, root, client, tmp_path):
    found = newest(bucket_page(*NAMES), client, tmp_path, path=path)
    assert found["multiarch"] == f"{root}/v4/tarball/{ALL}"


def test_a_long_listing_of_a_bucket_is_read_to_its_end(client, tmp_path):
    more = "<NextContinuationToken>a/b=</NextContinuationToken></ListBucketResult>"
    first = bucket_page(OLD).replace("</ListBucketResult>", more)
    asked = []

    class Bucket(BaseHTTPRequestHandler):  # FaultServer knows no queries
        def do_GET(self) -> None:
            asked.append(self.path)
            body = (bucket_page(NEW) if "a%2Fb%3D" in self.path else first).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Bucket)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        url = f"http://127.0.0.1:{server.server_port}/?prefix=v4"
        found = listing.newest_of(listing.every(url, client=client, cwd=tmp_path), url)
    finally:
        server.shutdown()
        server.server_close()
    assert found["gfx94X-dcgpu"].source.endswith(NEW)
    assert asked == ["/?prefix=v4", "/?prefix=v4&continuation-token=a%2Fb%3D"]


@pytest.mark.parametrize(
    ("page", "problem"),
    [
        (script_page(), "lists nothing to build with: it names no file"),
        (bucket_page(), "lists nothing to build with: it names no file"),
        ("<title>Index of /rocm</title><a href=../>../</a><a href='?C=N;O=D'>Name</a>",
         "lists nothing to build with: it names no file"),
        (link_page(WINDOWS, TESTS), "lists nothing to build with: 4 tarballs of ROCm's tests or"),
        ("<form action='/login'><input name=user></form>", "cannot be read: it is not a list"),
        ("<title>Sign in</title><a href=/help>help</a>", "cannot be read: it is not a list"),
        ("<a href=more.html>Read more</a>", "cannot be read: it is not a list"),
        ("", "cannot be read: it is empty"),
        ("<Error><Code>AccessDenied</Code></Error>", "cannot be read: .* answers AccessDenied"),
        (f'{{"files": ["{NEW}"]}}', "cannot be read: it is not a list"),
        (script_page(*NAMES).replace("const files", "const tarballs"), "cannot be read: it is no"),
        (script_page(*NAMES)[:150], "cannot be read: .*no whole JSON"),
        ("const files = [{name: 'x'}];", "no whole JSON: Expecting property name"),
        (f"<html><title>Index of /</title><a href={NEW}>", "cannot be read: .*does not end"),
        (bucket_page(*NAMES)[:150], "cannot be read: .*does not end"),
        ("const files = [7]", "cannot be read: .*without a name"),
        (link_page("torch-2.9.tar.gz"), "has 1 file with a name that .* such as torch-2.9"),
        (script_page(NEW.replace("dist", "sdk")), "has 1 file with a name .* therock-sdk-linux"),
        (link_page("rocm-1.tzst"), "has 1 file with a name .* such as rocm-1.tzst$"),
        (bucket_page("a.tzst", TESTS), "such as a.tzst, beside 1 tarball of ROCm's tests or"),
        ("<title>Index of /</title><a href=v3/>v3/</a>", "has 1 file .* such as v3"),
        (f"<a href=a/{NEW}></a><a href=b/{NEW}></a>", f"lists {NEW} twice"),
        pytest.param(b" " * (65 << 20), "larger than", id="huge"),
    ],
)  # fmt: skip
def test_a_page_that_is_none_is_one_error(page, problem, client, tmp_path):
    with pytest.raises(FetchError, match=problem) as caught:
        newest(page, client, tmp_path)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("name", "modified", "day"),
    [
        (NEW, "1790000000.0", "2026-06-30"),  # a mirror's own time says nothing of the build
        (NEW.replace("a20260630", "a20260630%2Bbkc.20260702"), "", "2026-07-02"),
        (NEW.replace("a20260630", ""), "1790000000.0", "2026-09-21"),
        (NEW.replace("a20260630", ""), "2026-06-30T10:00:00Z", "2026-06-30"),
        (NEW.replace("a20260630", "a20261399"), "yesterday", "None"),
        (NEW.replace("a20260630", ""), "1e300", "None"),
    ],
)
def test_a_build_is_of_the_day_that_its_version_or_the_page_says(name, modified, day):
    parsed = therock.parse_name(name.replace("%2B", "+"))
    assert parsed
    assert str(listing.ListedTarball(name=parsed, source="", modified=modified).day) == day


@pytest.mark.parametrize(("attempts", "told"), [(1, "(1 attempt)"), (2, "(2 attempts)")])
def test_a_failure_says_how_often_each_page_was_tried(attempts, told, tmp_path):
    retry = Retry(attempts=attempts, pause=0.01)
    with FaultServer() as server, Client({}, retry=retry, note=print) as client:
        for page in ("a/", "b/", "a/"):
            server.faults[page] += [Fault(status=503)] * attempts
            with pytest.raises(FetchError) as caught:
                listing.every(server.url(page), client=client, cwd=tmp_path)
            assert str(caught.value).endswith(told)


def test_a_page_that_a_bucket_refuses_says_so(client, tmp_path):
    denied = b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>"
    with FaultServer() as server:
        server.faults["x/"] += [Fault(status=403, body=denied)]
        with pytest.raises(FetchError, match=r"403 Forbidden \(AccessDenied\)"):
            listing.every(server.url("x/"), client=client, cwd=tmp_path)


def test_a_folder_that_is_not_there_is_an_error(client, tmp_path):
    with pytest.raises(ConfigError, match="no such folder"):
        listing.every("nowhere", client=client, cwd=tmp_path)


def test_an_address_that_makes_no_sense_is_passed_over(client, tmp_path):
    page = f'<a href="http://[bad/{OLD}">bad</a>' + link_page(NEW)
    assert list(newest(page, client, tmp_path)) == ["gfx94X-dcgpu"]


def test_a_name_server_that_does_not_answer_holds_no_command(tmp_path, monkeypatch):
    """A resolver asks each server again and again, for minutes: here until the test is over."""
    over = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: over.wait(60))
    began = time.monotonic()
    with (
        Client({}, retry=Retry(contact=0.5), note=lambda _: None) as client,
        pytest.raises(FetchError, match=r"rocm\.example: no name server answers"),
    ):
        listing.every("https://rocm.example/tarball/", client=client, cwd=tmp_path)
    over.set()
    assert time.monotonic() - began < 10
