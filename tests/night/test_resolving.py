"""A night's ROCm from several sources: what is wrong with one is one error, and the others go on."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from datetime import date, datetime, timezone
from io import StringIO
from pathlib import Path

import pytest
from support import registries
from support.faultserver import FaultServer
from support.states import RECIPE, summary

import amdgpu_family_matrix as matrix
from rocwheel.base import home
from rocwheel.base.console import Console
from rocwheel.base.download import Client, Retry
from rocwheel.base.errors import ConfigError
from rocwheel.base.here import Here
from rocwheel.base.values import replace
from rocwheel.cli import main
from rocwheel.night import resolving
from rocwheel.night import settings as settings_file
from rocwheel.rocm import therock

CI = Path(__file__).parents[2] / "ci"
VERSION = "7.15.0a20260630"
OWN = "source_dir: jax, pythons: ['3.12'], families: [gfx90a]"
SETS = """
sets:
  - {{name: listed, source_dir: jax, pythons: ["3.12"], families: [gfx90a, gfx94X-dcgpu],
     rocm: {{tarballs: "{page}"}}}}
  - {{name: all, source_dir: jax, pythons: ["3.12"], families: [gfx90a],
     rocm: {{tarballs: "{together}"}}}}
  - {{name: gone, source_dir: jax, pythons: ["3.12"], families: [gfx90a], rocm: {{source: "{gone}"}}}}
  - {{name: local, source_dir: jax, pythons: ["3.12"], families: [gfx90a],
     rocm: {{source: rocm, version: 7.12.0}}}}
"""


@pytest.fixture
def client():
    with Client({}, retry=Retry(attempts=1), note=lambda _: None) as made:
        yield made


def name_of(group: str) -> str:
    return f"therock-dist-linux-{group}-{VERSION}.tar.gz"


JULY = datetime(2026, 7, 1, tzinfo=timezone.utc)


def resolver(
    folder, runner=None, *, ci=CI, client=None, now=JULY, notes=None, environ=None, setting=None,
    families=matrix.FAMILIES, **more,
):  # fmt: skip
    here = Here(
        environ=environ or {}, cwd=folder, cache=folder / "cache", home=home.find(ci), runner=runner,
        console=Console(notes or StringIO(), clock=float), now=lambda: now,
    )  # fmt: skip
    setting = setting or settings_file.load(CI / settings_file.FILE)
    return resolving.Resolver(setting, families, here=here, client=client, **{"tool": "", **more})


def asks(folder, *sets: str) -> None:
    """Write the settings of a night with these sets, and make folders of JAX and ROCm."""
    for name in ("jax", "rocm"):
        (folder / name).mkdir(exist_ok=True)
    (folder / "nightly.yaml").write_text("sets:\n" + "".join(f"  - {{{one}}}\n" for one in sets))


def resolve(folder, runner, **more):
    """Resolve the night that a folder's `nightly.yaml` asks for."""
    setting = settings_file.load(folder / "nightly.yaml")
    return resolver(folder, runner, setting=setting, **more).resolve()


