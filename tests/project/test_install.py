"""An installed rocwheel has every command and its data, however it was installed.

Each environment is new and every command runs outside the checkout, with no PYTHONPATH.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import pages
from support.tiers import merge_tries

from rocwheel import __version__
from rocwheel.base.host import machine
from rocwheel.base.process import HostRunner, base_env
from rocwheel.cli import COMMANDS

ROOT = Path(__file__).parents[2]
UV = (sys.executable, "-m", "uv", "--quiet")
pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.xdist_group("install")]


@functools.cache
def pythons():
    """Each CPython that doctor finds here, the oldest first."""
    here = machine.pythons(os.environ, runner=HostRunner(base_env(os.environ)))
    return {str(item.version): item.executable for item in here if not item.version.free_threaded}


@functools.cache
def as_uv_says_it():
    """Where pip finds packages here, for uv, which does not read pip's configuration."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    names = {"index-url": "UV_INDEX_URL", "extra-index-url": "UV_EXTRA_INDEX_URL",
             "find-links": "UV_FIND_LINKS"}  # fmt: skip
    found = {}
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        variable = names.get(name.rpartition(".")[2])
        if variable and value:
            found[variable] = value.strip("'")
    if "UV_EXTRA_INDEX_URL" in found:
        found["UV_INDEX_STRATEGY"] = "unsafe-best-match"  # as pip takes them: all alike
    return found


