"""What a manifest means on a machine: which ROCm, and which checkout of JAX."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rocwheel.base.errors import ConfigError
from rocwheel.gate import subject

DIGEST, COMMIT = "5" * 64, "a" * 40


def manifest(*, origin="tarball", commit=COMMIT, dirty=False):
    rocm = SimpleNamespace(
        origin=origin, name="therock-dist-linux-gfx90a-7.10.0.tar.gz", sha256=DIGEST,
        version="7.10.0", url="https://there/therock-dist-linux-gfx90a-7.10.0.tar.gz", delivery=None,
    )  # fmt: skip
    jax = SimpleNamespace(repository="https://here/jax", commit=commit, dirty=dirty)
    return SimpleNamespace(rocm=rocm, jax=jax, jax_version="0.9.1")


@pytest.fixture
def machine(tmp_path):
    (tmp_path / "mine").mkdir()
    return {"cache": tmp_path / "cache", "cwd": tmp_path}


def test_an_exact_rocm_is_held_to_the_manifest_wherever_it_comes_from(machine):
    named = f"https://there/{manifest().rocm.name}"
    assert DIGEST in str(subject.rocm_of(manifest(), named, exact=True, **machine))
    assert DIGEST not in str(subject.rocm_of(manifest(), named, exact=False, **machine))


def test_a_set_without_a_published_rocm_is_an_error_and_not_a_guess(machine):
    of = manifest(origin="directory")
    with pytest.raises(ConfigError, match="which ROCm"):
        subject.rocm_of(of, "", exact=True, **machine)
    assert str(machine["cwd"] / "mine") in str(subject.rocm_of(of, "mine", exact=True, **machine))


@pytest.mark.parametrize("named", ["nope", "ftp://example.com/x", "/dev/null", "https://"])
def test_a_hint_names_no_option_of_another_command(named, machine):
    with pytest.raises(ConfigError) as caught:
        subject.rocm_of(manifest(), named, exact=False, **machine)
    assert caught.value.hint
    assert "--therock" not in f"{caught.value} {caught.value.hint}"


def test_an_option_names_only_a_rocm_that_is_not_found_by_itself():
    assert subject.rocm_option("https://there/x.tar.gz") == ()
    signed = "https://there/x.tar.gz?signature=1"  # no manifest keeps that
    assert subject.rocm_option(signed) == (f"--rocm={signed}",)
    assert subject.rocm_option("/mine/x.tar.gz") == ("--rocm=/mine/x.tar.gz",)


def test_the_checkout_is_that_of_the_commit_and_its_tag(tmp_path):
    found = subject.jax_of(manifest(), cache=tmp_path)
    assert (found.commit, found.ref) == (COMMIT, "jax-v0.9.1")
    assert found.folder == subject.checkout("other", COMMIT, cache=tmp_path).folder


@pytest.mark.parametrize("of", [manifest(commit=""), manifest(dirty=True)])
def test_a_jax_that_no_commit_names_is_an_error(of, tmp_path):
    with pytest.raises(ConfigError, match="no JAX commit"):
        subject.jax_of(of, cache=tmp_path)
