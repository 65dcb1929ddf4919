"""What `--therock-path` may be, and what is known before anything is fetched."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec import UNSET
from support.tarballs import NAME

from rocwheel import rocm
from rocwheel.base.download import proxies, without_secrets
from rocwheel.base.errors import ConfigError, RocmError
from rocwheel.base.values import replace
from rocwheel.records.manifest import RocmDelivery, RocmSource
from rocwheel.rocm.rocm_root import Facts
from rocwheel.rocm.tree_cache import CachedTree

if TYPE_CHECKING:
    from pathlib import Path

URL = f"https://rocm.nightlies.amd.com/tarball/{NAME}"


def plan(source: str, tmp_path: Path, *, sha256=None, version=None) -> rocm.RocmPlan:
    return rocm.plan(source, sha256=sha256, version=version, cache=tmp_path / "cache", cwd=tmp_path)


def test_a_file_url_is_a_path(tmp_path):
    path = tmp_path / "with blank.tar.gz"
    path.write_bytes(b"")
    assert plan(path.as_uri(), tmp_path).source == str(path)


def test_a_directory_has_no_family_and_no_version_yet(tmp_path):
    folder = tmp_path / "therock-dist-linux-gfx94X-dcgpu-7.10.0.tar.gz"
    folder.mkdir()
    planned = plan(str(folder), tmp_path)
    assert (planned.origin, planned.version, planned.family) == (
        rocm.Origin.DIRECTORY,
        None,
        None,
    )


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("nowhere/x.tar.gz", "No such file"),
        ("s3://bucket/x.tar.gz", "s3 URLs are not supported"),
        ("ftp://host/x.tar.gz", "ftp URLs are not supported"),
        ("https:///x.tar.gz", "not a usable URL"),
        ("https://host:99999/x.tar.gz", "not a usable URL"),
        ("https://host/a b.tar.gz", "not a usable URL"),
        ("https://[::1/x.tar.gz", "not a usable URL"),
        ("/dev/null", "neither a file nor a directory"),
        ("https://host/rocm/tarball/", "a page of tarballs, and not one of them"),
        ("https://host/tarball/index.html?x=1", "a page of tarballs, and not one of them"),
        ("https://stable.repo.amd.com/rocm/core/tarball", "a page of tarballs, and not one of"),
        ("pip:rocm[libraries,devel,device-gfx94X-dcgpu]==7.10.0", "not a gfx target"),
    ],
)
def test_a_source_that_cannot_be_right_is_refused(source, says, tmp_path):
    with pytest.raises(ConfigError, match=says) as caught:
        plan(source, tmp_path)
    assert caught.value.hint


@pytest.mark.parametrize("digest", ["abc", "g" * 64, "a" * 63])
def test_a_checksum_that_is_none_is_refused(digest, tmp_path):
    with pytest.raises(ConfigError, match="not a SHA-256"):
        plan(URL, tmp_path, sha256=digest)


def test_a_directory_takes_no_checksum(tmp_path):
    with pytest.raises(ConfigError, match="directory"):
        plan(str(tmp_path), tmp_path, sha256="a" * 64)


def test_the_plan_says_what_would_happen(tmp_path):
    lines = str(plan(URL, tmp_path, sha256="ab" * 32)).splitlines()
    assert lines[0] == f"fetch ROCm 7.10.0a20251120 from {URL}"
    assert "ab" * 32 in lines[1]
    assert str(tmp_path / "cache/rocm/trees-3") in lines[2]
    assert "sha256 where that exists" in str(plan(URL, tmp_path))
    assert str(plan(".", tmp_path)) == f"use ROCm, version as the tree says in {tmp_path} as it is"


def test_a_password_and_a_signature_are_shown_nowhere(tmp_path):
    planned = plan(f"https://user:secret@host:8443/{NAME}?X-Signature=secret#secret", tmp_path)
    assert "secret" not in str(planned) + str(planned.document())
    assert planned.shown == f"https://host:8443/{NAME}"
    assert without_secrets("https://a:b@[::1]:1/x?y") == "https://[::1]:1/x"
    assert without_secrets("unix:///run/docker.sock") == "unix:///run/docker.sock"


@pytest.mark.parametrize(
    ("url", "env", "expected"),
    [
        ("https://h/x", {}, {}),
        ("https://h/x", {"HTTPS_PROXY": "http://p:1"}, {"https": "http://p:1"}),
        ("https://h/x", {"https_proxy": "a", "HTTPS_PROXY": "b"}, {"https": "a"}),
        ("http://h/x", {"HTTPS_PROXY": "http://p:1"}, {}),
        ("http://h/x", {"all_proxy": "http://p:1"}, {"http": "http://p:1"}),
        ("http://h/x", {"http_proxy": "p", "no_proxy": "other, h"}, {}),
        ("http://a.h.org/x", {"http_proxy": "p", "NO_PROXY": ".h.org"}, {}),
        ("http://a.h.org/x", {"http_proxy": "p", "NO_PROXY": "h.org"}, {}),
        ("http://ah.org/x", {"http_proxy": "p", "NO_PROXY": "h.org"}, {"http": "p"}),
        ("http://h:81/x", {"http_proxy": "p", "no_proxy": "h:80"}, {"http": "p"}),
        ("http://h:80/x", {"http_proxy": "p", "no_proxy": "h:80"}, {}),
        ("http://10.1.2.3/x", {"http_proxy": "p", "no_proxy": "10.0.0.0/8"}, {}),
        ("http://11.1.2.3/x", {"http_proxy": "p", "no_proxy": "10.0.0.0/8"}, {"http": "p"}),
        ("http://[::1]:1/x", {"http_proxy": "p", "no_proxy": "::1"}, {}),
        ("http://h/x", {"http_proxy": "p", "no_proxy": "*"}, {}),
    ],
)
def test_proxies_come_from_the_given_environment(url, env, expected):
    assert proxies(url, env) == expected


RECORDED = RocmSource(
    version="7.10.0a20251120", header_version="7.10.0", sha256="5" * 64, origin="tarball", name=NAME,
    delivery=RocmDelivery(url=f"https://mirror.example/{NAME}", size=9),
)  # fmt: skip


def test_a_manifests_rocm_is_fetched_from_where_it_came(tmp_path):
    planned = rocm.recorded(RECORDED, cache=tmp_path)
    assert planned.source == f"https://mirror.example/{NAME}"
    assert planned.sha256 == "5" * 64
    assert planned.family
    assert planned.family.name == "gfx94X-dcgpu"
    assert planned.document()["cached"] is None


def test_without_an_address_only_the_cache_can_help_and_no_url_is_guessed(tmp_path):
    nowhere = replace(RECORDED, delivery=UNSET)  # as in a manifest of schema 1
    with pytest.raises(ConfigError, match="does not say where this ROCm came from") as caught:
        rocm.recorded(nowhere, cache=tmp_path)
    assert "--rocm" in caught.value.hint
    place = tmp_path / "rocm" / "trees-3" / ("5" * 64)
    place.mkdir(parents=True)
    facts = Facts(root="dist", info_version="7.10.0", header_version="7.10.0", clang="", bitcode="",
                  targets=(), sonames=())  # fmt: skip
    entry = CachedTree(
        sha256="5" * 64, source="", packed=1, files=1, bytes=1, links=(), facts=facts
    )
    (place / "entry.json").write_bytes(entry.to_bytes())
    # the tarball has all its files in one folder: that one is ROCm's root
    assert rocm.recorded(nowhere, cache=tmp_path).cached == place / "tree" / "dist"


def test_a_tarball_for_windows_is_refused(tmp_path):
    with pytest.raises(RocmError, match="is a ROCm for windows"):
        plan(URL.replace("linux", "windows"), tmp_path)
