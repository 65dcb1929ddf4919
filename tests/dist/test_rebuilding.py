"""`rebuild`: a manifest asks for the very build that it is of, and every byte is compared."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.wheelset import make_set

from rocwheel import dist
from rocwheel.base import home
from rocwheel.base.errors import ConfigError
from rocwheel.base.git import Source
from rocwheel.base.values import replace
from rocwheel.base.versions import PythonVersion
from rocwheel.cli import main
from rocwheel.dist import assemble, inputs
from rocwheel.dist.build_request import Executor
from rocwheel.records.manifest import Manifest, RocmDelivery, RocmSource, WheelEntry

TARBALL = "therock-dist-linux-gfx94X-dcgpu-7.10.0a20251120.tar.gz"
URL = f"https://example.com/{TARBALL}"
FORK = {"jax_ref": "1" * 40, "jax_repository": "https://example.com/fork.git"}


def request(folder: Path, **changes) -> dist.Request:
    plain = dist.Request(
        allow_dirty=True,  # of the checkout that the tests stand in
        wheelhouse=folder / "wheelhouse",
        cache=folder / "cache",
        home=home.find(None),
        cwd=folder,
        environ={"PATH": "/usr/bin:/bin"},
    )
    return replace(plain, **changes)


def manifest_of(planned: dist.Plan, seen: dist.inputs.Preview) -> Manifest:
    """What a build of this plan writes down, with wheels of these kinds."""
    delivery = RocmDelivery(url=planned.rocm.source, size=1)
    root = SimpleNamespace(
        version="7.10.0a20251120", facts=SimpleNamespace(header_version="7.10.0"), sha256="a" * 64,
        origin="tarball", name=planned.rocm.name, delivery=delivery,
    )  # fmt: skip
    wheels = tuple(
        WheelEntry(
            kind=kind.value, filename=f"{kind.value}-1-py3-none-any.whl", project=kind.value,
            version="1", tags=("any",), python="", size=1, sha256="b" * 64,
        )
        for kind in seen.spec.kinds
    )  # fmt: skip
    given = SimpleNamespace(
        planned=planned, tree=seen.tree, root=root, spec=seen.spec,
        place=SimpleNamespace(builder_image=""), tool=Source(repository="", commit="2" * 40),
    )  # fmt: skip
    return assemble._manifest(given, wheels)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"jax_version": "0.9.2", "pythons": (PythonVersion.parse("3.12"),)},
        {"jax_version": "0.9.2", **FORK},
        {"jaxlib": "built", "compiler": "hermetic", "cpu_features": "default"},
        {"wheel_suffix": "+mine.dirty", "gfx_targets": ("gfx1100", "gfx90a")},
        {"wheel_suffix": "", **FORK},
        {"families": ("gfx110X-all", "gfx94X-dcgpu"), "therock": URL.replace("gfx94X-dcgpu", "multiarch")},
        {"bazel_options": ("--copt=-O1", "--jobs=3"), "bazel_startup_options": ("--host_jvm_args=-Xmx2g",)},
    ],
)  # fmt: skip
def test_a_manifest_asks_for_the_build_that_it_is_of(tmp_path, here, changes):
    first = dist.plan(request(tmp_path / "one", **{"therock": URL, **changes}))
    seen = inputs.gather(first, here, fetch=False)
    manifest = manifest_of(first, seen)
    second = dist.plan_rebuild(manifest, request(tmp_path / "two"))
    spec = inputs.gather(second, here, fetch=False).spec
    for name in (
        "jax_version", "git_hash", "kinds", "pythons", "gfx_targets", "compiler", "cpu_features",
        "wheel_suffix", "startup_options", "layout", "version_class", "rocm",
    ):  # fmt: skip
        assert getattr(spec, name) == getattr(seen.spec, name), name
    assert spec.options == (*inputs.AFRESH, *seen.spec.options), "no cache answers for it"
    assert (second.rocm.source, second.rocm.sha256) == (first.rocm.source, "a" * 64), "by digest"
    assert second.families == (first.families if len(first.families) > 1 else ())
    assert second.sources.checkout.commit == manifest.jax.commit
    assert str(tmp_path / "two") in str(second.sources.root)


@pytest.mark.parametrize(
    ("fields", "given", "message", "hint"),
    [
        ({"jax": Source(repository="x", commit="1" * 40, dirty=True, digest="c" * 64)}, {},
         "where the files of its JAX are: cccccccccccc", "name their folder: --jax-source-dir"),
        ({"jax": Source(repository="", commit="", digest="c" * 64)}, {},
         "where the files of its JAX are", "--jax-source-dir"),
        ({"options": {"xla_patches": ()}, "xla": Source(repository="", commit="d" * 40)}, {},
         "where the files of its XLA are: dddddddddddd", "name their folder: --xla-source-dir"),
        ({"rocm": RocmSource(version="7.10.0", header_version="7.10.0", sha256="e" * 64,
                             origin="directory", name="rocm", delivery=RocmDelivery(url="", size=0))},
         {}, "does not say where this ROCm came from", "--therock-path"),
        ({"pythons": ("3.x",)}, {}, "3.x", "3.12"),
        ({"gfx_targets": ("gfx9zz",)}, {}, "'gfx9zz': not a gfx target", ""),
    ],
)  # fmt: skip
def test_what_a_manifest_does_not_say_is_asked_for(tmp_path, fields, given, message, hint):
    manifest = replace(make_set(tmp_path / "wh"), **fields)
    with pytest.raises(ConfigError) as caught:
        dist.plan_rebuild(manifest, request(tmp_path, **given))
    assert message in str(caught.value)
    assert hint in caught.value.hint


class Case:
    """A set, and what stands for Bazel: the same set, made again in another folder."""

    def __init__(self, tmp_path: Path, monkeypatch) -> None:
        self.folder, self.made = tmp_path / "wh", tmp_path / "rebuilt/made"
        self.manifest = make_set(self.folder, pythons=("3.12",))
        self.after = make_set(self.made, pythons=("3.12",))
        self.place = SimpleNamespace(builder_image="")
        monkeypatch.setattr(assemble, "build", lambda *_, **__: self.result())

    def result(self):
        return SimpleNamespace(wheelhouse=self.made, manifest=self.after)

    def rebuild(self, folder: Path | None = None) -> dist.Rebuilt:
        return dist.rebuild(
            self.manifest, (folder or self.folder).joinpath, None, None, place=self.place,
        )  # fmt: skip


@pytest.fixture
def case(tmp_path, monkeypatch):
    return Case(tmp_path, monkeypatch)


def test_the_same_bytes_are_the_same_set(case):
    made = case.rebuild()
    assert (made.wheels, made.circumstances) == ({}, ())


def test_one_other_byte_is_shown_as_wheel_diff_shows_it(case, tmp_path):
    shutil.rmtree(case.made)
    case.after = make_set(case.made, pythons=("3.12",), stamp="other")
    differ = case.rebuild().wheels
    assert set(differ) == {wheel.filename for wheel in case.manifest.built}
    assert any("__init__.py: bytes: " in line for lines in differ.values() for line in lines)
    shutil.rmtree(case.folder)  # only the manifest is here: the digests tell
    before, after = case.manifest.built[0], case.after.built[0]
    assert case.rebuild().wheels[before.filename] == (f"{before.sha256} -> {after.sha256}",)


def test_a_wheel_more_or_less_is_a_difference(case):
    case.after = replace(case.after, wheels=case.after.wheels[1:])
    name = case.manifest.wheels[0].filename
    assert case.rebuild().wheels == {name: (f"{case.manifest.wheels[0].sha256} -> None",)}


def test_other_circumstances_are_named_and_are_no_difference(case):
    case.after = replace(
        case.after, tool=Source(repository="", commit="9" * 40), bazel_version="8.0"
    )
    made = case.rebuild()
    assert made.wheels == {}
    assert any(line.startswith("bazel_version: ") for line in made.circumstances)
    assert any(line.startswith("tool.commit: ") for line in made.circumstances)


def test_another_image_is_refused_before_anything_is_built(case, monkeypatch):
    monkeypatch.setattr(assemble, "build", lambda *_, **__: pytest.fail("it was built"))
    case.place.builder_image = "sha256:abc"
    with pytest.raises(ConfigError, match="the builder image is sha256:abc, that of the set none"):
        case.rebuild()


@pytest.fixture
def command(case, tmp_path, monkeypatch, capsys):
    """The command, in a folder, where planning needs no JAX."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(dist, "plan_rebuild", lambda _, request: SimpleNamespace(request=request))
    monkeypatch.setattr(
        assemble.executor, "choose", lambda *_, **__: SimpleNamespace(builder_image="")
    )

    def run(*words: str) -> tuple[int, dict]:
        status = main(["rebuild", *(words or ["wh"]), "--therock-path=/rocm", "--json"])
        return status, json.loads(capsys.readouterr().out)

    return run


