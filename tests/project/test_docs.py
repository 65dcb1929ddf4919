"""Pages that are made from the program are as the program is."""

from __future__ import annotations

import ast
import json
import os
import pkgutil
import re
import shlex
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import click
import pytest
from support import pages
from support.install_lines import SET

import amdgpu_family_matrix as matrix
from rocwheel.base.errors import RocwheelError
from rocwheel.cli import COMMANDS, MOVED, _called, ci_build
from rocwheel.cli.app import App
from rocwheel.records.verdict import State
from rocwheel.release.index import channels
from rocwheel.rocm import therock

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "build" / "rocwheel"
OLD = {name.partition(" ")[0] for name in MOVED}  # of commands
ELSEWHERE = ("state.json", "build.json")  # in a store, in a wheelhouse


def test_the_reference_of_commands_is_up_to_date():
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "generate_reference.py"), "--check"], check=False
    )
    assert done.returncode == 0, "run: python docs/generate_reference.py"


@pytest.mark.parametrize(
    "page", [*sorted(ROOT.glob("docs/**/*.md")), ROOT / "README.md"], ids=lambda path: path.name
)
def test_relative_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_place_that_architecture_and_design_name_is_there():
    pages = [ROOT / "docs" / "architecture.md", *(ROOT / "docs" / "design").glob("*.md")]
    text = "\n".join(page.read_text() for page in pages)
    rooms = {path.stem for path in PACKAGE.iterdir()}
    looked = 0
    for word in re.findall(r"`([^`\n]+)`", text):
        if re.fullmatch(r"[\w./*-]+(/|\.(py|yaml|json|toml))", word) and word not in ELSEWHERE:
            assert any((*ROOT.glob(word), *PACKAGE.glob(word))), word
            looked += 1
        elif re.fullmatch(r"\w+(\.\w+)+", word) and word.partition(".")[0] in rooms:
            pkgutil.resolve_name(f"rocwheel.{word}")
            looked += 1
    assert looked > 100


def test_the_architecture_says_of_every_module_where_it_is_and_stays_short():
    text = (ROOT / "docs" / "architecture.md").read_text()
    assert text.count("\n") <= 200
    rows = text.partition("## Where is")[2].partition("\n## ")[0]
    named = set(re.findall(r"[\w/]+\.py", rows))
    for folder, names in re.findall(r"([\w/]+)\{([\w,]+)\}\.py", rows):
        named |= {f"{folder}{name}.py" for name in names.split(",")}
    there = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("[!_]*.py")}
    assert there - named == set(), "add them to a row"


def test_a_public_class_is_called_like_no_other():
    """Who looks for a name finds one thing."""
    where = defaultdict(list)
    for path in (*PACKAGE.rglob("*.py"), ROOT / "amdgpu_family_matrix.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                where[node.name].append(str(path.relative_to(ROOT)))
    assert len(where) > 100
    assert {name: places for name, places in where.items() if len(places) > 1} == {}


def test_the_tutorial_lists_every_exit_status():
    text = (ROOT / "docs" / "tutorial.md").read_text()
    for kind in RocwheelError.__subclasses__():
        if kind.__module__ != RocwheelError.__module__:
            continue  # its instances carry the state of a gate
        assert re.search(rf"^\| {kind.exit_code} \|", text, re.MULTILINE), kind
    codes = {state.value: state.exit_code for state in State if state is not State.UNCALIBRATED}
    first, *_, last = sorted(filter(None, codes.values()))
    assert re.search(rf"^\| {first}.{last} \|", text, re.MULTILINE)
    assert f"else {first} to {last}" in ci_build.get_command(click.Context(ci_build), "gate").help
    listed = (ROOT / "docs" / "how-to" / "gate.md").read_text()
    assert dict(re.findall(r"^\| `([a-z-]+)` \| (\d+) \|", listed, re.MULTILINE)) == {
        name: str(code) for name, code in codes.items()
    }


def test_no_package_name_with_a_fixed_rocm_major_outside_the_one_function():
    """Names come from `model`; `60` and the like anywhere else is how ROCm 10 broke everything."""
    pattern = re.compile(r"jax[-_]rocm\d+[-_](plugin|pjrt)|xla_rocm\d+|rocm_version\[0\]")
    comment = re.compile(r"#.*|\"\"\".*?\"\"\"|`[^`]*`", re.DOTALL)
    for path in (ROOT / "build" / "rocwheel").rglob("*.py"):
        code = comment.sub("", path.read_text())
        assert not pattern.search(code), f"{path}: {pattern.search(code)}"


@pytest.mark.parametrize("page", pages.PAGES, ids=lambda path: path.name)
def test_no_sentence_of_a_page_has_more_than_25_words(page):
    """A table may need more; code in backticks is one word."""
    text = re.sub(
        r"^```.*?^```$|<!--.*?-->|^[|#!].*?$",
        "\n",
        page.read_text(),
        flags=re.MULTILINE | re.DOTALL,
    )
    text = re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", re.sub(r"`[^`]*`", "Code", text))
    for block in re.split(r"\n\s*(?:\n|[-*]\s|\d+\.\s)", text):
        for sentence in re.split(r"(?<=[.!?:])[\"*)]*\s+(?=[A-Z\"(*])", " ".join(block.split())):
            words = [word for word in sentence.split() if re.search(r"\w", word)]
            assert len(words) <= 25, sentence


def test_every_message_of_ours_that_a_page_explains_is_one_that_is_printed():
    """First column of the tables of troubleshooting; what others print is in `others`."""
    others = r"Unable|hip|Backend|rocm_plugin|Unknown|No matching|No space|AccessDen|lib|Connection"
    printed = re.sub(
        r'"\s*\n\s*f?"', "", "".join(path.read_text("utf-8") for path in PACKAGE.rglob("*.py"))
    )
    rows = re.findall(
        r"^\| `([^|]*)` \|", (ROOT / "docs/troubleshooting.md").read_text(), re.MULTILINE
    )
    for message in (x for row in rows for x in re.split("`, `", row) if not re.match(others, x)):
        for part in re.split(r"…|^\w+: |, exit \d+|, not", message):
            assert part.strip(" ,`") in printed, message


