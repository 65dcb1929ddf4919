"""`bump`: each kind against real git repositories and a web server."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from support import jax_release
from support.faultserver import FaultServer
from support.git_server import commit, git, repository

from rocwheel.base.download import Client, Retry
from rocwheel.base.errors import ConfigError, FetchError, SourceError
from rocwheel.base.here import utc_now
from rocwheel.base.home import Home
from rocwheel.base.process import HostRunner, base_env
from rocwheel.cli import main
from rocwheel.tools import bump

pytestmark = [pytest.mark.integration, pytest.mark.needs("git")]

ROOT = Path(__file__).parents[2]
OLD_ROCM = "therock-dist-linux-gfx94X-dcgpu-7.12.0.tar.gz"


@pytest.fixture
def context(tmp_path, console):
    root = tmp_path / "checkout"
    shutil.copytree(ROOT / "ci", root / "ci")
    (tmp_path / "github").mkdir()
    with Client({}, retry=Retry(attempts=1), note=print) as client:
        here = SimpleNamespace(
            home=Home(root=root, ci=root / "ci", tests=root), cache=tmp_path / "cache",
            cwd=tmp_path, runner=HostRunner(base_env(os.environ)), console=console,
            environ=dict(os.environ), now=utc_now,
        )  # fmt: skip
        github = f"{(tmp_path / 'github').as_uri()}/"
        yield bump.BumpContext(here=here, client=client, github=github)


def upstream(context: bump.BumpContext, name: str, *tags: str) -> Path:
    """A repository with a commit for each tag, annotated as releases are."""
    folder = Path(context.github.removeprefix("file://")) / name
    repository(folder, {"README": "0"})
    for number, tag in enumerate(tags):
        commit(folder, {"README": f"{number + 1}"})
        who = ("-c", "user.name=t", "-c", "user.email=t@e")
        git(folder, *who, "tag", "-a", "-m", tag, tag)
    return folder


def one(kind: str, context: bump.BumpContext, name: str) -> tuple[bump.Fact, str]:
    return next((fact, to) for _, fact, to in bump.newer((kind,), context) if fact.name == name)


def comments(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip().startswith("#")]


@pytest.fixture
def bazels(context):
    """Bazel's releases: a table that names our server, and tags."""
    upstream(context, "bazelbuild/bazel", "7.7.0", "7.7.1", "8.0.0", "7.8.0rc1", "9.0.0")
    with FaultServer() as server:
        path = context.here.home.ci / "bazel_binaries.yaml"
        start = server.add("x", b"").removesuffix("x")
        path.write_text(
            path.read_text().replace(
                "https://github.com/bazelbuild/bazel/releases/download/", start
            )
        )
        yield server, path


def offered(server: FaultServer, version: str, data: bytes, digest: str = "") -> str:
    name = f"bazel-{version}-linux-x86_64"
    sha256 = hashlib.sha256(data).hexdigest()
    server.add(f"{version}/{name}", data)
    server.add(f"{version}/{name}.sha256", f"{digest or sha256}  {name}\n".encode())
    return sha256


def test_a_digest_that_was_only_copied_is_verified_in_place_or_refused(context, bazels):
    server, path = bazels
    fact, to = bump.named("bazel", "7.7.0", context)
    sha256 = offered(server, to, b"other")
    with pytest.raises(FetchError, match=rf"{sha256}, not fe7e799c"):
        bump.bump("bazel", fact, to, context)
    known = yaml.safe_load(path.read_text())["releases"][to]["linux-x86_64"]["sha256"]
    path.write_text(path.read_text().replace(known, sha256))
    bump.bump("bazel", fact, to, context)
    assert yaml.safe_load(context.texts[path])["releases"][to]["linux-x86_64"]["verified"] is True
    assert (
        yaml.safe_load(context.texts[path])["releases"]["7.4.1"]["linux-x86_64"]["verified"]
        is False
    )


def pinned_here(text: str) -> str:
    """The shipped night, with the default JAX in its first set."""
    return text.replace("rocm-jaxlib-v0.12.0", "default").replace("name: jax-0.12.0", "name: jax")