def test_the_status_says_whether_it_was_reproduced(case, command):
    from support.trust import make_record

    (case.made / "build.json").write_bytes(make_record(case.after).to_bytes())
    (case.made / "manifest.json").write_bytes(case.after.to_bytes())
    status, document = command()
    assert (status, document["state"]) == (0, "reproduced")
    assert document["statement"] == str(case.made / "reproduced.json")
    (case.made / "reproduced.json").unlink()
    case.after = replace(case.after, wheels=case.after.wheels[1:])
    status, document = command()
    assert (status, document["state"], document["statement"]) == (13, "different", "")
    assert len(document["wheels"]) == 1
    assert not (case.made / "reproduced.json").exists()


def test_a_set_of_a_store_is_compared_with_its_wheels_there(case, command, tmp_path, console):
    """What a second builder signs of it lies there at once; a difference names its place."""
    from support.trust import Keyring, make_record
    from support.wheelset import Shop

    url = (tmp_path / "store").as_uri()
    Shop(url, console).stage(case.folder)
    for made in (case.folder, case.made):
        (made / "build.json").write_bytes(make_record(case.after).to_bytes())
    words = (case.manifest.sha256[:12], f"--store={url}", "--family=gfx94X-dcgpu")
    keys = Keyring(tmp_path / "keys", ("builder",))
    status, document = command(*words, f"--signer=file:{keys.folder}/builder.pem")
    assert (status, document["state"]) == (0, "reproduced")
    stored = Path(document["statement"].removeprefix("file://"))
    assert (stored.parent.name, stored.read_bytes()) == (
        "provenance", (case.made / "reproduced.json").read_bytes(),
    )  # fmt: skip
    shutil.rmtree(case.made)
    case.after = make_set(case.made, pythons=("3.12",), stamp="other")
    status, document = command(*words)
    assert (status, document["state"]) == (13, "different")
    assert "__init__.py: bytes: " in document["reason"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("nothing",), "nothing: No such file"),
        (("wh",), "nameless: the manifest does not say where this ROCm came from"),
        (("wh", "--therock-path=/rocm", "--signer=file:none.pem"), "none.pem: No such file"),
    ],
)
def test_bad_input_is_one_error(tmp_path, monkeypatch, capsys, words, told):
    manifest = make_set(tmp_path / "wh")
    nowhere = RocmDelivery(url="", size=0)
    rocm = replace(manifest.rocm, name="nameless", origin="directory", delivery=nowhere)
    (tmp_path / "wh/manifest.json").write_bytes(replace(manifest, rocm=rocm).to_bytes())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(assemble, "build", lambda *_, **__: pytest.fail("it was built"))
    if "--therock-path=/rocm" in words:
        monkeypatch.setattr(dist, "plan_rebuild", lambda *_: None)
    assert main(["rebuild", *words]) == 3
    said = capsys.readouterr().err
    assert told in said
    assert "Traceback" not in said


def test_a_container_is_chosen_as_for_any_build(tmp_path):
    asked = request(tmp_path, therock=URL, executor=Executor(kind="docker", image="builder:1"))
    manifest = replace(make_set(tmp_path / "wh"), builder_image="sha256:abc")
    assert dist.plan_rebuild(manifest, asked).request.executor == asked.executor
