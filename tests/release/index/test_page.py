from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from urllib.parse import unquote, urljoin, urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.version import Version

from rocwheel.base.errors import ConfigError
from rocwheel.base.store import HTML, SIMPLE_JSON
from rocwheel.base.values import replace
from rocwheel.records.entry import Entry, version_of
from rocwheel.release.index.page import UNFOLDED, Page, Root, links, mark
from rocwheel.release.index.serve import SIMPLE_HTML, preferred
from rocwheel.release.ledger.state import Holding


def entry(version: str = "0.9.1", **changes) -> Entry:
    made = Entry(
        filename=f"jaxlib-{version}-cp312-cp312-manylinux_2_27_x86_64.whl",
        project="jaxlib",
        version=version,
        size=1234,
        sha256="a" * 64,
        metadata_sha256="b" * 64,
        uploaded="2026-05-01T12:00:00Z",
        requires_python=">=3.11,<4",
        kind="jaxlib",
        python="3.12",
        rocm="7.10.0",
        manifest="c" * 64,
    )
    return replace(made, **changes)


STATEMENTS = f"_rocwheel/attestations/{'c' * 64}/gfx90a/bundle.jsonl"


def html_of(page: Page) -> bytes:
    page = replace(page, family="gfx90a")
    return page.to_html(index_url="https://example.org/v2/gfx90a/")


@pytest.mark.parametrize(
    ("index_url", "where"),
    [
        ("https://wheels.example/v2/gfx90a/", "https://wheels.example/v2/"),
        ("http://127.0.0.1:8000/v2/gfx90a/", "http://127.0.0.1:8000/v2/"),
        ("http://localhost/v2/gfx90a/", "http://localhost/v2/"),
        ("http://wheels.example/v2/gfx90a/", ""),  # which PEP 740 does not take
        ("http://localhost.example/v2/gfx90a/", ""),
        ("http://127.example/v2/gfx90a/", ""),
        ("file:///srv/v2/gfx90a/", ""),
        ("", ""),
    ],
)
def test_a_provenance_is_named_where_its_origin_is_secure(index_url, where) -> None:
    """As a whole URL, in both forms; a page that names one is of a later version of the API."""
    wheels = (entry(provenance=True), entry("0.9.0"))
    page = Page(project="jaxlib", files=wheels, statements={"c" * 64: STATEMENTS})
    named = f"{where}_rocwheel/attestations/{'c' * 64}/{page.files[0].filename}.provenance"
    document = json.loads(page.to_json(index_url=index_url))
    assert [file.get("provenance", "") for file in document["files"]] == [where and named, ""]
    html = page.to_html(index_url=index_url).decode()
    assert re.findall(r' data-provenance="([^"]*)"', html) == ([named] if where else [])
    assert [link.filename for link in links(html.encode())] == [x.filename for x in page.files]


VERSIONS = st.from_regex(
    r"([1-9]!)?(0|[1-9][0-9]?)(\.(0|[1-9][0-9]?)){0,2}((a|b|rc)[0-9])?(\.post[0-9])?(\.dev[0-9])?"
    r"(\+[a-z]{1,4}(0|[1-9][0-9]?)(\.[a-z][a-z0-9]{0,5}){0,2})?",
    fullmatch=True,
).map(lambda text: str(Version(text)))


@settings(deadline=None)
@given(VERSIONS)
def test_every_version_survives_the_way_from_page_to_object(version: str) -> None:
    page = Page(project="jaxlib", files=(entry(version),))
    base = "http://host/v2/gfx90a/jaxlib/"
    (link,) = links(html_of(page))
    (file,) = json.loads(page.to_json())["files"]
    for url in (link.url, file["url"]):
        assert unquote(urlsplit(urljoin(base, url)).path) == f"/v2/{page.files[0].path}"
        assert "+" not in url
    assert version_of(link.filename) == ("jaxlib", version)