def test_a_rocm_of_the_same_family_comes_with_its_digest(context):
    path = context.here.home.ci / "nightly.yaml"
    new = "therock-dist-linux-gfx94X-dcgpu-7.13.0.tar.gz"
    with FaultServer() as server:
        url = server.add(f"rocm/{OLD_ROCM}", b"old")
        server.add(f"rocm/{new}", b"new")
        names = (OLD_ROCM, new, new.replace("7.13", "7.14").replace("gfx94X-dcgpu", "gfx110X-all"))
        server.add("rocm/", "".join(f'<a href="{name}">x</a>' for name in names).encode())
        rocm = f"    rocm: {{source: {url}, sha256: {'0' * 64}}}  # ours\n"
        lines = path.read_text().splitlines(keepends=True)
        path.write_text(pinned_here("".join(rocm if "rocm: {" in line else line for line in lines)))
        before = path.read_text()
        fact, to = one("rocm", context, "jax")
        assert (fact.now, to) == ("7.12.0", "7.13.0")
        bump.bump("rocm", fact, to, context)
        text = context.texts[path]
        assert yaml.safe_load(text)["sets"][0]["rocm"] == {
            "source": url.replace("7.12.0", "7.13.0"), "sha256": hashlib.sha256(b"new").hexdigest(),
        }  # fmt: skip
        assert comments(text) == comments(before)
        assert "}  # ours\n" in text
        with pytest.raises(FetchError, match=r"ROCm 7\.15\.0: not listed"):
            bump.bump("rocm", fact, "7.15.0", context)
        path.write_text(before.replace(f", sha256: {'0' * 64}", ""))
        context.texts.clear()
        with pytest.raises(ConfigError, match="has no sha256"):
            bump.bump("rocm", fact, to, context)


@pytest.mark.parametrize(
    ("pinned", "beside", "newest"),
    [
        ("7.12.0", ["7.13.0", "8.0.0", "10.1.0"], "7.13.0"),  # what the default JAX is for
        ("7.14.0.dev0+13caf791", ["7.14.0.dev0+ffff00aa", "7.14.0.dev0+02c85786"], None),
    ],
)
def test_a_rocm_is_newer_by_its_day_and_is_one_that_its_jax_is_for(context, pinned, beside, newest):
    path = context.here.home.ci / "nightly.yaml"
    versions = (pinned, *beside)  # each made a day after the one before
    names = [OLD_ROCM.replace("7.12.0", version) for version in versions]
    files = [{"name": name, "mtime": day} for day, name in enumerate(names)]
    with FaultServer() as server:
        server.add("rocm/", f"<script>const files = {json.dumps(files)};</script>".encode())
        urls = [server.add(f"rocm/{name}", b"rocm") for name in names]
        rocm = f"    rocm: {{source: {urls[0]}, sha256: {'0' * 64}}}\n"
        lines = path.read_text().splitlines(keepends=True)
        path.write_text(pinned_here("".join(rocm if "rocm: {" in line else line for line in lines)))
        assert one("rocm", context, "jax")[1] == (newest or versions[-1])
        fact = next(iter(bump.KINDS["rocm"].facts(context)))
        if newest:
            with pytest.raises(ConfigError, match=r"ROCm 10\.1\.0: JAX 0\.11\.0 needs ROCm"):
                bump.bump("rocm", fact, "10.1.0", context)
            assert context.texts == {}


@pytest.mark.parametrize("quote", ["", "'"])
def test_a_tag_that_yaml_takes_for_a_number_stays_a_text(context, quote):
    path = context.here.home.ci / "images.yaml"
    at = ("runtime", "bases", "ubuntu_24_04", "base", "tag")
    path.write_text(path.read_text().replace("noble-20260911", f"{quote}24.04.1{quote}"))
    context.set_scalars(path, {at: "26.04"})
    new = yaml.safe_load(context.texts[path])
    assert new["runtime"]["bases"]["ubuntu_24_04"]["base"]["tag"] == "26.04"


def test_a_release_of_jax_that_is_newer_than_the_newest_verified_pin(context):
    for tag in ("jax-v0.10.9", "jax-v0.12.0", "jax-v0.13.0rc1", "jaxlib-v0.14.0"):
        folder = Path(context.github.removeprefix("file://")) / "jax-ml/jax"
        if not folder.is_dir():
            repository(folder, {"README": "0"})
        git(folder, "tag", tag)
    fact, to = one("jax", context, "jax")
    assert (fact.now, to) == ("0.11.0", "0.12.0")


