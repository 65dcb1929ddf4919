"""ci/therock.yaml: where TheRock publishes which version, and how its tarballs are named."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from rocwheel.base import yaml_file
from rocwheel.base.errors import ConfigError
from rocwheel.rocm import therock

CI = Path(__file__).parents[2] / "ci"


TABLE = [  # stream, version, address: the routing of TheRock #7547, #7644 and #7794
    ("nightly", "", "https://nightly.repo.amd.com/rocm/core/tarball/"),
    ("nightly", "10.1.0a20260823", "https://nightly.repo.amd.com/rocm/core/tarball/"),
    ("nightly", "10.2.0a20261007", "https://nightly.repo.amd.com/rocm/core/tarball/"),
    ("nightly", "10.1.0a20260822", "https://rocm.nightlies.amd.com/tarball-multi-arch/"),
    ("nightly", "7.15.0a20260630", "https://rocm.nightlies.amd.com/tarball-multi-arch/"),
    ("nightly", "10.0.0a20260901", "https://nightly.repo.amd.com/rocm/core/tarball/"),
    ("stable", "", "https://stable.repo.amd.com/rocm/core/tarball/"),
    ("stable", "10.0.0", "https://stable.repo.amd.com/rocm/core/tarball/"),
    ("stable", "7.14.1", "https://repo.amd.com/rocm/tarball-multi-arch/"),
    ("rc", "10.1.0rc1", "https://rc.repo.amd.com/rocm/core/tarball/"),
    ("rc", "10.0.0rc2", "https://rocm.prereleases.amd.com/tarball-multi-arch/"),
    ("prerelease", "10.1.0rc1", "https://rc.repo.amd.com/rocm/core/tarball/"),
    ("dev", "10.1.0.dev0+d41894c0", "https://dev.repo.amd.com/rocm/core/tarball/"),
    ("dev", "10.0.0.dev0+13caf791", "https://dev.repo.amd.com/rocm/core/tarball/"),
    ("bkc", "10.1.0a20260811+bkc.20260814", "https://bkc.repo.amd.com/rocm/core/tarball/"),
]


@pytest.mark.parametrize(("stream", "version", "where"), TABLE)
def test_a_stream_and_a_version_have_one_address(stream, version, where, tmp_path):
    found = therock.address(stream, "tarballs", version=version, ci=CI, cwd=tmp_path)
    assert found == where


def test_the_addresses_of_the_docs_are_those_of_the_data():
    text = (CI.parent / "docs" / "how-to" / "fetch-rocm.md").read_text()
    rows = [
        f"| `{name}` | {str(place.versions).replace('<', '&lt;')} | {place.tarballs} | {place.packages} "
        f"| {place.as_of}: {place.source} |"
        for name, stream in therock.known().streams.items()
        for place in stream.places
    ]
    assert [row for row in rows if row not in text] == []


def test_other_addresses_stand_for_themselves(tmp_path):
    def asked(text: str, kind: therock.Kind = "tarballs") -> str:
        return therock.address(text, kind, ci=CI, cwd=tmp_path)

    assert asked("nightly", "packages") == "https://nightly.repo.amd.com/rocm/whl-next/"
    assert asked("nightly", "asan") == "https://nightly.repo.amd.com/rocm/core/tarball-asan/"
    assert asked("https://mirror/rocm/") == "https://mirror/rocm/"
    assert asked("./stable") == "./stable"
    (tmp_path / "stable").mkdir()
    assert asked("stable") == "stable"


@pytest.mark.parametrize(
    ("stream", "kind", "version", "problem"),
    [
        ("bkc", "tarballs", "7.14.0", "ROCm 7.14.0: the stream 'bkc' has none"),
        ("stable", "tarballs", "99.0.0", "ROCm 99.0.0: the stream 'stable' has none"),
        ("stable", "packages", "7.15.0a20260630", "the stream 'stable' has none"),
        ("nightly", "packages", "99.0.0a20260901", "the stream 'nightly' has none"),
        ("http://mirror.lan/rocm/", "packages", "", "mirror.lan/rocm/: is not an https address"),
        ("ftp://mirror/rocm/", "tarballs", "", "ftp://mirror/rocm/: is not an https address"),
        ("file:///rocm/", "packages", "", "file:///rocm/: is not an https address"),
        ("nightly", "packages", "10.1.0a20269999", "the stream 'nightly' has none"),  # no such day
        ("stable", "asan", "10.0.0", "ROCm 10.0.0: the stream 'stable' has none"),
        ("nightly", "tarballs", "newest", "'newest': not a ROCm version"),
    ],
)
def test_a_version_that_a_stream_has_nowhere_is_an_error(stream, kind, version, problem, tmp_path):
    with pytest.raises(ConfigError, match=problem) as caught:
        therock.address(stream, kind, version=version, ci=CI, cwd=tmp_path)
    assert caught.value.hint


@pytest.mark.parametrize("word", ["nigthly", "Nightly"])
def test_a_word_that_is_no_stream_is_answered_with_the_nearest(word, tmp_path):
    with pytest.raises(ConfigError, match=f"'{word}': neither a stream") as caught:
        therock.address(word, "tarballs", ci=CI, cwd=tmp_path)
    assert caught.value.hint == "did you mean nightly?"


def test_a_mirror_may_be_plain_http_where_its_host_is_named(tmp_path):
    text = (CI / therock.FILE).read_text()
    mirror = "http://mirror.lan:8080/rocm/"
    text = text.replace("https://nightly.repo.amd.com/rocm/core/tarball/", mirror, 1)
    file = tmp_path / therock.FILE
    file.write_text(text)
    with pytest.raises(
        ConfigError, match=r"nightly\.places\[0\]\.tarballs: .* not an https"
    ) as caught:
        therock.address("nightly", "tarballs", ci=tmp_path, cwd=tmp_path)
    assert caught.value.hint == "write https, or add mirror.lan to `plain_http`"
    file.write_text(text.replace("plain_http: []", "plain_http: [mirror.lan]"))
    assert therock.address("nightly", "tarballs", ci=tmp_path, cwd=tmp_path) == mirror


@pytest.mark.parametrize(
    ("today", "told"),
    [("2026-09-20", ""), ("2026-09-22", "31 days old"), ("2026-08-29", "which is yet to come")],
)
def test_facts_older_than_a_month_or_yet_to_come_are_listed_with_a_command(today, told):
    streams = therock.known().streams
    lines = list(therock.outdated(date.fromisoformat(today), streams.values()))
    assert len(lines) == bool(told)
    assert not list(therock.outdated(date(2026, 9, 22), [streams["stable"]]))  # a night's own
    command = "compare it with TheRock's sources: `rocwheel pins bump therock`"
    assert all(line.endswith(f"{told}; {command}") for line in lines)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (
            "        packages: https://repo.amd.com/rocm/whl-multi-arch/\n",
            "",
            "'packages' is missing",
        ),
        ("https://repo.amd.com/rocm/tarball-multi-arch/", "http://x/", "not an https address"),
        ("        asan:", "        asn:", "unknown key"),
        ("as_of: 2026-09-01", "as_of: 2026-09-01\n        ended: 2026-09-01", "name no day"),
        ('versions: "<10.0"', 'versions: "before 10"', "Invalid specifier"),
        ("(?P<tests>-tests)", "(-tests)", "has no group 'tests'"),
        (r"<(Key|Size", "<((Key|Size", "cannot refer to an open group"),
        ('versions: "<10.0"', 'versions: "<=10.0"', "ROCm 10.0 is in an earlier place, too"),
        ('versions: "<10.0"', 'versions: ">9"', "ROCm 10.0 is in an earlier place, too"),
        ('versions: ">=10.0,<12"', 'versions: ""', "in an earlier place, too"),
        ("also: [prerelease]", "also: [dev]", r"streams\.rc\.also\[0\]: dev is given twice"),
        ("example: 10.0.0", "example: 10.0.0a1", "10.0.0a1 does not fit `pattern`"),
        ("example: 10.1.0a20260901", "example: 10.1.0a20269999", "names no day"),
        ("quiet_days: 60", "quiet_days: -1", r"quiet_days: .*>= 1"),
        (
            "https://bkc.repo.amd.com/rocm/core/tarball/",
            "https://dev.repo.amd.com/rocm/core/tarball/",
            "is an address of bkc, too",
        ),
        ("plain_http: []", "plain_http: ['*']", "'\\*' is not a host"),
        ("plain_http: []", "plain_http: ['mirror.lan:80']", "is not a host"),
        ("  kernel_packs: .kpack", "  kpack: .kpack", "unknown key"),
    ],
)
def test_a_mistake_is_named_with_its_place(old, new, problem, tmp_path):
    text = (CI / therock.FILE).read_text()
    assert old in text
    (tmp_path / therock.FILE).write_text(text.replace(old, new, 1))
    with pytest.raises(ConfigError, match=rf"therock\.yaml:\d+:\d+: .*{problem}"):
        yaml_file.read(tmp_path / therock.FILE, therock.TheRock)


@pytest.mark.parametrize(
    ("old", "new", "link"),
    [
        ("7.13.0", "7.14.0", "compare/therock-7.13...therock-7.14"),
        ("7.15.0a20260630", "10.1.0a20260811", "commits/main/?since=2026-06-30&until=2026-08-11"),
        ("7.14.0.dev0+13caf791", "7.14.0.dev0+ffff00aa", "compare/13caf791...ffff00aa"),
        ("7.13.0", "7.15.0a20260630", ""),
        ("7.13.0rc1", "7.13.0", ""),
        ("7.13.0", "7.13.1", ""),  # how TheRock would call its tag is not known
        ("", "7.13.0", ""),
    ],
)
def test_versions_tell_where_people_read_what_changed(old, new, link):
    there = "https://github.com/ROCm/TheRock/"
    assert therock.changes(old, new) == (link and there + link)


@pytest.mark.parametrize(
    ("name", "group", "version", "is_release"),
    [
        ("therock-dist-linux-gfx94X-dcgpu-7.10.0a20251120.tar.gz", "gfx94X-dcgpu", "7.10.0a20251120", True),
        ("therock-dist-linux-gfx110X-all-7.13.0a20260430.tar.gz", "gfx110X-all", "7.13.0a20260430", True),
        ("therock-dist-linux-multiarch-7.15.0a20260630.tar.gz", "multiarch", "7.15.0a20260630", True),
        ("therock-dist-linux-multiarch-tests-7.13.0.tar.gz", "multiarch", "7.13.0", False),
        ("therock-dist-linux-gfx94X-dcgpu-tests-7.14.0.dev0+13caf791.tar.gz", "gfx94X-dcgpu", "7.14.0.dev0+13caf791", False),
        ("therock-dist-linux-gfx1151-7.9.0rc1.tar.gz", "gfx1151", "7.9.0rc1", True),
        ("therock-dist-linux-multiarch-10.1.0a20260811+bkc.20260814.tar.gz", "multiarch", "10.1.0a20260811+bkc.20260814", True),
        ("therock-dist-windows-gfx1151-7.9.0.tar.gz", "gfx1151", "7.9.0", False),
        ("therock-dist-linux-gfx110X-dgpu-7.10.0.tar.zst", "gfx110X-all", "7.10.0", True),  # its old name
        ("therock-dist-linux-gfx77-what-7.10.0.tar.gz", "gfx77-what", "7.10.0", True),
        ("therock-dist-linux-gfx1151-1x2.tar.gz", "gfx1151", None, False),
    ],
)  # fmt: skip
def test_names_of_therock(name, group, version, is_release):
    parsed = therock.parse_name(name)
    assert parsed is not None
    assert (parsed.group, str(parsed.version) if parsed.version else None) == (group, version)
    assert parsed.is_release is is_release
    assert parsed.is_multiarch is (group == "multiarch")


@pytest.mark.parametrize(
    "name",
    [
        "rocm.tar.gz",
        "therock-dist-linux-gfx94X-dcgpu.tar.gz",
        "therock-dist-linux-7.10.0.tar.gz",
        "therock-dist-linux-gfx94X-dcgpu-7.10.0.tar.gz.sha256",
        "old-therock-dist-linux-gfx94X-dcgpu-7.10.0.tar.gz",
        "therock-dist-linux-gfx94X-dcgpu-7.10.0/x.tar.gz",
    ],
)
def test_other_names_are_none(name):
    assert therock.parse_name(name) is None
