"""Every line that installs a set is run: pip, uv, Poetry, empty environments, a loopback copy.

The set is shaped as that of the default pin: plugin and pjrt are ours, jaxlib is upstream's. The
package index has newer wheels of our names, from somebody else.
"""

from __future__ import annotations

import functools
import gzip
import http.server
import os
import shutil
import subprocess
import sys
import sysconfig
import threading
from pathlib import Path

import pytest
from support import install_lines, rocm_packages, tarballs, wheels

from rocwheel.base import files
from rocwheel.records.install import Install, Package

pytestmark = pytest.mark.integration

TAG = f"cp{sys.version_info[0]}{sys.version_info[1]}"
OURS, JAX = "0.11.0+rocm7.10.0", "0.11.0"
UV = Path(sysconfig.get_path("scripts")) / "uv"


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Serve two indexes as folders: ours, and the package index."""
    root = tmp_path_factory.mktemp("site")

    def put(index, wheel):
        folder = root / index / wheel.project
        folder.mkdir(parents=True, exist_ok=True)
        return wheel.write(folder)

    tag = f"{TAG}-{TAG}-manylinux_2_27_x86_64"
    ours = (
        put("rocm", wheels.pjrt(version=OURS)),
        put("rocm", wheels.plugin(version=OURS, tag=tag)),
    )
    put("rocm", wheels.Wheel(project="jaxlib", version="0.8.0+rocm7.10.0"))  # of an older set
    put("pypi", wheels.pjrt(version="99"))
    put("pypi", wheels.plugin(version="99", tag=tag))
    for version in (JAX, "0.12.0"):
        requires = (f"jaxlib<={version},>={version}",)
        put("pypi", wheels.Wheel(project="jax", version=version, requires=requires))
        jaxlib = put("pypi", wheels.Wheel(project="jaxlib", version=version))
        if version == JAX:
            upstream = Package(project="jaxlib", version=JAX, hashes=(files.sha256(jaxlib),))
    handler = functools.partial(Quiet, directory=root)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        packages = tuple(
            Package(project=project, version=OURS, hashes=(files.sha256(path),))
            for project, path in zip(("jax-rocm7-pjrt", "jax-rocm7-plugin"), ours, strict=True)
        )
        yield (
            Install(index=f"{url}/rocm/", ours=packages, upstream=(upstream,), jax=JAX),
            f"{url}/pypi/",
        )
        server.shutdown()


@pytest.fixture
def shell(site, tmp_path):
    """Run a line in an empty environment whose package index is the loopback copy."""
    _, pypi = site
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    bin_folder = venv / "bin"
    (bin_folder / "uv").symlink_to(UV)
    pip = f'#!/bin/sh\nexec {sys.executable} -m pip --python {venv}/bin/python "$@"\n'
    (bin_folder / "pip").write_text(pip)  # ours: ensurepip takes ten seconds
    (bin_folder / "pip").chmod(0o755)
    env = {name: os.environ[name] for name in ("HOME", "LANG") if name in os.environ} | {
        "PATH": f"{bin_folder}:/usr/bin:/bin",
        "VIRTUAL_ENV": str(tmp_path / "venv"),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": pypi,
        "PIP_NO_CACHE_DIR": "1",
        "POETRY_CACHE_DIR": str(tmp_path / "poetry"),
        "UV_NO_CONFIG": "1",
        "UV_NO_CACHE": "1",
        "UV_DEFAULT_INDEX": pypi,
    }

    def run(line):
        done = subprocess.run(
            line, shell=True, cwd=tmp_path, env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        return done.stdout

    run.folder = tmp_path
    return run


def installed(shell):
    listed = shell("pip list --format=freeze --disable-pip-version-check").split()
    return {item for item in listed if not item.startswith(("pip==", "setuptools=="))}


SET = {
    f"jax=={JAX}", f"jaxlib=={JAX}", f"jax-rocm7-pjrt=={OURS}", f"jax-rocm7-plugin=={OURS}",
}  # fmt: skip


# Who reads the page of installers finds what these tests have run.
OUTCOMES = {
    install_lines.ALL: SET,
    install_lines.NO_JAX: SET - {f"jax=={JAX}"},
    install_lines.PROJECT: SET,
}


@pytest.fixture(scope="module")
def poetry(tmp_path_factory):
    """Poetry of this machine, else the package index's, in an environment of its own."""
    if there := shutil.which("poetry"):
        return Path(there)
    folder = tmp_path_factory.mktemp("poetry")
    env = {**os.environ, "UV_TOOL_DIR": f"{folder}/tools", "UV_TOOL_BIN_DIR": f"{folder}/bin"}
    line = [UV, "tool", "install", "--quiet", "--python", sys.executable, "poetry>=2.1,<3"]
    done = subprocess.run(line, env=env, capture_output=True, text=True, check=False)
    if done.returncode and os.environ.get("CI") != "true":
        pytest.skip(f"poetry cannot be had: {done.stderr}")
    assert done.returncode == 0, done.stderr
    return folder / "bin" / "poetry"


