"""Environments of gates that are kept: used again only as they were made, by real pip."""

from __future__ import annotations

import os
import threading

import pytest
from support import wheelset
from support.gate import host as this_machine
from support.wheelset import make_set

from rocwheel import housekeeping
from rocwheel.gate import environment, environment_cache, subject
from rocwheel.host import machine as machines
from rocwheel.process import HostRunner, base_env
from rocwheel.values import replace

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("gate run")]


@pytest.fixture(scope="module")
def interpreter():
    found = machines.pythons(os.environ, runner=HostRunner(base_env(os.environ)))
    return next(item for item in found if item.version.minor >= 11)


@pytest.fixture
def host(tmp_path):
    """This machine; pip finds what lies in a folder, and nothing else."""
    own = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    own |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path / "links")}
    return replace(this_machine(tmp_path), environ=own, runner=HostRunner(own))


def offer(folder, version):
    """Let pip find a version of a package that the suite requires."""
    (folder / "links").mkdir(exist_ok=True)
    wheelset.make_wheel(
        folder / "links", project="helper", version=version, tag="py3-none-any", module="helper"
    )


@pytest.fixture
def asked(tmp_path, interpreter):
    make_set(tmp_path / "wheels", pythons=(str(interpreter.version),))
    offer(tmp_path, "1.0")
    wheels = subject.of_folder(tmp_path / "wheels", interpreter.version)
    return environment_cache.EnvironmentInputs(
        wheels=wheels,
        interpreter=interpreter,
        rocm=None,
        environ={},
        plan=lambda folder: environment.plan(
            wheels,
            interpreter=interpreter,
            folder=folder,
            requirements=("helper",),
            constraints=(),
            with_jax=False,
        ),
    )


@pytest.fixture
def take(asked, host, console, tmp_path):
    def call(ingredients=asked):
        log = tmp_path / "install.log"
        return environment_cache.prepared(ingredients, host, console, log=log, left=lambda: 300.0)

    return call


def folders(host):
    return sorted((host.cache / environment_cache.FOLDER).iterdir())


def test_an_environment_is_used_again_only_as_it_was_made(take, host, tmp_path):
    with take() as first:
        assert first.how.startswith("made in ")
        assert "helper==1.0" in first.environment.packages
        site = first.environment.site
    with take() as second:
        assert second.how.startswith("kept, as it was made ")
        assert second.environment == first.environment, "and the same is recorded"
        assert not second.changed()
    # both at once, for making one takes seconds: what is told is the first
    module = next(site.glob("helper/*.py"))
    module.write_text(module.read_text().replace("1.0", "6.6"))
    (site / "odd.pth").write_text("import os\n")
    os.mkfifo(site / "pipe")  # whoever reads it waits for ever
    with take() as again:
        assert again.how.startswith("made in ")
        assert again.environment.site != site
        assert len(folders(host)) == 1, "the damaged one is gone"
    offer(tmp_path, "1.1")
    with take() as newer:
        assert newer.how.startswith("made in "), "a fresh one would have another helper"
        assert "helper==1.1" in newer.environment.packages


def test_what_is_interrupted_changed_or_in_use(take, host, asked):
    """One environment through all that can happen to it, for making one takes seconds."""
    dead = host.cache / environment_cache.FOLDER / f"{asked.key}-dead"
    (dead / "env/bin").mkdir(parents=True)
    found = {}

    def other():
        with take() as prepared:
            found["other"] = prepared

    thread = threading.Thread(target=other)
    with take() as mine:
        thread.start()
        thread.join(900)
        ways = sorted(item.how.partition(" ")[0] for item in (mine, found["other"]))
        assert ways == ["kept,", "made"], "two that ask at once share one"
        assert not dead.exists(), "one that was interrupted is removed, not used"
        (item,) = (i for i in housekeeping.look(host.cache) if i.kind == environment_cache.FOLDER)
        assert item.in_use
        assert not housekeeping.remove(host.cache, [item])
        (mine.environment.site / "jaxlib" / "version.py").write_text("version = 'mine'\n")
        assert mine.changed().endswith("jaxlib/version.py")
    with take() as again:
        assert again.how.startswith("made"), "nobody uses what a test has changed"
    (item,) = (i for i in housekeeping.look(host.cache) if i.kind == environment_cache.FOLDER)
    assert not item.in_use
    assert housekeeping.remove(host.cache, [item])
    assert not folders(host)


def test_the_key_is_of_what_goes_in_and_not_of_where_it_lies(asked, tmp_path):
    wheels = asked.wheels
    elsewhere = tuple(replace(wheel, url="https://host/x") for wheel in wheels.wheels)
    others = tuple(replace(wheel, sha256="0" * 64) for wheel in wheels.wheels)
    assert replace(asked, wheels=replace(wheels, wheels=elsewhere)).key == asked.key
    changed = [
        replace(asked, wheels=replace(wheels, wheels=others)),
        replace(asked, rocm=tmp_path),
        replace(asked, environ={"PIP_INDEX_URL": "https://other"}),
        replace(asked, interpreter=replace(asked.interpreter, full="3.99.0")),
    ]
    assert len({asked.key, *(item.key for item in changed)}) == 5


@pytest.mark.parametrize(
    ("now", "problem"),
    [
        ({"a": "1", "b": "2"}, ""),
        ({"a": "1", "b": "3"}, "b differs"),
        ({"a": "1"}, "b is gone"),
        ({"a": "1", "b": "2", "site-packages/odd.pth": "4"}, "site-packages/odd.pth was added"),
        ({"a": "1", "b": "-> /elsewhere"}, "b differs"),
    ],
)
def test_every_way_to_differ_is_told_by_its_file(now, problem):
    assert environment_cache.difference({"a": "1", "b": "2"}, now) == problem