def test_each_source_that_fails_is_one_absent_build_with_its_reason(tmp_path, runner, client):
    (tmp_path / "jax").mkdir()
    (tmp_path / "rocm").mkdir()
    listed = [name_of("gfx90a"), name_of("gfx94X-dcgpu")]
    with FaultServer() as server:
        page = server.add("tarball/", "".join(f"<a href={name}>" for name in listed).encode())
        there = server.add(f"tarball/{listed[1]}", b"ROCm")  # and the other one was removed
        together = server.add("multi/", f"<a href={name_of('multiarch')}>".encode())
        gone = server.url("mine/rocm-7.10.0.tar.gz")
        (tmp_path / "nightly.yaml").write_text(
            SETS.format(page=page, together=together, gone=gone), encoding="utf-8"
        )
        recipes, absent = resolve(tmp_path, runner, client=client)
    assert {recipe.name: (recipe.rocm, recipe.rocm_sha256) for recipe in recipes} == {
        "listed-gfx94X-dcgpu": (there, hashlib.sha256(b"ROCm").hexdigest()),
        "local": (str(tmp_path / "rocm"), ""),
    }
    assert {cell.name: cell.absent for cell in absent} == {
        "build.listed-gfx90a": f"{page}{listed[0]}: 404 Not Found",
        "build.all-gfx90a": f"{together}: lists no tarball of gfx90a; name its multiarch tarball "
        "with `source` to build for all families",
        "build.gone": f"{gone}: 404 Not Found",
    }
    assert {recipe.name: recipe.rocm_version for recipe in recipes} == {
        "listed-gfx94X-dcgpu": VERSION,
        "local": "7.12.0",  # which the build asks for, too
    }
    asked = [[w for w in recipe.argv if "--rocm-version" in w] for recipe in recipes]
    assert asked == [[], ["--rocm-version=7.12.0"]]


@pytest.mark.parametrize(
    ("bytes_", "options", "built"),
    [
        (b"another commit's", "[]", ["one-gfx90a"]),
        (b"another commit's", "[--wheel-suffix=+rocm7.15.rc]", ["one-gfx90a", "two-gfx90a"]),
        (b"ROCm", "[]", ["one-gfx90a", "two-gfx90a"]),  # the same inputs: one set
    ],
)
def test_two_streams_that_offer_one_version_do_not_make_wheels_of_one_name(
    bytes_, options, built, tmp_path, runner
):
    for stream, body in (("nightly", b"ROCm"), ("rc", bytes_)):
        (tmp_path / stream).mkdir()
        (tmp_path / stream / name_of("gfx90a")).write_bytes(body)
    asks(
        tmp_path,
        f"name: one, {OWN}, rocm: {{tarballs: ./nightly}}",
        f"name: two, {OWN}, rocm: {{tarballs: ./rc}}, options: {options}",
    )
    recipes, absent = resolve(tmp_path, runner)
    assert [recipe.name for recipe in recipes] == built
    if len(built) == 1:
        (cell,) = absent
        assert cell.name == "build.two-gfx90a"
        assert f"/rc/{name_of('gfx90a')}: offers ROCm {VERSION} as " in cell.absent
        assert "would have the names of one-gfx90a's" in cell.absent


@pytest.mark.parametrize(
    ("chosen", "is_built_again"),
    [
        ("source_dir: jax", True),
        ("source_dir: jax, options: [--compiler=hermetic]", False),
        ("source_dir: jax, image: 'builder@sha256:%s'" % ("1" * 64), False),
        ("jax: 0.10.1", True),
        ("jax: 0.11.0", False),  # built with the clang that JAX downloads
    ],
)
def test_a_compiler_of_other_bytes_is_another_input_where_it_builds_the_set(
    chosen, is_built_again, tmp_path, runner
):
    rocm = "rocm: {source: rocm, version: 7.12.0}"
    asks(tmp_path, f"name: x, {chosen}, pythons: ['3.12'], families: [gfx90a], {rocm}")
    made = []
    for release in ("19.1.0", "19.1.1"):
        for name in ("clang", "clang++"):
            (tmp_path / name).write_text(f"#!/bin/sh\necho {release}\n")
            (tmp_path / name).chmod(0o755)
        ((recipe,), _) = resolve(tmp_path, runner, environ={"PATH": f"{tmp_path}:/usr/bin:/bin"})
        made.append(recipe.inputs)
    assert (made[0] != made[1]) == is_built_again