@given(st.text(min_size=1), st.text())
def test_no_text_breaks_out_of_the_page(reason: str, requires: str) -> None:
    page = Page(project="jaxlib", files=(entry(yanked=reason, requires_python=requires),))
    (link,) = links(html_of(page))
    clean = reason.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\ufffd")
    assert (link.yanked or "").replace("\r\n", "\n").replace("\r", "\n").replace(
        "\0", "\ufffd"
    ) == clean.encode("utf-8", "replace").decode()


def test_the_json_form_says_what_installers_ask() -> None:
    page = Page(
        project="jaxlib",
        files=(entry("0.9.1"), entry("0.9.2", yanked="bad", gfx_targets=("gfx90a",))),
        number=7,
    )
    document = json.loads(page.to_json())
    assert document["meta"]["api-version"] == "1.1"
    assert document["versions"] == ["0.9.2", "0.9.1"]
    newest = document["files"][0]
    assert newest["core-metadata"] == {"sha256": "b" * 64}
    assert "dist-info-metadata" not in newest  # pip 22.3 to 23.0 fail on it
    assert newest["hashes"] == {"sha256": "a" * 64}
    assert (newest["size"], newest["upload-time"]) == (1234, "2026-05-01T12:00:00Z")
    assert (newest["yanked"], document["files"][1]["yanked"]) == ("bad", False)
    assert newest["requires-python"] == ">=3.11,<4"


def test_both_forms_say_the_same() -> None:
    page = Page(project="jaxlib", files=(entry("0.9.1"), entry("0.9.2", yanked="")))
    shown = {link.filename: link for link in links(html_of(page))}
    for file in page.files:
        link = shown[file.filename]
        assert (link.sha256, link.metadata_sha256) == (file.sha256, file.metadata_sha256)
        assert (link.requires_python, link.yanked) == (file.requires_python, file.yanked)


def test_newest_versions_come_first_whatever_the_order_of_publishing() -> None:
    versions = ["0.9.1", "0.10.0", "0.9.2+rocm7.9.0", "0.9.2", "0.10.0rc1"]
    pages = [
        Page(project="jaxlib", files=tuple(map(entry, order)))
        for order in (versions, versions[::-1])
    ]
    assert pages[0].to_json() == pages[1].to_json()
    assert [item.version for item in pages[0].files] == [
        "0.10.0",
        "0.10.0rc1",
        "0.9.2+rocm7.9.0",
        "0.9.2",
        "0.9.1",
    ]


@pytest.mark.parametrize("sha256", ["", "a" * 63, "A" * 64, "sha256=" + "a" * 57])
def test_no_file_is_listed_without_its_hash(sha256: str) -> None:
    lacking = Holding(set="foreign", files=(entry(), entry(sha256=sha256)))
    with pytest.raises(ConfigError, match=r"files\[1\]\.sha256"):
        lacking.to_bytes()


@pytest.mark.parametrize("count", [0, 1, 1001])
def test_a_page_works_with_none_one_and_many_files(count: int) -> None:
    page = Page(project="jaxlib", files=tuple(entry(f"0.{number}") for number in range(count)))
    assert len(links(html_of(page))) == count
    assert len(json.loads(page.to_json())["files"]) == count


class Outline(HTMLParser):
    """Which elements a page has, and whether they close in order."""

    VOID = frozenset({"meta", "br", "link"})
    OPEN_ENDED = frozenset({"tr", "td", "th", "p", "thead"})  # HTML closes these itself

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag, _attrs) -> None:
        self.seen.append(tag)
        if tag not in self.VOID | self.OPEN_ENDED:
            self.open.append(tag)

    def handle_endtag(self, tag) -> None:
        if tag not in self.OPEN_ENDED:
            assert self.open.pop() == tag


