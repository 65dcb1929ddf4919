"""Which Bazel is used: named, found, of the wanted version, or a reason why not."""

from __future__ import annotations

import hashlib
import shutil
import threading
from pathlib import Path

import pytest
from support.faultserver import Fault, FaultServer

from rocwheel import bazel, source
from rocwheel.base import yaml_file
from rocwheel.base.download import Retry
from rocwheel.base.errors import ConfigError, FetchError, HostError
from rocwheel.base.process import Command
from rocwheel.base.values import replace
from rocwheel.bazel import Downloads
from rocwheel.bazel.binary import Digest, Releases, host_platform

pytestmark = pytest.mark.integration

CI = Path(__file__).parents[2] / "ci"


@pytest.fixture
def place(tmp_path):
    """Put a program that answers `--version` into a folder; the folder's path."""

    def make(name: str, says: str, folder: str = "bin") -> Path:
        path = tmp_path / folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f'#!/bin/sh\n[ "$1" = --version ] || exit 9\n{says}\n')
        path.chmod(0o755)
        return path

    return make


def locate(tmp_path, runner, flag=None, wanted="", search_path=None):
    return bazel.locate(
        flag,
        wanted=wanted,
        search_path=search_path or str(tmp_path / "bin"),
        workspace=tmp_path,
        runner=runner,
    )


def test_the_bazel_on_path_is_taken_with_its_version(place, tmp_path, runner):
    path = place("bazel", "echo bazel 7.7.0")
    found = locate(tmp_path, runner, wanted="7.7.0")
    assert (found.path, found.version, found.origin) == (path, "7.7.0", "PATH")
    assert found.release == (7, 7, 0)


def test_debians_bazel_does_not_know_its_version_and_is_taken_all_the_same(place, tmp_path, runner):
    place("bazel", "echo bazel no_version")
    found = locate(tmp_path, runner)
    assert (found.version, found.release) == ("unknown", ())


def test_another_version_than_the_tree_wants_is_shown_and_refused(place, tmp_path, runner):
    path = place("bazel", "echo bazel 6.5.0")
    with pytest.raises(
        HostError, match=rf"Bazel 7\.7\.0: found no usable one: {path} is 6\.5\.0"
    ) as caught:
        locate(tmp_path, runner, wanted="7.7.0")
    assert "--bazel" in caught.value.hint


def test_a_bazel_named_by_flag_is_used_in_any_version(place, tmp_path, runner):
    path = place("my-bazel", "echo bazel 8.0.0-pre.20240101", folder="elsewhere")
    found = locate(tmp_path, runner, flag=str(path), wanted="7.7.0")
    assert (found.path, found.version, found.origin) == (path, "8.0.0-pre.20240101", "flag")


def test_bazelisk_is_taken_where_bazel_is_not_the_wanted_one(place, tmp_path, runner):
    place("bazel", "echo bazel no_version")
    path = place("bazelisk", "echo bazel 7.7.0")
    assert locate(tmp_path, runner, wanted="7.7.0").path == path


def test_debians_bazel_where_the_tree_asks_for_another_is_passed_over(downloads, find, tmp_path):
    """Its wrapper reads `.bazelversion` itself and refuses to say which Bazel it is."""
    real = shutil.which("bazel")
    assert real
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/bazel").symlink_to(real)
    (tmp_path / "WORKSPACE").touch()
    (tmp_path / ".bazelversion").write_text("9.9.9\n")
    found = find(downloads())
    assert found.origin == "download"
    (why,) = found.passed_over
    assert "requires Bazel 9.9.9" in why
    assert "\x1b" not in why
    with pytest.raises(HostError, match="requires Bazel 9"):
        find(downloads(), flag="bazel")


def test_the_bazel_that_is_used_is_shown(place, downloads, find, talk):
    path = place("bazel", "echo bazel 9.9.9")
    find(downloads())
    assert talk.getvalue() == f"Bazel 9.9.9: {path} (PATH)\n"


def test_a_program_that_is_no_bazel_is_refused(place, tmp_path, runner):
    path = place("bazel", "echo GNU Make 4.3")
    with pytest.raises(HostError, match=rf"{path}: is not Bazel: it says 'GNU Make"):
        locate(tmp_path, runner)


def test_a_bazel_that_does_not_run_is_refused(place, tmp_path, runner):
    place("bazel", "exit 1")
    with pytest.raises(HostError, match="does not run"):
        locate(tmp_path, runner)


def test_no_bazel_at_all_says_how_to_get_one(tmp_path, runner):
    with pytest.raises(HostError, match="no such program") as caught:
        locate(tmp_path, runner, search_path=str(tmp_path))
    assert "bazel-bootstrap" in caught.value.hint
    with pytest.raises(HostError, match="nowhere: no such program"):
        locate(tmp_path, runner, flag="nowhere")


SCRIPT = b"#!/bin/sh\necho bazel 9.9.9\n"
FAST = Retry(attempts=3, pause=0.01)


@pytest.fixture
def site():
    """A release site, laid out as GitHub's, with one release."""
    with FaultServer() as server:
        server.add(f"releases/9.9.9/bazel-9.9.9-{host_platform()}", SCRIPT)
        yield server


@pytest.fixture
def downloads(site, tmp_path):
    def make(*, sha256=None, verified=True, **more):
        digest = Digest(sha256=sha256 or hashlib.sha256(SCRIPT).hexdigest(), verified=verified)
        table = Releases(
            url=site.url("releases/{version}/bazel-{version}-{platform}"),
            releases={"9.9.9": {host_platform(): digest}},
        )
        return Downloads(releases=table, folder=tmp_path / "cache", retry=FAST, **more)

    return make