@pytest.mark.parametrize(
    ("rocm", "problem"),
    [
        (f"{{source: {name_of('gfx90a')}, version: 7.12.0}}", f"is ROCm {VERSION}, not 7.12.0"),
        ("{source: rocm, version: newest}", "'newest': not a ROCm version"),
        ("{tarballs: nightly, version: 7.12.0}", "belongs to source"),
    ],
)
def test_a_version_that_cannot_be_is_refused_by_the_plan(rocm, problem, tmp_path, runner):
    asks(tmp_path, f"name: x, jax: default, families: [gfx90a], rocm: {rocm}")
    with pytest.raises(ConfigError, match=problem):
        resolve(tmp_path, runner)


@pytest.mark.parametrize(
    ("one_build", "there", "made"),
    [
        (True, ("multiarch", "gfx90a"), {"x": "--family=gfx90a,gfx94X-dcgpu"}),
        (True, ("gfx90a",), {}),
        (False, ("multiarch", "gfx90a"), {"x-gfx90a": "--gfx-targets=gfx90a"}),
    ],
)
def test_a_channel_of_one_build_builds_the_newest_multiarch_tarball_once_for_all_families(
    one_build, there, made, tmp_path, runner
):
    for group in there:
        (tmp_path / name_of(group)).write_bytes(b"ROCm of " + group.encode())
    both = OWN.replace("gfx90a", "gfx90a, gfx94X-dcgpu")
    rocm = f"rocm: {{source: {name_of('gfx90a')}}}"
    asks(
        tmp_path,
        f"name: x, {both}, rocm: {{tarballs: .}}",
        f"name: one, {OWN}, {rocm}, options: [--wheel-suffix=+own]",
    )
    recipes, absent = resolve(
        tmp_path, runner, one_build=one_build, own=("--family-file=/own.yaml",)
    )
    chosen = {
        recipe.name: " ".join(w for w in recipe.argv if w.startswith(("--gfx", "--famil")))
        for recipe in recipes
    }
    own = " --family-file=/own.yaml" if one_build else ""
    expected = {name: word + own for name, word in made.items()}
    assert chosen == {**expected, "one": "--gfx-targets=gfx90a"}
    if one_build and made:
        assert recipes[0].families == ("gfx90a", "gfx94X-dcgpu")
        assert recipes[0].rocm.endswith(name_of("multiarch"))
    reasons = {cell.name: (cell.family, cell.absent) for cell in absent}
    if one_build:
        lacks = ("", ".: lists no multiarch tarball, for all families")
        assert reasons == ({} if made else {"build.x": lacks})
    else:
        assert list(reasons) == ["build.x-gfx94X-dcgpu"]


TEN = "therock-dist-linux-gfx90a-10.1.0a20260811+bkc.20260814.tar.gz"
UNVERIFIED = 'options: ["--allow-unverified-pin"]'
COMMIT = f"{{repository: https://github.com/ROCm/jax, branch: {'a' * 40}, pin: default}}"


@pytest.mark.parametrize(
    ("jax", "rocm", "problem"),
    [
        ("default", f"source: {name_of('gfx90a')}", ""),
        ("default", f"source: {TEN}", "JAX 0.11.0 needs ROCm <8,>=7.1"),
        ("default", "tarballs: ten", "JAX 0.11.0 needs ROCm <8,>=7.1"),
        (f'"0.12.0", {UNVERIFIED}', "tarballs: ten", ""),
        (f"rocm-jaxlib-v0.11.0, {UNVERIFIED}", "tarballs: ten", "the first with it is >=0.11"),
        (f"rocm-jaxlib-v0.11.1, {UNVERIFIED}", "tarballs: ten", ""),
        ("default", f"source: {name_of('gfx90a')}", "is empty"),
        (COMMIT, "tarballs: ten", ""),  # whose sources say it
    ],
)
def test_a_rocm_that_is_empty_or_that_the_pinned_jax_never_loads_is_an_absent_build(
    jax, rocm, problem, tmp_path, runner
):
    (tmp_path / "ten").mkdir()
    for name in (name_of("gfx90a"), TEN, f"ten/{TEN}"):
        (tmp_path / name).write_bytes(b"" if "is empty" in problem else b"ROCm")
    asks(tmp_path, f"name: x, jax: {jax}, families: [gfx90a], rocm: {{{rocm}}}")
    recipes, absent = resolve(tmp_path, runner, now=datetime(2026, 8, 20, tzinfo=timezone.utc))
    assert [problem in cell.absent for cell in absent] == ([True] if problem else [])
    assert len(recipes) == (not problem)
    assert all(UNVERIFIED[11:-2] in recipe.argv for recipe in recipes if UNVERIFIED in jax)


