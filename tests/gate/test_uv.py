"""Environments of gates, made by uv: what pip would install, whatever a kill or a cache leaves."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from support import wheelset
from support.gate import host as this_machine
from support.wheelset import make_set

from rocwheel.base.errors import ConfigError
from rocwheel.base.host import machine as machines
from rocwheel.base.process import HostRunner, base_env
from rocwheel.base.values import replace
from rocwheel.gate import environment, subject
from rocwheel.gate.setup_errors import InfraError

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.xdist_group("gate run")]
OWN = {"INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json"}  # of each installer


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


@pytest.fixture
def asked(tmp_path, interpreter, host):
    """Wheels of a set, and how to plan an environment of them in a folder."""
    manifest = make_set(tmp_path / "wheels", pythons=(str(interpreter.version),))
    (tmp_path / "links").mkdir()
    for version in ("1.0", "1.1"):
        wheelset.make_wheel(
            tmp_path / "links", project="helper", version=version, tag="py3-none-any",
            module="helper",
        )  # fmt: skip
    wheels = subject.of_manifest(manifest, interpreter.version, tmp_path / "wheels")

    def planned(name, *requirements):
        return environment.plan(
            wheels, interpreter=interpreter, folder=tmp_path / name, cache=host.cache,
            requirements=requirements or ("helper",), constraints=(), with_jax=False,
        )  # fmt: skip

    return wheels, planned


@pytest.fixture
def make(asked, host, console, tmp_path):
    def call(name, *requirements, runner=host.runner):
        wheels, planned = asked
        return environment.make(
            planned(name, *requirements), wheels, runner=runner, rocm=None, console=console,
            log=tmp_path / "install.log", left=lambda: 300.0,
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


def test_it_has_what_pip_installs(asked, interpreter, host, make, tmp_path):
    wheels, _ = asked
    mine = make("uv")
    assert "helper==1.1" in mine.packages
    folder = tmp_path / "pip"
    subprocess.run([interpreter.executable, "-m", "venv", folder], check=True)
    pip = [folder / "bin/python", "-m", "pip", "install", "-q", "--only-binary=:all:"]
    env = dict(host.environ)
    hashed = ["--no-deps", "--require-hashes", "-r", tmp_path / "uv/wheels.txt"]
    for words in (hashed, ["-c", tmp_path / "uv/constraints.txt", "helper"]):
        subprocess.run([*pip, *words], check=True, env=env)
    (site,) = folder.glob("lib/python*/site-packages")
    for own in ("pip", "setuptools"):  # of a venv
        for path in site.glob(f"{own}-*.dist-info"):
            path.rename(path.with_suffix(".other"))
    assert records(mine.site) == records(site)
    assert len(records(site)) > len(wheels.wheels)


@pytest.mark.parametrize("seconds", [0.02, 0.1])
def test_a_killed_install_leaves_nothing_that_the_next_one_takes(asked, host, make, seconds):
    _, planned = asked
    whole = records(make("whole").site)
    plan = planned("killed")
    plan.python.parents[2].mkdir()
    sync = plan.commands[2][1]
    argv = [word.replace("killed/all.txt", "whole/all.txt") for word in sync.argv]
    configured, alone = environment.configured(host.runner)
    env = {**configured, **host.environ, **sync.env}
    env["UV_CACHE_DIR"] += "-other"  # an empty one, which is being filled
    subprocess.run(plan.commands[0][1].argv, check=True, env=env)
    process = subprocess.Popen([*argv, *alone], env=env, start_new_session=True)
    time.sleep(seconds)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    kept = host.cache / environment.CACHE
    kept.rename(host.cache / "first")
    Path(env["UV_CACHE_DIR"]).rename(kept)
    assert records(make("again").site) == whole


def poison(host, name, text):
    """Write into what uv keeps of a package."""
    (path,) = (host.cache / environment.CACHE).glob(f"archive-*/*/{name}")
    path.write_text(text)
    return path


def test_a_poisoned_cache_is_noticed_and_not_installed(make, host, talk):
    first = make("first")
    whole = records(first.site)
    module = next(first.site.glob("helper/*.py")).name
    poison(host, f"helper/{module}", "import os\n")
    second = make("second")
    assert talk.getvalue().count("a kept package was changed") == 1
    assert records(second.site) == whole
    assert (second.site / "helper" / module).read_text() != "import os\n"
    make("third")
    assert talk.getvalue().count("a kept package was changed") == 1, "it was mended"


def test_a_wheel_of_the_set_is_held_against_its_own_record(make, host, talk):
    """A cache in which file and RECORD were changed alike agrees with itself."""
    first = make("first")
    (record,) = first.site.glob("jaxlib-*.dist-info/RECORD")
    kept = next(
        row for row in csv.reader(record.read_text().splitlines()) if row[0].endswith(".py")
    )
    path = poison(host, kept[0], "version = 'mine'\n")
    changed = record.read_text().replace(kept[1], environment._digest(path))
    poison(host, f"{record.parent.name}/RECORD", changed)
    second = make("second")
    assert talk.getvalue().count("a kept package was changed") == 1
    assert "mine" not in (second.site / kept[0]).read_text()


def test_a_file_that_is_not_what_its_set_names_is_not_installed(asked, make):
    wheels, _ = asked
    wheels.wheels[0].path.write_bytes(b"other")
    with pytest.raises(InfraError, match="its set says"):
        make("env")


def test_a_version_that_no_index_has_is_a_mistake_of_the_suite(make):
    with pytest.raises(ConfigError, match=r"^helper==9\.0: no index has it for this"):
        make("env", "helper==9.0")


def test_an_index_that_does_not_answer_is_the_machines_matter(make, host):
    environ = {**host.environ, "PIP_INDEX_URL": "http://127.0.0.1:9/simple"}
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