@pytest.fixture
def command(context, tmp_path, monkeypatch, capsys):
    """The command line on the copy of ci/, with our repositories in place of GitHub's."""
    (tmp_path / ".gitconfig").write_text(
        f'[url "{context.github}"]\n insteadOf = https://github.com/\n'
    )
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROCWHEEL_CACHE_DIR", str(tmp_path / "cache"))

    def run(*words: str) -> tuple[int, str, str]:
        code = main(["--ci-dir", str(context.here.home.ci), "bump", *words])
        return code, *capsys.readouterr()

    return run


def test_the_command_checks_shows_writes_and_refuses(command, bazels):
    server, path = bazels
    before, text = path.read_bytes(), path.read_text()
    assert command("bazel", "--check")[:2] == (1, "bazel bazel: 7.7.0 -> 7.7.1\n")
    code, _, err = command("bazel")  # which is not there
    assert (code, path.read_bytes()) == (FetchError.exit_code, before)
    offered(server, "7.7.1", b"bazel", digest="0" * 64)
    code, out, err = command("bazel")
    assert (code, out, path.read_bytes()) == (FetchError.exit_code, "", before)
    assert "has another" in err
    assert "hint:  a release that cannot be verified is not added" in err
    sha256 = offered(server, "7.7.1", b"bazel")
    code, shown, err = command("bazel", "--to=7.7.1", "--dry-run")
    assert (code, path.read_bytes()) == (0, before)
    assert f"+      sha256: {sha256}" in shown
    assert "/compare/7.7.0...7.7.1" in err
    assert command("bazel", "--to=7.7.1")[:2] == (0, shown)
    entry = yaml.safe_load(path.read_text())["releases"]["7.7.1"]
    assert entry == {"linux-x86_64": {"sha256": sha256, "verified": True}}
    assert path.read_text().startswith(text.partition('  "8.7.0"')[0])
    assert comments(path.read_text()) == comments(text)
    assert command("bazel", "--check")[:2] == (0, "")
    assert command("--to=7.7.1")[0] == 2


def test_the_command_takes_a_jax_and_says_what_its_suites_would_have(
    command, context, tmp_path, console, monkeypatch
):
    place = jax_release.Place(tmp_path, console)
    upstream = Path(context.github.removeprefix("file://")) / "jax-ml/jax"
    upstream.parent.mkdir()
    upstream.symlink_to(place.jax)
    git(place.jax, "config", "uploadpack.allowAnySHA1InWant", "true")
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "index").as_uri())
    path = context.here.home.ci / "pins.yaml"
    before = path.read_text()
    assert command("jax", "--check")[:2] == (1, "jax jax: 0.11.0 -> 0.11.1\n")
    code, _, err = command("jax", "--to=0.11.9")
    assert (code, path.read_text()) == (SourceError.exit_code, before)
    assert "has no branch or tag 'jax-v0.11.9'" in err
    code, shown, err = command("jax")
    assert code == 0, err
    assert "suite multi_gpu: 14 files, 28 test functions\n" in err
    assert "suite unit: meets" not in err
    pins = yaml.safe_load(path.read_text())["pins"]
    assert [name for name, pin in pins.items() if pin.get("default")] == ["0.11.1"]
    assert pins["0.11.1"]["xla_commit"] == jax_release.XLA
    assert comments(path.read_text()) == comments(before)
    assert f"+    xla_commit: {jax_release.XLA}" in shown
    assert command("jax", "--check")[:2] == (0, "")


def test_a_suite_whose_files_moved_is_warned_of_when_a_pin_is_added(context, tmp_path, talk):
    place = jax_release.Place(tmp_path, context.here.console)
    context.here.runner = place.runner
    (place.jax / "tests" / "pmap_test.py").unlink()
    (place.jax / "tests" / "x_test.py").write_text("def test_a(): ...\n" * 5)
    place.commit("moved")
    where = {"repository": str(place.jax), "ref": "moved", "default": False}
    assert bump.add_pin("0.11.1", context=context, **where).pin.ref == "moved"
    said = talk.getvalue()
    assert "tests/pmap_test.py: matches no file; correct `paths` in the suite's file" in said
    assert said.count("warning: suite ") == 1
    assert re.search(r"suite unit: \d+ files, \d*[13579] test functions\n", said)