def test_an_unverified_pin_is_no_nights_without_the_option(tmp_path, runner):
    asks(tmp_path, "name: x, jax: rocm-jaxlib-v0.11.1, rocm: {source: rocm}")
    with pytest.raises(ConfigError, match="is unverified") as caught:
        resolve(tmp_path, runner)
    assert "--allow-unverified-pin" in caught.value.hint


def test_a_branch_that_moves_while_a_night_is_planned_is_one_commit_in_all_its_sets(
    tmp_path, runner, client, monkeypatch
):
    """A branch that moves at every look, which no real repository does on time."""
    looks = iter("abcdef")
    monkeypatch.setattr(resolving.git, "resolve_ref", lambda *_, **__: next(looks) * 40)
    monkeypatch.setattr(resolving.git, "day_of", lambda *_, **__: date(2026, 6, 30))
    for family in ("gfx90a", "gfx94X-dcgpu"):
        (tmp_path / name_of(family)).write_bytes(b"ROCm of " + family.encode())
    branch = 'jax: {repository: "https://github.com/jax-ml/jax", branch: main, pin: default}'
    asks(
        tmp_path,
        f"name: each, {branch}, families: [gfx90a, gfx94X-dcgpu], rocm: {{tarballs: .}}",
        f"name: all, {branch}, families: [gfx90a], rocm: {{source: rocm}}",
    )
    recipes, absent = resolve(tmp_path, runner, client=client)
    assert not absent
    assert [recipe.name for recipe in recipes] == ["each-gfx90a", "each-gfx94X-dcgpu", "all"]
    assert {recipe.jax_commit for recipe in recipes} == {"a" * 40}


def page_of(*versions: str) -> bytes:
    names = [f"therock-dist-linux-gfx90a-{version}.tar.gz" for version in versions]
    listed = json.dumps([{"name": n} | ({} if "7.13" in n else {"mtime": DAY}) for n in names])
    return f"<script>const files = {listed};</script>".encode()


DAY = 1780000000.0  # 2026-05-28


@pytest.mark.parametrize(
    ("version", "more", "red"),
    [
        ("7.15.0a20260624", "", ""),
        ("7.15.0a20260623", "", "the newest is of 2026-06-23, 8 days old, and 7 are allowed"),
        ("7.15.0a20260623", ", quiet_days: 8", ""),
        ("7.14.1", "", "the newest is of 2026-05-28, 34 days old, and 7 are allowed"),
        ("7.14.1", ", quiet_days: 60", ""),
        ("7.13.0", "", "the newest is of 2023-11-14, "),  # by Last-Modified: the page says no day
        ("7.15.0a20260630", ", quiet_days: 1", ""),
        ("7.15.0a20260702", "", ""),  # another time zone's
        ("7.15.0a20260703", "", "2026-07-03, which is yet to come: a clock is wrong"),
    ],
)
def test_a_page_that_offers_nothing_new_for_too_long_is_red(
    version, more, red, tmp_path, runner, *, client
):
    name = f"therock-dist-linux-gfx90a-{version}.tar.gz"
    with FaultServer() as server:
        page = server.add("tarball/", page_of(version))
        server.add(f"tarball/{name}", b"ROCm")
        rocm = f"rocm: {{tarballs: '{page}'{more}}}"
        asks(tmp_path, *(f"name: {one}, {OWN}, {rocm}" for one in ("a", "b")))
        recipes, absent = resolve(tmp_path, runner, client=client)
    assert [recipe.name for recipe in recipes] == ["a-gfx90a", "b-gfx90a"]  # built all the same
    undated = {"7.14.1": "2026-05-28", "7.13.0": "2023-11-14"}
    day = undated.get(version) or f"2026-{version[-4:-2]}-{version[-2:]}"
    assert {recipe.rocm_newest for recipe in recipes} == {day}
    assert [cell.name for cell in absent] == (["source.a.rocm"] if red else [])  # once for both
    assert all(cell.absent.startswith(f"{page}: ") and red in cell.absent for cell in absent)


