"""What can be refused before the first fetch is, by a dry run and a real run in the same words."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from support import tarballs, toy, wheels

ROOT = Path(__file__).parents[2]
PROGRAM = (sys.executable, str(ROOT / "build" / "ci_build"))
FAMILY = "--family=gfx94X-dcgpu"
NAME = "therock-dist-linux-gfx94X-dcgpu-7.10.0.tar.gz"


class Server:
    """Remembers what it is asked for, so that "before the first fetch" can be seen."""

    def __init__(self):
        asked = self.asked = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                asked.append(self.path)
                self.send_error(404)

            do_HEAD = do_GET  # noqa: N815

            def log_message(self, *_args):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.http.server_port}"


@pytest.fixture(scope="module")
def server():
    found = Server()
    yield found
    found.http.shutdown()
    found.http.server_close()


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of rocwheel's checkout as its commit has it, whose JAX comes from `server`."""
    folder = tmp_path_factory.mktemp("checkout") / "rocwheel"
    names = subprocess.run(
        ["git", "ls-files", "-z", "build", "ci", "suites", "amdgpu_family_matrix.py", ".gitignore"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split("\0")  # fmt: skip
    for name in filter(None, names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    git = ("git", "-c", "user.name=t", "-c", "user.email=t@t", "-C", str(folder))
    subprocess.run([*git, "init", "--quiet"], check=True)
    subprocess.run([*git, "add", "--all"], check=True)
    subprocess.run([*git, "commit", "--quiet", "-m", "all"], check=True)
    return folder


@pytest.fixture
def refused(tmp_path, server, checkout):
    """Run a command, dry and for real: both end with the same two lines, nothing was asked for."""

    def once(*arguments, at):
        return subprocess.run(
            [sys.executable, str(at / "build" / "ci_build"), *arguments],
            cwd=tmp_path,
            env={
                "PATH": "/usr/bin:/bin",
                "HOME": str(tmp_path),
                "http_proxy": server.url,
                "https_proxy": server.url,
            },
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )

    def both(*arguments, code, at=checkout, has_plan=True):
        ends = [once(*arguments, at=at)]
        ends += [once(*arguments, "--dry-run", at=at)] if has_plan else []
        for done in ends:
            assert (done.returncode, done.stdout) == (code, ""), (done.args, done.stderr)
        said = {done.stderr[done.stderr.index("error: ") :] for done in ends}
        assert len(said) == 1, said
        assert len(min(said).splitlines()) == 2, said
        assert server.asked == []
        return said.pop()

    server.asked.clear()
    return both


BUILD = ("dist_wheels", f"--therock-path=https://example.com/{NAME}", "--compiler=hermetic")


def test_a_folder_that_is_no_rocm(refused, tmp_path):
    (tmp_path / "empty").mkdir()
    for command in ("dist_wheels", "fetch_rocm", "configure"):
        family = () if command == "fetch_rocm" else (FAMILY,)
        said = refused(command, "--therock-path=empty", *family, code=10)
        assert "no ROCm tree" in said


def test_a_file_that_is_no_tarball(refused, tmp_path):
    (tmp_path / NAME).write_text("<html>not found</html>")
    said = refused("dist_wheels", f"--therock-path={NAME}", code=10)
    assert "neither .tar.gz, .tar.xz nor .tar.zst" in said


@pytest.fixture
def venv(tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    site = next((tmp_path / "venv" / "lib").glob("python3*/site-packages"))
    (site / "pip").mkdir()
    (site / "pip" / "__init__.py").touch()
    return tmp_path / "venv"


def test_a_test_where_the_environment_has_no_pytest(refused, tmp_path, venv):
    (tmp_path / "test_it.py").touch()
    said = refused("dev", f"--environment={venv}", "--test=test_it.py", *BUILD[1:], code=8)
    assert "has no pytest" in said
    assert "venv/bin/pip install pytest" in said


def test_an_environment_that_is_none_and_a_test_that_is_not_there(refused, venv):
    assert "no virtual environment" in refused("dev", "--environment=no", *BUILD[1:], code=8)
    (next(venv.glob("lib/python3*/site-packages")) / "pytest.py").touch()
    said = refused("dev", f"--environment={venv}", "--test=nowhere.py", *BUILD[1:], code=3)
    assert "nowhere.py: no such file" in said


def test_a_cpython_that_the_jax_release_does_not_have(refused):
    said = refused(*BUILD, "--jax-version=0.9.1", "--python-versions=3.10", code=3)
    assert "3.10" in said


def test_dev_takes_the_environments_own_python(tmp_path, venv, checkout):
    done = subprocess.run(
        [sys.executable, str(checkout / "build" / "ci_build"), "dev", f"--environment={venv}",
         *BUILD[1:], "--jax-version=0.10.2", "--dry-run"],
        cwd=tmp_path, env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert done.returncode == 0, done.stderr
    assert f"HERMETIC_PYTHON_VERSION={here}" in done.stdout


def test_wheels_and_manifest_contradict_each_other(refused):
    said = refused(
        "gate", "--wheels=.", "--manifest=abcdef", "--suite=smoke", "--python=3.12", FAMILY, code=2
    )
    assert "contradict" in said


def test_a_platform_tag_that_is_none(refused, tmp_path):
    wheel = wheels.plugin().write(tmp_path)
    for tag in ("--platform-tag=linux", "--platform-tag=manylinux_x86_64", "--python-tag=3.12"):
        assert "tag" in refused("wheel", "retag", str(wheel), tag, "--output=out", code=3)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("command", "has_plan"),
    [
        (("status",), False),
        (("promote", "--manifest=abcdef"), True),
        (("yank", "--manifest=abcdef", "--reason=x"), True),
        (("rollback", "--manifest=abcdef", "--reason=x"), True),
        (("prune",), True),
        (("index", "check"), False),
        (("index", "repair"), True),
        (("gate", "--suite=smoke", "--python=3.12", "--manifest=abcdef"), True),
        (("serve", "--port=0"), False),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, tuple) else "",
)
def test_a_store_that_does_not_exist(refused, tmp_path, command, has_plan):
    store = (tmp_path / "nowhere").as_uri()
    said = refused(*command, FAMILY, f"--store={store}", code=7, has_plan=has_plan)
    assert f"{store}: no such folder" in said
    assert not (tmp_path / "nowhere").exists()


def test_a_bazel_that_is_not_there(refused):
    for path in ("tools/bazel", "/nowhere/bazel", "no-such-bazel"):
        assert "no such program" in refused(*BUILD, f"--bazel-path={path}", code=8)


def test_a_relative_path_of_bazel_starts_where_one_stands(tmp_path, checkout):
    bazel = tmp_path / "tools" / "bazel"
    bazel.parent.mkdir()
    bazel.write_text("#!/bin/sh\necho bazel 7.4.1\n")
    bazel.chmod(0o755)
    done = subprocess.run(
        [sys.executable, str(checkout / "build" / "ci_build"), *BUILD, "--dry-run", "--json",
         "--bazel-path=tools/bazel"],
        cwd=tmp_path, env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True, text=True, timeout=400, check=True,
    )  # fmt: skip
    assert str(bazel) in "\n".join(json.loads(done.stdout)["plan"])


def test_a_dirty_tree(refused, tmp_path, checkout):
    changed = shutil.copytree(checkout, tmp_path / "changed")
    (changed / "ci" / "more.yaml").touch()
    said = refused(*BUILD, code=3, at=changed)
    assert said.startswith("error: rocwheel: changes that are in no commit")


def test_an_old_jax(refused, tmp_path):
    jax = toy.make(tmp_path / "jax")
    (jax / "jax" / "version.py").write_text('_version = "0.5.0"\n')
    said = refused(*BUILD, f"--jax-source-dir={jax}", "--allow-dirty", code=11)
    assert "JAX 0.5.0 is too old" in said


def test_a_dry_run_warns_as_a_real_run_does(tmp_path, checkout, server):
    """Both say what they say before the first fetch, and only the real run fetches."""
    folder = tarballs.rocm_folder(tmp_path / "home" / "rocm")
    line = [sys.executable, str(checkout / "build" / "ci_build"), "dist_wheels",
            f"--therock-path={folder}", FAMILY, "--compiler=hermetic",
            "--bazel-options=--jobs=3 --verbose_failures"]  # fmt: skip
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "https_proxy": server.url}
    said = []
    for more in ((), ("--dry-run",)):
        done = subprocess.run(
            [*line, *more], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=400,
            check=False,
        )  # fmt: skip
        said.append([text for text in done.stderr.splitlines() if text.startswith("warning: ")])
    assert said[0] == said[1]
    assert len(said[0]) == 1
    assert "one option for Bazel, not two" in said[0][0]
