"""Environments of gates, made by uv: what pip would install, whatever a kill or a cache leaves."""

from __future__ import annotations

import csv
import os
import shutil
import signal
import subprocess
import time
from types import SimpleNamespace

import pytest
from support import wheelset
from support.gate import here
from support.wheelset import make_set

from rocwheel.base.errors import CommandError, ConfigError
from rocwheel.base.process import HostRunner
from rocwheel.base.values import replace
from rocwheel.gate import InfraError, environment, subject

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.xdist_group("gate run")]
OWN = {"INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json"}  # of each installer


@pytest.fixture
def machine(tmp_path, console):
    """This machine; pip finds what lies in a folder, and nothing else."""
    own = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    own |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path / "links")}
    return here(tmp_path, console, environ=own, runner=HostRunner(own))


@pytest.fixture
def wheels(tmp_path, interpreter):
    """The wheels of a set, beside a folder with two versions of another package."""
    manifest = make_set(tmp_path / "wheels", pythons=(str(interpreter.version),))
    (tmp_path / "links").mkdir()
    for version in ("1.0", "1.1"):
        wheelset.make_wheel(
            tmp_path / "links", project="helper", version=version, tag="py3-none-any",
            module="helper",
        )  # fmt: skip
    return subject.of_manifest(manifest, interpreter.version, tmp_path / "wheels")


@pytest.fixture
def make(wheels, interpreter, machine, tmp_path):
    def call(name, *requirements, runner=machine.runner):
        request = SimpleNamespace(
            wheels=wheels, constraints=(), requirements=requirements or ("helper",), logs=tmp_path,
            suite=SimpleNamespace(requirements=(), with_jax=False),
        )  # fmt: skip
        return environment.make(
            request, interpreter, tmp_path / name, environment.NO_ROCM,
            replace(machine, runner=runner), left=lambda: 300.0,
        )  # fmt: skip

    return call


def records(site):
    """Every file of every package with its digest, but what an installer writes of itself."""
    rows = set()
    for record in site.glob("*.dist-info/RECORD"):
        for name, digest, *_ in csv.reader(record.read_text().splitlines()):
            if name.rpartition("/")[2] not in OWN and "__pycache__" not in name:
                rows.add((name, digest))
    return {row for row in rows if not row[0].startswith("..")}


def test_it_has_what_pip_installs(wheels, interpreter, machine, make, tmp_path):
    mine = make("uv")
    assert "helper==1.1" in mine.packages
    folder = tmp_path / "pip"
    subprocess.run([interpreter.executable, "-m", "venv", folder], check=True)
    pip = [folder / "bin/python", "-m", "pip", "install", "-q", "--only-binary=:all:"]
    env = dict(machine.environ)
    hashed = ["--no-deps", "--require-hashes", "-r", tmp_path / "uv/wheels.txt"]
    for words in (hashed, ["-c", tmp_path / "uv/constraints.txt", "helper"]):
        subprocess.run([*pip, *words], check=True, env=env)
    (site,) = folder.glob("lib/python*/site-packages")
    for own in ("pip", "setuptools"):  # of a venv
        for path in site.glob(f"{own}-*.dist-info"):
            path.rename(path.with_suffix(".other"))
    assert records(mine.site) == records(site)
    assert len(records(site)) > len(wheels.wheels)


class Killing(HostRunner):
    """A runner that kills what installs after some time."""

    seconds = 0.0

    def run(self, command, /, **options):
        if "sync" not in command.argv:
            return super().run(command, **options)
        env = {**os.environ, **command.env}
        process = subprocess.Popen(command.argv, env=env, start_new_session=True)
        time.sleep(self.seconds)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise CommandError("killed")


@pytest.mark.parametrize("seconds", [0.02, 0.1])
def test_a_killed_install_leaves_nothing_that_the_next_one_takes(make, machine, seconds):
    whole = records(make("whole").site)
    shutil.rmtree(machine.cache / environment.CACHE)  # it is being filled
    runner = Killing(machine.environ)
    runner.seconds = seconds
    with pytest.raises(InfraError, match="killed"):
        make("killed", runner=runner)
    assert records(make("again").site) == whole


def poison(machine, name, text):
    """Write into what uv keeps of a package."""
    (path,) = (machine.cache / environment.CACHE).glob(f"archive-*/*/{name}")
    path.write_text(text)
    return path


def test_a_poisoned_cache_is_noticed_and_not_installed(make, machine, talk):
    first = make("first")
    whole = records(first.site)
    module = next(first.site.glob("helper/*.py")).name
    poison(machine, f"helper/{module}", "import os\n")
    second = make("second")
    assert talk.getvalue().count("a kept package was changed") == 1
    assert records(second.site) == whole
    assert (second.site / "helper" / module).read_text() != "import os\n"
    make("third")
    assert talk.getvalue().count("a kept package was changed") == 1, "it was mended"


def test_a_wheel_of_the_set_is_held_against_its_own_record(make, machine, talk):
    """A cache in which file and RECORD were changed alike agrees with itself."""
    first = make("first")
    (record,) = first.site.glob("jaxlib-*.dist-info/RECORD")
    kept = next(
        row for row in csv.reader(record.read_text().splitlines()) if row[0].endswith(".py")
    )
    path = poison(machine, kept[0], "version = 'mine'\n")
    changed = record.read_text().replace(kept[1], environment._digest(path))
    poison(machine, f"{record.parent.name}/RECORD", changed)
    second = make("second")
    assert talk.getvalue().count("a kept package was changed") == 1
    assert "mine" not in (second.site / kept[0]).read_text()


def test_a_file_that_is_not_what_its_set_names_is_not_installed(wheels, make):
    (wheels.origin / wheels.wheels[0].filename).write_bytes(b"other")
    with pytest.raises(InfraError, match="its set says"):
        make("env")


def test_a_version_that_no_index_has_is_a_mistake_of_the_suite(make):
    with pytest.raises(ConfigError, match=r"^helper==9\.0: no index has it for this"):
        make("env", "helper==9.0")


def test_an_index_that_does_not_answer_is_the_machines_matter(make, machine):
    environ = {**machine.environ, "PIP_INDEX_URL": "http://127.0.0.1:9/simple"}
    environ.pop("PIP_NO_INDEX")
    with pytest.raises(InfraError, match=r"127\.0\.0\.1:9"):
        make("env", "nowhere==1.0", runner=HostRunner(environ))


def test_uv_is_given_what_pip_is_configured_for(tmp_path):
    file = tmp_path / "pip.conf"
    file.write_text(
        "[global]\nindex-url = https://a/simple\n[install]\n"
        "extra-index-url =\n    https://b/simple\n    https://c/simple\nfind-links = /x /y\n"
    )
    env = {"PATH": os.environ["PATH"], "PIP_CONFIG_FILE": str(file), "PIP_FIND_LINKS": "/z"}
    found, alone = environment.configured(HostRunner(env))
    assert alone == ()
    assert {name: found[name] for name in found if name != "SSL_CERT_FILE"} == {
        "UV_DEFAULT_INDEX": "https://a/simple",
        "UV_INDEX": "https://b/simple https://c/simple",
        "UV_FIND_LINKS": "/z",
    }
    _, alone = environment.configured(HostRunner({**env, "PIP_NO_INDEX": "1"}))
    assert alone == ("--no-index",)