def test_a_family_without_a_new_build_is_red_beside_one_that_has_some(tmp_path, runner, client):
    days = {"gfx90a": "20260630", "gfx906": "20260601"}
    names = [f"therock-dist-linux-{of}-7.15.0a{day}.tar.gz" for of, day in days.items()]
    with FaultServer() as server:
        page = server.add("tarball/", "".join(f"<a href={name}>" for name in names).encode())
        for name in names:
            server.add(f"tarball/{name}", name.encode())
        both = OWN.replace("gfx90a", "gfx90a, gfx906")
        asks(tmp_path, f"name: x, {both}, rocm: {{tarballs: '{page}'}}")
        recipes, absent = resolve(tmp_path, runner, client=client)
    assert [recipe.rocm_newest for recipe in recipes] == ["2026-06-30", "2026-06-01"]
    (cell,) = absent
    assert cell.name == "source.x-gfx906.rocm"
    assert cell.absent.startswith(
        f"{page}: gfx906: the newest is of 2026-06-01, 30 days old, and 7"
    )


@pytest.mark.parametrize(
    ("day", "more", "red"),
    [
        ("2026-05-02", "", False),
        ("2026-05-01", "", True),
        ("2026-06-24", ", quiet_days: 7", False),
        ("2026-06-23", ", quiet_days: 7", True),
    ],
)
def test_a_branch_without_a_commit_for_too_long_is_red(day, more, red, tmp_path, runner):
    jax, rocm = tmp_path / "jax", tmp_path / "rocm"
    jax.mkdir()
    rocm.mkdir()
    when = {"GIT_AUTHOR_DATE": f"{day}T12:00:00Z", "GIT_COMMITTER_DATE": f"{day}T12:00:00Z"}
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    for words in (("init", "-q", "-b", "main"), (*who, "commit", "-q", "--allow-empty", "-m", "x")):
        subprocess.run(["git", "-C", jax, *words], check=True, env={**os.environ, **when})
    branch = f"{{repository: 'file://{jax}', branch: main, pin: default{more}}}"
    asks(tmp_path, f"name: x, jax: {branch}, families: [gfx90a], rocm: {{source: rocm}}")
    recipes, absent = resolve(tmp_path, runner)
    assert [recipe.jax_newest for recipe in recipes] == [day]
    assert [cell.name for cell in absent] == (["source.x.jax"] if red else [])
    assert all(f"main: the newest is of {day}" in cell.absent for cell in absent)


def test_old_facts_are_told_where_a_night_relies_on_them(tmp_path, runner, client):
    shutil.copytree(CI, tmp_path / "ci")
    asks(tmp_path, f"name: x, {OWN}, rocm: {{tarballs: nightly}}")
    file = tmp_path / "ci" / "therock.yaml"
    address = "https://nightly.repo.amd.com/rocm/core/tarball/"
    for day, told in ((20, 0), (25, 1)):
        notes = StringIO()
        with FaultServer() as server:
            others = ("10.1.0", "10.1.0a20260916+bkc.20260917", "10.1.0a20269999")
            page = server.add("tarball/", page_of("10.1.0a20260915", *others))
            server.add("tarball/therock-dist-linux-gfx90a-10.1.0a20260915.tar.gz", b"ROCm")
            file.write_text((CI / "therock.yaml").read_text().replace(address, page))
            recipes, absent = resolve(
                tmp_path, runner, ci=tmp_path / "ci", client=client, notes=notes,
                now=datetime(2026, 9, day, tzinfo=timezone.utc),
            )  # fmt: skip
        assert [recipe.rocm_newest for recipe in recipes] == ["2026-09-15"]
        assert notes.getvalue().count("rocwheel pins bump therock") == told
        assert [cell.name for cell in absent] == ["source.x.rocm"] * told