S3_BUCKETS = """
_RELEASE_STREAM_BY_TYPE = {
    "dev": "dev",
    "nightly": "nightly",
    "nightly-bkc": "bkc",
    "prerelease": "rc",
}
    return f"https://{stream}.repo.amd.com/rocm/whl-next/"
"""
PUBLISH = '"v5/rocm/core/tarball-asan" if asan else "v5/rocm/core/tarball"\n'
DEFAULT = '        default: "https://nightly.repo.amd.com/rocm/whl-next/"\n'


@pytest.fixture
def rock(context):
    """TheRock's own sources on a server, as they were when ci/therock.yaml was written."""
    path = context.here.home.ci / "therock.yaml"
    with FaultServer() as server:
        data = yaml.safe_load(path.read_text())["upstream"]

        def serve(buckets: str = S3_BUCKETS) -> None:
            files = {data["packages"]["file"]: buckets, data["tarballs"]["file"]: PUBLISH,
                     data["default"]["file"]: DEFAULT,
                     data["released"]["file"]: "- stable releases before ROCm 10.0.\n"}  # fmt: skip
            for name, text in files.items():
                server.add(f"raw/HEAD/{name}", text.encode())

        url = server.url("").rstrip("/")
        path.write_text(path.read_text().replace("https://github.com/ROCm/TheRock\n", f"{url}\n"))
        serve()
        yield path, serve


def test_addresses_that_therocks_sources_still_say_get_a_new_day(context, rock):
    path, _ = rock
    fact, to = one("therock", context, "therock")
    assert fact.now == "2026-08-22"
    assert to == str(context.here.now().date())
    bump.bump("therock", fact, to, context)
    text = context.texts[path]
    streams = yaml.safe_load(text)["streams"]
    assert {str(stream["places"][0]["as_of"]) for stream in streams.values()} == {to}
    assert comments(text) == comments(path.read_text())
    path.write_text(text)
    assert list(bump.newer(["therock"], context)) == []  # what warned is quiet
    with pytest.raises(ConfigError, match="--to 1999-01-01: TheRock's sources are compared as"):
        bump.bump("therock", *bump.named("therock", "1999-01-01", context), context)


def test_a_difference_to_therocks_sources_is_an_error(context, rock):
    _, serve = rock
    serve(S3_BUCKETS.replace("whl-next", "whl").replace('"bkc"', '"known-good"'))
    fact, to = one("therock", context, "therock")
    with pytest.raises(SourceError) as caught:
        bump.bump("therock", fact, to, context)
    told = str(caught.value)
    assert "dev: packages at https://dev.repo.amd.com/rocm/whl/, and not at" in told
    assert "bkc: TheRock has no such stream now; known-good: a new stream" in told
    assert context.texts == {}
    serve("moved to another file\n")
    with pytest.raises(FetchError, match="no longer says where TheRock publishes"):
        list(bump.newer(["therock"], context))


def test_a_check_goes_on_past_who_cannot_be_reached(command, context, bazels):
    path = context.here.home.ci / "therock.yaml"
    path.write_text(
        path.read_text().replace("https://github.com/ROCm/TheRock\n", "http://127.0.0.1:9\n")
    )
    code, out, err = command("--check")
    assert (code, "bazel bazel: 7.7.0 -> 7.7.1" in out) == (1, True)
    assert "not looked at: http://127.0.0.1:9/raw/HEAD/build_tools/" in err
    offered(bazels[0], "7.7.1", b"bazel")
    command("bazel", "--to=7.7.1")
    code, out, err = command("--check", "--json")
    assert (code, json.loads(out)["newer"]) == (SourceError.exit_code, [])
    assert any("jax-ml/jax" in text for text in json.loads(out)["not_looked_at"])
    shutil.rmtree(Path(context.github.removeprefix("file://")) / "bazelbuild")
    code, out, err = command("--check")  # no server answers: each is named once
    assert (code, out) == (SourceError.exit_code, "")
    assert err.count("warning: not looked at: ") == 3
    code, out, err = command("rocm", "--check")
    assert (code, out, "rocm: nothing is pinned" in err) == (0, "", True)
    code, out, err = command("therock", "--check")
    assert (code, out) == (FetchError.exit_code, "")