@pytest.mark.parametrize("client", install_lines.RUN)
def test_the_lines_install_what_the_page_of_installers_says(client, site, shell, request):
    install, pypi = site
    lines, outcome = install_lines.of(install)[client], install_lines.RUN[client]
    (shell.folder / "rocm.txt").write_text(install.requirements)
    (shell.folder / "upstream.txt").write_text(install.upstream_requirements)
    if client == "poetry":
        program = request.getfixturevalue("poetry")
        (shell.folder / "venv" / "bin" / "poetry").symlink_to(program)
        (shell.folder / "pyproject.toml").write_text(
            '[project]\nname = "p"\nversion = "1"\n'
            f'requires-python = "~={sys.version_info[0]}.{sys.version_info[1]}.0"\n'
        )
        shell(f"poetry source add pypi-copy {pypi}")
    for line in lines:
        shell(line)
    assert installed(shell) == OUTCOMES[outcome]
    if outcome == install_lines.ALL:
        shell("pip check")


@pytest.mark.parametrize("way", install_lines.ROCM)
def test_the_lines_of_rocm_bring_the_rocm_of_the_set(way, shell):
    """From a folder; `sudo` does nothing, and /opt/rocm is a folder of the test."""
    origin, version = way.removeprefix("ROCm, "), "7.15.0a20260630"
    tarball, opt = shell.folder / "therock-dist.tar.gz", shell.folder / "opt"
    tarball.write_bytes(gzip.compress(tarballs.tar(tarballs.rocm_files("7.15.0"))))
    sudo = shell.folder / "venv" / "bin" / "sudo"
    sudo.write_text('#!/bin/sh\nexec "$@"\n')
    sudo.chmod(0o755)
    packages = rocm_packages.index(shell.folder / "sdk", version)
    url = packages if origin == "pip" else tarball.as_uri()
    install = Install(
        index="", ours=(), jax=JAX, rocm=version, rocm_url=url, rocm_origin=origin, targets=("gfx942",)
    )  # fmt: skip
    (line,) = install_lines.of(install)[way]
    shell(line.replace("/opt/rocm", str(opt)))
    names = ("rocm", "rocm-sdk-core", "rocm-sdk-device-gfx942", "rocm-sdk-libraries")
    assert installed(shell) == ({f"{x}=={version}" for x in names} if origin == "pip" else set())
    assert (opt / "bin" / "hipcc").exists() == (origin == "tarball")


def test_a_file_with_hashes_refuses_other_bytes(site, shell):
    install, _ = site
    (shell.folder / "rocm.txt").write_text(
        install.requirements.replace(install.ours[0].hashes[0], "0" * 64)
    )
    with pytest.raises(AssertionError, match="DO NOT MATCH"):
        shell(install.by_hash("rocm.txt")[0])


def test_a_further_index_would_have_installed_somebody_elses(site, shell):
    """What the lines avoid: the test's package index can tell the difference."""
    install, pypi = site
    shell(f"pip install --index-url {install.index} --extra-index-url {pypi} jax-rocm7-plugin")
    assert "jax-rocm7-plugin==99" in installed(shell)