@pytest.mark.parametrize("block", pages.blocks(), ids=str)
def test_every_shell_block_is_tried_or_says_what_it_lacks(block):
    kind, _, what = block.marker.partition(" ")
    if kind == "tried":
        assert (ROOT / what.removeprefix("by ")).is_file(), block.marker
    elif kind in {"needs:", "dry-run:"}:
        assert what in pages.LACKS, block.marker
    else:
        assert (kind, what) in {("run:", world) for world in pages.WORLDS}, block.marker
    checked = subprocess.run(
        ["bash", "-n"], input="\n".join(block.commands), text=True, capture_output=True, check=False
    )
    assert checked.returncode == 0, checked.stderr


def lines():
    """Each command line of a page or a message: where, the line, the block it stands in."""
    for block in pages.blocks():
        text = "" if block.marker.startswith("run:") else "\n".join(block.commands)
        text = re.sub(r" <<END\n.*?^END$", "", text, flags=re.DOTALL | re.MULTILINE)
        for line in re.split(r"\n|\s(?:&&|\|\||;)\s", text):
            yield str(block), line.strip(), block
    names = "|".join((*COMMANDS, *OLD))
    for where, text in pages.texts():
        marked = rf"`((?:rocwheel|{names})(?: [^`]+)?)`|^(rocwheel (?:{names})(?: .*)?)$"
        for line in map("".join, re.findall(marked, text)):
            yield where, " ".join(line.split()), None


def parse(words: list[str]) -> None:
    """Parse a whole command line as the program does."""
    context = ci_build.make_context("rocwheel", words, obj=App({}, Path("/here")))
    command, left = ci_build, [*context._protected_args, *context.args]
    while left and isinstance(command, click.Group):
        _, command, left = command.resolve_command(context, left)
        context = command.make_context(command.name, left, parent=context)
        left = [*context._protected_args, *context.args]


def test_every_command_line_of_ours_is_one_that_rocwheel_understands():
    """Wholly in a block of a page; elsewhere, and beside `…`, its names and its options."""
    known = {"--help", "--help-all", "--dry-run", "--json", "--config", "--ci-dir"}
    tried, wrong = 0, []
    for where, line, block in lines():
        ours = line.removeprefix("python3 build/ci_build ").removeprefix("rocwheel ")
        if ours in {"--version", "rocwheel", *OLD} or (block and ours == line):
            continue
        words = shlex.split(ours.replace("$PWD", "/here"), comments=True)
        if block and "…" not in ours:
            parse(words)
        first = next((at for at, word in enumerate(words) if word in {*COMMANDS, *OLD}), 0)
        names, command = _called(ci_build, ["rocwheel", *words[first:]])
        rest = words[first + len(names) - 1 :]
        options = {word.partition("=")[0] for word in rest if word.startswith("--")}
        if (
            command is ci_build
            or (isinstance(command, click.Group) and rest and rest[0][0] not in "-…")
            or options - known - {name for param in command.params for name in param.opts}
        ):
            wrong.append((where, line))
        tried += 1
    assert not wrong, "\n".join(map(str, wrong))
    assert tried > 500


def other_lines():
    """Each line of a page that another program runs, and no test."""
    ours = r"python3 build/ci_build|rocwheel|[A-Z]\w+=[^ ]*$|$|cat >|cd |echo|export|install -m|mkdir|tar "
    for where, line, block in lines():
        tried = not block or block.marker.startswith("tried") or re.match(ours, line)
        if not tried and " ".join(line.split()) not in {*SET.pip, *SET.poetry}:
            yield where, line


def addresses():
    """Each address of pages, messages and data that does not follow from data that is shipped."""
    places = [at for each in therock.known().streams.values() for at in each.places]
    shipped = ["http://127.0.0.1:", *(x for at in places for x in (at.tarballs, at.packages) if x)]
    for channel in channels.load(ROOT / "ci" / "channels.yaml").values():
        for each in channel.prefixes.values():
            names = (*matrix.FAMILIES, "all")
            shipped += [f"{channel.public_url}/{each.release}/{name}/" for name in names]
    for where, text in (*pages.texts(), *((str(block), block.text) for block in pages.blocks())):
        for address in re.findall(r"https?://[^\s`'\"<>|)\],;]+", text):
            if not address.startswith(tuple(shipped)):
                yield where, address.rstrip(".:")