def run(*argv, cwd, check=True, **env):
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "ROCWHEEL", "VIRTUAL_ENV"))
    }
    done = subprocess.run(
        [*map(str, argv)],
        cwd=cwd,
        env={**as_uv_says_it(), **kept, **env},
        capture_output=True,
        text=True,
        check=False,
    )
    if check and done.returncode:
        pytest.fail(f"{argv}: {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """The wheel that `python -m build` makes out of the sdist it makes."""
    folder = tmp_path_factory.mktemp("built")
    tree = folder / "tree"
    files = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split("\0")  # fmt: skip
    for name in filter(None, files):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    git = ("git", "-C", tree, "-c", "user.name=x", "-c", "user.email=x@example.com")
    run(*git, "init", "--quiet", cwd=folder)
    run(*git, "add", "--all", "--force", cwd=folder)
    run(*git, "commit", "--quiet", "--message=x", cwd=folder)
    run(sys.executable, "-m", "build", "--installer", "uv", "--outdir", folder, tree, cwd=folder)
    (wheel,) = folder.glob("*.whl")
    (sdist,) = folder.glob("*.tar.gz")
    return wheel, sdist, tree


def commit_of(tree):
    return run("git", "-C", tree, "rev-parse", "HEAD", cwd=tree).stdout.strip()


HELP = """
import sys
from rocwheel.cli import main
for name in sys.argv[1:]:
    assert main([name, "--help"]) == 0, name
"""


def environment(python, folder, *what):
    """A new virtual environment with `what` in it; gives its bin folder."""
    folder.mkdir(parents=True)
    run(*UV, "venv", "--python", python, folder / "venv", cwd=folder)
    run(*UV, "pip", "install", "--python", folder / "venv" / "bin" / "python", *what, cwd=folder)
    return folder / "venv" / "bin"


def try_everything(bin_folder, cwd, commit, *start):
    """Every command answers, those that need data find it, and it knows which commit it is."""
    program = start or (bin_folder / "rocwheel",)
    said = run(*program, "--version", cwd=cwd).stdout
    assert said == f"rocwheel {__version__} ({commit[:12]})\n"
    run(bin_folder / "python", "-c", HELP, *COMMANDS, cwd=cwd)  # imports every command's module
    run(bin_folder / "python", "-m", "pip", "--version", cwd=cwd)  # which uv brings nobody
    listed = json.loads(run(*program, "gate", "list", "--json", cwd=cwd).stdout)
    assert {"smoke", "unit"} <= {suite["suite"] for suite in listed["suites"]}
    plan = run(
        *program, "dist_wheels", "--dry-run", "--compiler=hermetic", "--family=gfx94X-dcgpu",
        "--rocm-version=7.10.0", "--python-versions=3.12",
        "--therock-path=https://example.com/therock-dist-linux-gfx94X-dcgpu-7.10.0.tar.gz",
        "--allow-dirty", cwd=cwd, check=False,
    )  # fmt: skip
    assert "Traceback" not in plan.stderr, plan.stderr
    assert plan.returncode == 0, plan.stderr
    assert "//jaxlib/tools:" in plan.stdout
    store = (cwd / "store").as_uri()
    (cwd / "store" / "v2").mkdir(parents=True, exist_ok=True)  # an empty one is refused
    shown = run(
        *program, "status", "--family=gfx94X-dcgpu", f"--store={store}", "--json", cwd=cwd
    ).stdout
    assert json.loads(shown) == {"sets": [], "problems": []}


def test_all_promised_pythons_are_on_this_machine():
    if os.environ.get("CI") != "true":
        pytest.skip("only where everything is promised to be there")
    assert pythons(), "no CPython found"


WHICH = {"oldest": slice(1), "between": slice(1, -1), "newest": slice(-1, None)}


@pytest.mark.parametrize("which", merge_tries("oldest", "newest", of=WHICH))
def test_the_wheel_works_on_every_python_that_doctor_finds(built, tmp_path, which):
    wheel, _, tree = built
    for version, executable in list(pythons().items())[WHICH[which]]:
        folder = environment(executable, tmp_path / version, wheel)
        try_everything(folder, tmp_path / version, commit_of(tree))
        assert run(folder / "python", "-m", "amdgpu_family_matrix", cwd=tmp_path).stdout


def test_an_sdist_and_a_module_start_work_too(built, tmp_path):
    _, sdist, tree = built
    folder = environment(sys.executable, tmp_path / "env", sdist)
    try_everything(folder, tmp_path, commit_of(tree), folder / "python", "-m", "rocwheel")
    usage = run(folder / "python", "-m", "rocwheel", "wheel", cwd=tmp_path).stdout
    assert usage.startswith("Usage: python -m rocwheel wheel ")


def test_what_is_packaged_from_a_changed_checkout_says_so(built, tmp_path):
    """Whatever the user's git is told to overlook."""
    _, _, tree = built
    copy = tmp_path / "copy"
    run("git", "clone", "--quiet", tree, copy, cwd=tmp_path)
    (tmp_path / ".gitconfig").write_text(
        "[status]\n  showUntrackedFiles = no\n[core]\n  excludesFile = ~/ignored\n"
    )
    (tmp_path / "ignored").write_text("*\n")
    code = "import setup, json; print(json.dumps(setup.source()))"
    ask = (sys.executable, "-c", code.replace("import setup", "import sys, setuptools as s; "
           "s.setup = lambda **_: None; sys.path.insert(0, '.'); import setup"))  # fmt: skip

    def source():
        return json.loads(run(*ask, cwd=copy, HOME=str(tmp_path)).stdout)

    clean = {"repository": "", "commit": commit_of(tree), "dirty": False, "digest": ""}
    shutil.rmtree(copy / "__pycache__", ignore_errors=True)
    assert source() == clean
    (copy / "another.py").touch()
    assert source() == {**clean, "dirty": True}
    (copy / "another.py").unlink()
    run("git", "-C", copy, "update-index", "--assume-unchanged", "README.md", cwd=copy)
    (copy / "README.md").write_text("changed")
    assert source() == {**clean, "dirty": True}


def test_an_editable_install_uses_the_checkout(built, tmp_path):
    """By the lines of the overview."""
    _, _, tree = built
    (block,) = (block for block in pages.blocks() if block.page.name == "index.md")
    lines = "\n".join(block.commands).replace("pip install", "pip install --editable")
    run("bash", "-e", "-c", lines, cwd=tree, HOME=str(tmp_path))
    folder = tmp_path / "rocwheel-venv" / "bin"
    try_everything(folder, tmp_path, commit_of(tree))
    code = "import amdgpu_family_matrix, rocwheel.base.home as h; print(h.find(None).root)"
    assert run(folder / "python", "-c", code, cwd=tmp_path).stdout.strip() == str(tree)


def test_uvx_runs_it_from_a_folder(built, tmp_path):
    _, _, tree = built
    said = run(*UV, "tool", "run", "--from", tree, "rocwheel", "gate", "list", cwd=tmp_path).stdout
    assert "smoke" in said


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """`rocwheel` of an environment that the wheel was installed into."""
    wheel, _, _ = built
    return environment(sys.executable, tmp_path_factory.mktemp("in") / "env", wheel) / "rocwheel"


def test_the_demo_finds_its_workspace_when_installed(installed, tmp_path):
    done = run(installed, "demo", "--dry-run", cwd=tmp_path, check=False)
    assert "Traceback" not in done.stderr
    if shutil.which("clang-19"):
        assert "share/examples/miniature" in done.stdout


def test_a_night_goes_its_way_when_installed(installed, tmp_path):
    """Nothing to build from: the build fails, what needs it is barred, the page says so."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "file").write_text("no JAX")
    (tmp_path / "rocm-7.1.0.tar.gz").write_bytes(b"no ROCm")
    (tmp_path / "nightly.yaml").write_text(
        "sets: [{name: jax, source_dir: source, pythons: ['3.12'], families: [gfx90a],"
        " rocm: {source: rocm-7.1.0.tar.gz}}]\n"
    )
    store = f"--store={(tmp_path / 'store').as_uri()}"
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    run(
        installed,
        "nightly",
        "plan",
        "--night=one",
        "--config=nightly.yaml",
        store,
        cwd=tmp_path,
        **env,
    )
    done = run(installed, "nightly", "run", "one", store, cwd=tmp_path, check=False, **env)
    assert done.returncode == 5, done.stderr
    shown = run(
        installed, "--json", "nightly", "status", "one", store, cwd=tmp_path, check=False, **env
    )
    states = {cell["cell"]: cell["state"] for cell in json.loads(shown.stdout)["cells"]}
    assert states.pop("page") == states.pop("prune") == "pass"
    assert states.pop("build.jax") == "fail"
    assert set(states.values()) == {"barred"}
    assert "build.jax" in (tmp_path / "store" / "status" / "index.html").read_text()


def test_doctor_answers_when_installed(installed, tmp_path):
    assert "checks" in json.loads(
        run(installed, "doctor", "--json", cwd=tmp_path, check=False).stdout
    )


def test_a_checkout_and_an_installed_one_on_the_path_are_not_mixed(built, installed, tmp_path):
    """Whichever starts, code, data and version are of the same one."""
    _, _, tree = built
    newer = tmp_path / "newer"
    run("git", "clone", "--quiet", tree, newer, cwd=tmp_path)
    suite = newer / "ci" / "suites" / "smoke.yaml"
    suite.with_name("newer.yaml").write_text(
        suite.read_text().replace("suite: smoke", "suite: newer")
    )
    git = ("git", "-C", newer, "-c", "user.name=x", "-c", "user.email=x@example.com")
    run(*git, "add", "--all", cwd=tmp_path)
    run(*git, "commit", "--quiet", "--message=newer", cwd=tmp_path)
    python = installed.parent / "python"
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = run(python, "-c", ask, cwd=tmp_path).stdout.strip()
    of_the_checkout = (python, newer / "build" / "ci_build")
    for program, env, home, has in (
        (of_the_checkout, {"PYTHONPATH": site}, newer, True),
        ((installed,), {"PYTHONPATH": f"{newer / 'build'}:{newer}"}, newer, True),
        ((installed,), {}, tree, False),
    ):
        said = run(*program, "--version", cwd=newer, **env).stdout
        assert said == f"rocwheel {__version__} ({commit_of(home)[:12]})\n"
        suites = run(*program, "gate", "list", "--json", cwd=newer, **env).stdout
        assert ("newer" in {suite["suite"] for suite in json.loads(suites)["suites"]}) == has


def test_a_teams_own_data_takes_the_place_of_the_packaged_one(installed, tmp_path):
    ci = tmp_path / "team" / "data"
    shutil.copytree(ROOT / "ci", ci)
    (ci / "suites" / "smoke.yaml").rename(ci / "suites" / "ours.yaml")
    text = (ci / "suites" / "ours.yaml").read_text().replace("suite: smoke", "suite: ours")
    (ci / "suites" / "ours.yaml").write_text(text)
    by_option = run(installed, "gate", "list", f"--ci-dir={ci}", cwd=tmp_path).stdout
    by_environment = run(installed, "gate", "list", cwd=tmp_path, ROCWHEEL_CI_DIR=str(ci))
    assert "ours" in by_option
    assert by_option == by_environment.stdout
    wrong = run(installed, "gate", "list", "--ci-dir=nowhere", cwd=tmp_path, check=False)
    assert wrong.returncode == 3
    assert "has no pins.yaml" in wrong.stderr