def test_the_line_to_type_about_an_absent_build_names_the_nights_settings(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    asks(tmp_path, f"name: x, {OWN}, rocm: {{tarballs: rocm}}")
    (tmp_path / "nightly.yaml").rename("own.yaml")
    store, data = f"--store={(tmp_path / 'store').as_uri()}", f"--ci-dir={CI}"
    assert main(["nightly", "plan", store, data, "--config=own.yaml", "--night=one"]) == 5
    for words in ((), (data,)):
        capsys.readouterr()
        main(["nightly", "status", "one", store, *words])
        said = capsys.readouterr().out
        assert f"--dry-run --explain --config={tmp_path}/own.yaml {data}`" in said


def test_an_unchanged_tarball_is_read_once_and_a_changed_one_again(tmp_path, client):
    name = "therock-dist-linux-gfx90a-7.15.0a20260630.tar.gz"
    with FaultServer() as server:
        asking = resolver(tmp_path, client=client)
        url = server.add(name, b"ROCm")
        first = asking.tarball(url)
        assert first == (url, "7.15.0a20260630", hashlib.sha256(b"ROCm").hexdigest())
        assert asking.tarball(url) == first
        sent = [request for request in server.requests if request.path == name]
        assert ["if-none-match" in request.headers for request in sent] == [False, True]
        server.add(name, b"ROCM")
        assert asking.tarball(url)[2] != first[2]


class GitHub:
    """Answers as api.github.com does, which no test may ask."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def read(self, url: str, **_options) -> bytes:
        self.asked.append(url)
        names = ["Ann", "Ben", "Ann"]
        return json.dumps(
            {"commits": [{"commit": {"author": {"name": n}}} for n in names]}
        ).encode()


def test_who_wrote_what_changed_is_asked_once_for_each_range(tmp_path, runner):
    old, new, github = "a" * 40, "b" * 40, GitHub()
    ours = "https://github.com/jax-ml/jax.git"
    hosts = {"one": ours, "two": ours, "elsewhere": "https://git.example.org/jax"}
    rest = "families: [gfx90a], rocm: {source: rocm}"
    asks(tmp_path, *(
        f"name: {name}, jax: {{repository: '{host}', branch: {new}, pin: default}}, {rest}, "
        f"options: [--wheel-suffix=+{len(host)}]"
        for name, host in hosts.items()
    ))  # fmt: skip
    before = tuple(replace(RECIPE, name=name, jax_commit=old) for name in hosts)

    def authors(last):
        return [item.authors for item in resolve(tmp_path, runner, client=github, last=last)[0]]

    assert authors(replace(summary(1), recipes=before)) == [("Ann", "Ben"), ("Ann", "Ben"), ()]
    assert github.asked == [f"https://api.github.com/repos/jax-ml/jax/compare/{old}...{new}"]
    assert authors(None) == [(), (), ()]
    absent = replace(summary(1), recipes=(), builds=before)  # its build was, in that night
    assert authors(absent)[0] == ("Ann", "Ben")


OF_IMAGE = """
sets:
  - name: jax
    source_dir: source
    pythons: ["3.12"]
    families: [gfx90a]
    rocm: {{source: rocm-7.1.0.tar.gz}}
    image: {image}
    executor: podman
"""


@pytest.mark.integration
@pytest.mark.needs("docker-registry", "skopeo")
def test_an_image_becomes_a_digest_once_and_its_cells_build_in_it(tmp_path, runner):
    (tmp_path / "source").mkdir()
    (tmp_path / "registry").mkdir()
    (tmp_path / "rocm-7.1.0.tar.gz").write_bytes(b"ROCm")

    def resolved(image: str):
        (tmp_path / "nightly.yaml").write_text(OF_IMAGE.format(image=image))
        return resolve(tmp_path, runner)

    with registries.serving(tmp_path / "registry") as address:
        digest = registries.image(address, "rocm/builder", "7")
        name = f"{address}/rocm/builder"
        (recipe,), absent = resolved(f"{name}:7")
        assert not absent
        _, (gone,) = resolved(f"{name}:8")
    assert recipe.image == f"{name}@{digest}"
    assert f"--builder-image={name}@{digest}" in recipe.argv
    assert "--executor=podman" in recipe.argv
    assert "no such image" in gone.absent
    settings = settings_file.load(tmp_path / "nightly.yaml")
    named = settings.built_in("docker", "of-the-channel:1")
    assert named == settings  # what a set says itself holds
    (silent,) = (
        replace(settings, sets=(replace(settings.sets[0], image="", executor=None),))
        .built_in("docker", "of-the-channel:1")
        .sets
    )
    assert (silent.executor, silent.image) == ("docker", "of-the-channel:1")
    (other,), _ = resolved(f"{name}@sha256:{'0' * 64}")
    assert other.inputs != recipe.inputs


# What each stream listed when ci/therock.yaml was last compared with it.
TODAY = {
    "nightly": "10.1.0a20260901",
    "dev": "10.1.0.dev0+d41894c0",
    "bkc": "10.1.0a20260811+bkc.20260814",
    "rc": "10.1.0rc0",
    "stable": "10.0.0",
}


def test_each_stream_has_its_version_of_today() -> None:
    assert TODAY.keys() == therock.known().streams.keys()


@pytest.mark.parametrize("by", ["name", "address"])
@pytest.mark.parametrize("stream", TODAY)
def test_the_shipped_night_plans_a_build_for_each_stream(stream, by, tmp_path, runner, client):
    families = {item.name: item for item in matrix.families(matrix.Trigger.NIGHTLY)}
    names = [
        f"therock-dist-linux-{name}-{TODAY[stream]}.tar.gz" for name in (*families, "multiarch")
    ]
    other = "therock-dist-linux-gfx90a-11.9.9.dev1.tar.gz"  # newer, and like no stream's
    files = [{"name": name, "mtime": 1788220800.0} for name in (*names, other)]  # 2026-09-01
    shutil.copytree(CI, tmp_path / "ci")
    settings = settings_file.load(CI / settings_file.FILE)
    with FaultServer() as server:
        page = server.add("tarball/", f"const files = {json.dumps(files)};".encode())
        for name in names:
            server.add(f"tarball/{name.replace('+', '%2B')}", b"ROCm")
        where = therock.address(stream, "tarballs", ci=CI, cwd=tmp_path)
        text = (CI / therock.FILE).read_text().replace(where, page)
        (tmp_path / "ci" / therock.FILE).write_text(text)
        named = stream if by == "name" else page
        sets = [replace(s, rocm=replace(s.rocm, tarballs=named)) for s in settings.sets]
        now = datetime(2026, 9, 2, tzinfo=timezone.utc)
        recipes, absent = resolver(
            tmp_path, runner, ci=tmp_path / "ci", client=client, now=now, families=families,
            setting=replace(settings, sets=tuple(sets)),
        ).resolve()  # fmt: skip
    built = {(recipe.name, family) for recipe in recipes for family in recipe.families}
    assert built == {(f"{s.name}-{name}", name) for s in settings.sets for name in families}
    assert [cell for cell in absent if cell.kind == "build"] == []
