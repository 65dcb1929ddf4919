"""What a container is started with, as an engine's command line."""

from __future__ import annotations

import csv
from pathlib import Path, PurePosixPath

import pytest

from rocwheel.base import container
from rocwheel.base.container import (
    ContainerEngine,
    ContainerLimits,
    ContainerSpec,
    EngineKind,
    Mount,
    User,
    devices,
)
from rocwheel.base.errors import HostError
from rocwheel.base.process import GuestPath, HostRunner
from rocwheel.base.values import replace
from rocwheel.dist.build_request import Executor
from rocwheel.dist.executor import limits


@pytest.fixture
def spec(tmp_path):
    engine = ContainerEngine(
        kind=EngineKind.DOCKER,
        program="docker",
        version="20.10.24",
        architecture="amd64",
        root=Path("/var/lib/docker"),
        rootless=False,
    )
    return ContainerSpec(
        engine=engine,
        image="sha256:" + "1" * 64,
        run="abc",
        folder=tmp_path / "run",
        user=User(uid=1000, gid=100, groups=(100, 27), name="me"),
    )


def words(spec):
    return spec.start.argv


@pytest.mark.parametrize(
    ("kind", "masked"),
    [(EngineKind.DOCKER, "systempaths=unconfined"), (EngineKind.PODMAN, "unmask=ALL")],
)
def test_the_sandbox_of_bazel_gets_what_it_needs_on_request(kind, masked, spec):
    lifted = words(replace(spec, sandbox=True, engine=replace(spec.engine, kind=kind)))
    assert "--security-opt=seccomp=unconfined" in lifted
    assert f"--security-opt={masked}" in lifted
    assert "--privileged" not in lifted


def test_rootless_podman_keeps_the_callers_id(spec):
    rootless = replace(spec.engine, kind=EngineKind.PODMAN, rootless=True)
    assert "--userns=keep-id" in words(replace(spec, engine=rootless))
    assert "--user=1000:100" in words(replace(spec, engine=rootless))


def test_in_rootless_docker_root_is_the_caller(spec):
    assert "--user=0:0" in words(replace(spec, engine=replace(spec.engine, rootless=True)))


def test_limits_are_handed_on(spec):
    given = words(replace(spec, limits=ContainerLimits(cpus="2", memory="4g", shm="2g", files=99)))
    assert {"--cpus=2", "--memory=4g", "--shm-size=2g", "--ulimit=nofile=99:99"} <= set(given)


def test_a_path_with_a_comma_survives_the_engines_csv(spec, tmp_path):
    mount = Mount(host=tmp_path / "a,b", guest=GuestPath(PurePosixPath("/c,d")))
    (fields,) = csv.reader([mount.option])
    assert f"source={tmp_path}/a,b" in fields
    assert "target=/c,d" in fields
    assert "readonly" in fields


def test_gpus_are_passed_with_the_numeric_groups_that_own_them(spec, tmp_path):
    """A device tree of files: no GPU is at hand."""
    (tmp_path / "dev" / "dri").mkdir(parents=True)
    for name in ("kfd", "dri/card0", "dri/renderD128"):
        (tmp_path / "dev" / name).touch()
    (tmp_path / "dev" / "dri" / "by-path").mkdir()
    found = devices(tmp_path)
    assert [str(item.path) for item in found] == [
        "/dev/kfd",
        "/dev/dri/card0",
        "/dev/dri/renderD128",
    ]
    given = words(replace(spec, devices=tuple(replace(item, gid=44) for item in found)))
    assert "--device=/dev/kfd" in given
    assert given.count("--group-add=44") == 1


def test_the_same_wishes_and_folders_find_the_same_kept_container(spec, tmp_path):
    kept = replace(spec, keep_minutes=30)
    more = Mount(host=tmp_path, guest=GuestPath(PurePosixPath("/x")))
    same = {"run": "def", "folder": spec.folder.with_name("def"), "keep_minutes": 60, "owner": "me"}
    assert replace(kept, **same).key == kept.key
    for asked in (
        {"mounts": (more,)},
        {"sandbox": True},
        {"limits": ContainerLimits(cpus="2")},
        {"env": {"HTTP_PROXY": "http://p"}},
        {"network": "host"},
        {"folder": tmp_path / "other-cache" / "run"},
    ):
        assert replace(kept, **asked).key != kept.key
    assert f"--label=org.rocwheel.kept={kept.key}" in words(kept)
    assert "--detach" in words(kept)
    assert "--interactive" not in words(kept)
    assert kept.files["alive"] == "30\n"


def test_a_kept_container_whose_files_cannot_be_written_is_one_error(spec, tmp_path):
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "containers" / "x"
    with (
        pytest.raises(HostError, match="Not a directory") as refused,
        container.kept(replace(spec, folder=folder, keep_minutes=30), runner=HostRunner({})),
    ):
        pass
    assert "ROCWHEEL_CACHE_DIR" in refused.value.hint


def test_what_only_takes_its_name_is_known_as_ours_too(spec):
    """A leftover is found by its labels, whoever was killed when."""
    ours = replace(spec, owner="1:2:boot:3")
    marks = [word for word in ours.start.argv if word.startswith(("--name=", "--label="))]
    assert marks == [word for word in ours.take_name.argv if word in marks]
    assert len(marks) == 4


def test_no_more_processes_are_asked_for_than_there_can_be():
    """Podman 4.3 with runc starts nothing above `pid_max`, whatever this process may have."""
    most = int(Path("/proc/sys/kernel/pid_max").read_text())
    assert limits(Executor()).processes <= most