@pytest.mark.parametrize("what", ["page", "root"])
def test_pages_are_plain_and_complete_in_themselves(what: str) -> None:
    page = Page(project="jaxlib", files=(entry(), entry("0.9.2", yanked="<&>")))
    root = Root(projects=frozenset({"jaxlib", "jax-rocm7-pjrt"}))
    data = html_of(page) if what == "page" else root.to_html(index_url="https://e/")
    outline = Outline()
    outline.feed(data.decode())
    assert outline.open == []
    assert not {"script", "link", "img", "iframe"} & set(outline.seen)
    assert b"http" not in data.replace(b"https://example.org", b"").replace(b"https://e/", b"")
    assert mark(data) == 0
    # Every link on a project page is a file: installers read no others (PEP 503).
    assert outline.seen.count("a") == 2


def test_the_newest_versions_are_shown_and_older_ones_open_on_a_click() -> None:
    files = tuple(entry(f"0.{number}") for number in range(UNFOLDED + 4))
    text = html_of(Page(project="jaxlib", files=files)).decode()
    assert re.findall("<details( open)?>", text) == [" open"] * UNFOLDED + [""] * 4


def test_the_copyable_line_names_project_version_and_index() -> None:
    text = html_of(Page(project="jaxlib", files=(entry("0.9.1+rocm7.10.0"),))).decode()
    assert (
        "pip install --no-deps --index-url https://example.org/v2/gfx90a/ "
        "jaxlib==0.9.1+rocm7.10.0</code>"
    ) in text


def test_the_front_page_has_the_line_that_installs_the_newest_plugin() -> None:
    root = Root(projects=frozenset({"jaxlib", "jax-rocm7-pjrt", "jax-rocm7-plugin"}))
    text = root.to_html(index_url="https://e/v2/all/").decode()
    (shown,) = re.findall("<code tabindex=0>(.*?)</code>", text, re.DOTALL)
    assert shown == "pip install --index-url https://e/v2/all/ jax-rocm7-plugin"
    assert b"<code" not in Root(projects=frozenset({"jaxlib"})).to_html(index_url="https://e/")


def test_foreign_pages_are_read_and_told_from_ours() -> None:
    data = b'<html><a href="/x/jaxlib-0.9.1%2Bx-cp312-cp312-any.whl#md5=1" data-yanked>f</a><a href="..">up</a>'
    (link,) = links(data)
    assert (link.filename, link.sha256, link.yanked) == (
        "jaxlib-0.9.1+x-cp312-cp312-any.whl",
        "",
        "",
    )
    assert mark(data) is None


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("", HTML),
        ("*/*", HTML),
        ("text/html", HTML),
        ("application/vnd.pypi.simple.v1+json", SIMPLE_JSON),
        (
            "application/vnd.pypi.simple.v1+json, text/html; q=0.01",
            SIMPLE_JSON,
        ),
        ("application/vnd.pypi.simple.v1+html", SIMPLE_HTML),
        ("text/html, application/vnd.pypi.simple.v1+json;q=0.5", HTML),
        ("application/vnd.pypi.simple.v1+json;q=nonsense, text/html", HTML),
        ("image/png", HTML),
    ],
)
def test_the_form_a_client_prefers_is_served(accept: str, form: str) -> None:
    assert preferred(accept) == form


@given(st.integers(0, 10**9), st.text())
def test_both_forms_carry_the_number_of_their_state(number: int, reason: str) -> None:
    forged = f'"rocwheel-entry":5, <meta name="rocwheel-entry" content="6">{reason}'
    page = Page(project="jaxlib", files=(entry(yanked=forged),), number=number)
    root = Root(projects=frozenset({"jaxlib"}), number=number)
    for data in (
        html_of(page),
        page.to_json(),
        root.to_json(),
        root.to_html(index_url="u"),
    ):
        assert mark(data) == number


def test_a_yank_without_a_reason_is_a_yank_in_both_forms() -> None:
    page = Page(project="jaxlib", files=(entry(yanked=""),))
    assert links(html_of(page))[0].yanked == ""
    assert json.loads(page.to_json())["files"][0]["yanked"] is True  # PEP 691: must be truthy