def test_every_line_and_every_address_is_tried_or_says_why_not():
    """`real/test_therock.py` compares the data with TheRock's sources."""
    begins, used, left = pages.untried(), set(), []
    for where, text in (*other_lines(), *addresses()):
        why = {one for one in begins if f"{text}$".startswith(one)}
        used |= why
        left += [] if why else [(where, text)]
    assert left == [], "add a reason to tests/data/untried.txt"
    assert begins - used == set(), "is not there any more"


def test_pages_spell_the_command_in_one_way():
    for block in pages.blocks():
        if block.page.name in {"README.md", "tutorial.md"} and "demo" in block.text:
            continue  # where nothing is installed yet
        assert "ci_build" not in block.text, block


def test_products_and_families_are_those_of_the_matrix():
    text = (ROOT / "docs" / "how-to" / "install-the-wheels.md").read_text()
    listed = dict(re.findall(r"^\| ([^|]+?) \| (gfx\S+) \|$", text, re.MULTILINE))
    known = {", ".join(f.products): f.name for f in matrix.FAMILIES.values() if f.products}
    assert listed == known


def test_each_picture_of_a_page_is_there_by_day_and_by_night_and_all_are_small():
    text = "\n".join(page.read_text() for page in ROOT.glob("docs/**/*.md"))
    shown = set(re.findall(r"\]\((?:\.\./)*images/(\w+)-(light|dark)\.webp#only-(\w+)\)", text))
    assert {name for name, *_ in shown} == {"index", "gate", "night"}
    assert shown == {(name, how, how) for name, *_ in shown for how in ("light", "dark")}
    images = {path.name: path.stat().st_size for path in (ROOT / "docs" / "images").iterdir()}
    assert set(images) == {f"{name}-{how}.webp" for name, how, _ in shown}
    assert sum(images.values()) <= 300 << 10


def test_the_site_keeps_the_versions_before(tmp_path):
    person = {
        f"GIT_{who}_{what}": "a@example.com"
        for who in ("AUTHOR", "COMMITTER")
        for what in ("NAME", "EMAIL")
    }
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # where mkdocs is
    env = {**os.environ, **person, "PATH": path, "NO_MKDOCS_2_WARNING": "1"}

    def run(*words: str) -> str:
        done = subprocess.run(
            words, cwd=tmp_path / "tree", env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def page(path: str) -> str:
        return run("git", "show", f"gh-pages:{path}")

    shutil.copytree(ROOT / "docs", tmp_path / "tree" / "docs")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path / "tree")
    run("git", "init", "-q")
    run("git", "commit", "-q", "--allow-empty", "-m", "a release")  # which mike names
    mike = (sys.executable, "-c", "from mike.driver import main; main()", "-q")
    run(*mike, "deploy", "--update-aliases", "0.1", "latest")
    with (tmp_path / "tree" / "docs" / "index.md").open("a", encoding="utf-8") as index:
        index.write("\nOnly the second version says this.\n")
    run(*mike, "deploy", "--update-aliases", "0.2", "latest")
    assert [(one["version"], one["aliases"]) for one in json.loads(page("versions.json"))] == [
        ("0.2", ["latest"]),
        ("0.1", []),
    ]
    assert ["Only the second" in page(f"{number}/index.html") for number in ("0.1", "0.2")] == [
        False,
        True,
    ]
    assert '"provider": "mike"' in page("0.2/how-to/first-release/index.html")
    files = run("git", "ls-tree", "-r", "--name-only", "gh-pages").splitlines()
    assert "0.2/images/night-dark.webp" in files
    assert not [name for name in files if name.endswith("make_pictures.py")]
    assert "first-release" in page("0.2/search/search_index.json")


def built_site(folder: Path) -> subprocess.CompletedProcess[str]:
    """Build the site of a copy of the docs as strictly as its configuration says."""
    code = "from mkdocs.__main__ import cli; cli()"
    argv = [sys.executable, "-W", "ignore", "-c", code, "build", "-d", str(folder / "site")]
    return subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_site_builds_and_mistakes_in_it_fail(tmp_path):
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    done = built_site(tmp_path)
    assert done.returncode == 0, done.stderr
    (tmp_path / "docs" / "how-to" / "new.md").write_text("# New\n")
    (tmp_path / "docs" / "tutorial.md").write_text(
        "# Tutorial\n\n[gone](how-to/no-such-page.md)\n[gone](index.md#no-such-place)\n"
    )
    (tmp_path / "docs" / "layout.md").unlink()
    done = built_site(tmp_path)
    assert done.returncode != 0
    for text in ("how-to/new.md", "no-such-page.md", "no-such-place", "layout.md"):
        assert text in done.stderr