@pytest.fixture
def find(tmp_path, runner, console):
    def run(downloads, *, flag=None, wanted="9.9.9", console=console):
        return bazel.locate(
            flag,
            wanted=wanted,
            search_path=str(tmp_path / "bin"),
            workspace=tmp_path,
            runner=runner,
            downloads=downloads,
            console=console,
        )

    return run


def test_the_wanted_release_is_downloaded_once_and_runs(downloads, find, site, tmp_path, runner):
    found = find(downloads())
    assert (found.version, found.origin) == ("9.9.9", "download")
    assert runner.capture(Command(argv=(str(found.path),))) == "bazel 9.9.9\n"
    again = find(downloads())
    assert (again.path, again.origin) == (found.path, "cache")
    assert len(site.requests) == 1


def test_a_bazel_on_path_of_another_version_is_not_used(downloads, find, place, talk):
    path = place("bazel", "echo bazel 6.5.0")
    assert find(downloads()).origin == "download"
    assert f"not used: {path} is 6.5.0, this tree asks for 9.9.9" in talk.getvalue()


def test_other_bytes_than_the_table_says_are_never_executed(downloads, find, tmp_path):
    with pytest.raises(FetchError, match=r"SHA-256 is \w+, not 0000"):
        find(downloads(sha256="0" * 64))
    assert list((tmp_path / "cache").rglob("bazel*")) == []


def test_a_broken_download_is_tried_again_and_leaves_nothing_half(downloads, find, site, tmp_path):
    path = f"releases/9.9.9/bazel-9.9.9-{host_platform()}"
    site.faults[path] += [Fault(cut=5), Fault(status=503)]
    assert Path(find(downloads()).path).read_bytes() == SCRIPT
    site.faults[path] += [Fault(status=503)] * 3
    shutil.rmtree(tmp_path / "cache")
    with pytest.raises(FetchError, match="3 attempts") as caught:
        find(downloads())
    assert "--bazel-mirror" in caught.value.hint
    assert list((tmp_path / "cache").rglob("*.part")) == []


def test_a_mirror_stands_in_for_the_release_site(downloads, find, site):
    site.add(f"mirror/9.9.9/bazel-9.9.9-{host_platform()}", SCRIPT)
    find(downloads(mirror=site.url("mirror/")))
    assert [request.path.split("/")[0] for request in site.requests] == ["mirror"]


@pytest.mark.parametrize(
    "mirror", ["https://user:s3cret@host/bazel", "ftp://u:s3cret@host/x", "ftp://host/x", "/srv"]
)
def test_a_mirror_with_a_password_or_of_another_kind_is_refused(mirror, downloads, find):
    with pytest.raises(ConfigError, match="--bazel-mirror") as caught:
        find(downloads(mirror=mirror))
    assert "s3cret" not in f"{caught.value} {caught.value.hint}"


def test_a_proxy_is_used_when_one_is_given(downloads, find, site):
    proxied = replace(
        downloads(mirror="http://bazel.invalid"), env={"http_proxy": site.url("").rstrip("/")}
    )
    with pytest.raises(FetchError, match=r"bazel\.invalid"):
        find(proxied)  # the site is no proxy, but it was asked for the absolute address
    assert site.requests[0].path.startswith("http://bazel.invalid/9.9.9/")


def test_an_unverified_digest_is_warned_of_and_refused_when_locked(downloads, find, site, talk):
    with pytest.raises(ConfigError, match="never compared") as caught:
        find(downloads(verified=False, only_verified=True))
    assert "--locked" in caught.value.hint
    assert site.requests == []
    find(downloads(verified=False))
    assert "warning: Bazel 9.9.9: its SHA-256 was never compared" in talk.getvalue()
    with pytest.raises(ConfigError):  # also when it is in the cache by now
        find(downloads(verified=False, only_verified=True))


def test_a_dry_run_downloads_nothing_and_says_what_it_would(downloads, find, site):
    found = find(downloads(), console=None)
    assert found.url == site.url(f"releases/9.9.9/bazel-9.9.9-{host_platform()}")
    assert not Path(found.path).exists()
    assert site.requests == []


def test_a_version_the_table_does_not_have_is_named(downloads, find):
    with pytest.raises(
        ConfigError, match=r"Bazel 9\.9\.8 for .*: not in ci/bazel_binaries"
    ) as caught:
        find(downloads(), wanted="9.9.8")
    assert "did you mean 9.9.9" in caught.value.hint


def test_two_runs_at_once_download_once(downloads, find, site):
    threads = [threading.Thread(target=find, args=(downloads(),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(site.requests) == 1


def test_the_committed_table_has_every_bazel_a_pin_wants():
    table = yaml_file.read(CI / "bazel_binaries.yaml", bazel.Releases)
    pins = source.load_pins(CI / "pins.yaml", layouts=source.load_layouts(CI / "layouts.yaml")).pins
    assert {pin.bazel for pin in pins} <= {*table.releases}
    assert (
        table.url.format(version="7.7.0", platform="linux-x86_64")
        == "https://github.com/bazelbuild/bazel/releases/download/7.7.0/bazel-7.7.0-linux-x86_64"
    )
    digests = (digest for platforms in table.releases.values() for digest in platforms.values())
    assert not any(digest.verified for digest in digests)  # write true when they are


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("sha256: c97f", "sha256: c97g", "64 hexadecimal"),
        ("verified: false", "verified: perhaps", "expected true or false"),
        ("{platform}", "linux", "does not contain {platform}"),
    ],
)
def test_a_mistake_in_the_table_is_named(tmp_path, old, new, problem):
    path = tmp_path / "bazel_binaries.yaml"
    path.write_text((CI / "bazel_binaries.yaml").read_text().replace(old, new))
    with pytest.raises(ConfigError, match=problem):
        yaml_file.read(path, bazel.Releases)
