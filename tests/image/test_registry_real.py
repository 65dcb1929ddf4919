"""Images in a real registry: written once, found by tag, and every request may fail."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import requests
from support import engines, registries

from rocwheel.base import container, home
from rocwheel.base.container import EngineKind
from rocwheel.base.errors import ConfigError, StoreError
from rocwheel.base.here import Here
from rocwheel.base.process import HostRunner
from rocwheel.image import recipe, registry

pytestmark = [
    pytest.mark.integration,
    pytest.mark.needs("dockerd", "docker-registry", "mmdebstrap", "skopeo"),
    pytest.mark.xdist_group("containers"),
]

ROOT = Path(__file__).parents[2]
NOBODY = {"HOME": "/nonexistent"}
look = partial(
    registry.look, environ=NOBODY, runner=HostRunner({"PATH": os.environ["PATH"], **NOBODY})
)
MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"


@pytest.fixture(scope="module")
def engine():
    with engines.docker() as running:
        yield engines.with_image(running)


@pytest.fixture(scope="module")
def runner(engine):
    return HostRunner({"PATH": engine.env["PATH"], "HOME": "/", **engine.env})


@pytest.fixture(scope="module")
def asked(engine, runner):
    return container.ask(EngineKind.DOCKER, environ=engine.env, runner=runner)


@pytest.fixture
def address(tmp_path):
    """A registry that dies with the test."""
    with registries.serving(tmp_path) as where:
        yield where


@pytest.fixture(scope="module")
def inputs():
    chosen = recipe.builder(ROOT / "ci", "debian_12")
    return recipe.builder_inputs(chosen, checkout=ROOT, base="sha256:" + "1" * 64)


@pytest.fixture(scope="module")
def small(engine, asked, runner, tmp_path_factory):
    """Makes an image of one small layer that says what it was made from."""
    return partial(_small, engine, asked, runner, tmp_path_factory)


@pytest.fixture(scope="module")
def image(small, inputs):
    return small(inputs.digest)


def _small(engine, asked, runner, folders, /, digest, *, text="one"):
    import tarfile

    folder = folders.mktemp("image")
    (folder / "file").write_text(text)
    with tarfile.open(folder / "root.tar", "w") as archive:
        archive.add(folder / "file", "file")
    name = f"rocwheel-test/small:{text}"
    engine(
        "import", "--change", f"LABEL org.rocwheel.inputs={digest}", str(folder / "root.tar"), name
    )
    return registry.inspect(name, engine=asked, runner=runner)


@pytest.fixture
def here(runner, console, tmp_path):
    return Here(
        environ=NOBODY, cwd=tmp_path, cache=tmp_path, home=home.find(None), console=console,
        runner=runner,
    )  # fmt: skip


@pytest.fixture
def push(asked, here):
    return lambda image, repository, tag: registry.push(image, repository, tag, asked, here)


def test_a_pushed_image_is_there_under_its_tag_and_is_pushed_once(image, inputs, address, push):
    name = f"{address}/{inputs.recipe.repository}"
    remote, sent = push(image, name, inputs.tag)
    assert sent
    assert remote.config == image.config
    assert push(image, name, inputs.tag) == (remote, False)
    assert look(name, inputs.tag) == remote
    assert look(name, remote.digest) == remote
    assert look(name, "other") is None


def test_a_tag_that_is_there_with_other_bytes_is_never_overwritten(
    image, inputs, address, push, small
):
    other = small(inputs.digest, text="two")
    first, _ = push(image, f"{address}/builder", inputs.tag)
    with pytest.raises(StoreError, match="with other bytes"):
        push(other, f"{address}/builder", inputs.tag)
    at = look(f"{address}/builder", inputs.tag)
    assert at == first


def test_an_index_of_images_stands_for_the_one_for_this_architecture(image, address, push):
    """As engines push it that add attestations, and as registries have every official base."""
    name = f"{address}/indexed"
    pushed, _ = push(image, name, "one")
    entry = {"mediaType": MANIFEST, "digest": pushed.digest, "size": 1}
    others = [
        {**entry, "digest": f"sha256:{'0' * 64}", "platform": {"os": "linux", "architecture": arch}}
        for arch in ("arm64", "unknown")
    ]
    index = {
        "schemaVersion": 2,
        "mediaType": INDEX,
        "manifests": [*others, {**entry, "platform": {"os": "linux", "architecture": "amd64"}}],
    }

    def serve(documents):
        class Here(http.server.BaseHTTPRequestHandler):
            """The registry, with an index beside: it takes none that names images it has not."""

            def do_GET(self):
                body = documents.get(self.path.rpartition("/")[2])
                if body is None:
                    through = requests.get(
                        f"http://{address}{self.path}", headers=given(self), timeout=240
                    )
                    body, kind = through.content, through.headers["Content-Type"]
                else:
                    kind = INDEX
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        return http.server.ThreadingHTTPServer(("127.0.0.1", 0), Here)

    alone = {**index, "manifests": others}
    documents = {"all": json.dumps(index).encode(), "alone": json.dumps(alone).encode()}
    with serve(documents) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        through = f"127.0.0.1:{server.server_port}/indexed"
        found = look(through, "all")
        assert (found.config, found.digest) == (pushed.config, pushed.digest)
        with pytest.raises(StoreError, match="no image for linux/amd64"):
            look(through, "alone")
        server.shutdown()


@pytest.fixture
def refusing():
    """The address of a registry that refuses connections, as long as the test runs."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture
def tool(engine, tmp_path):
    """`image` as a user runs it, with a `ci/images.yaml` that a test changes."""

    def run(*arguments, old, new, base="rocwheel-test/small:base"):
        ci = tmp_path / "ci"
        shutil.rmtree(ci, ignore_errors=True)
        shutil.copytree(ROOT / "ci", ci)
        text = (ci / "images.yaml").read_text()
        assert old in text
        (ci / "images.yaml").write_text(text.replace(old, new))
        return subprocess.run(
            [sys.executable, ROOT / "build" / "ci_build", f"--ci-dir={ci}", "--json", "image",
             *arguments, "--recipe=debian_12", f"--base={base}"],
            env={**os.environ, **engine.env, "XDG_CACHE_HOME": str(tmp_path / "cache")},
            capture_output=True, text=True, check=False, timeout=300,
        )  # fmt: skip

    return run


@pytest.fixture(scope="module")
def base(small):
    """What `tool` starts from."""
    return small("none", text="base")


@pytest.fixture(scope="module")
def made(small, base):
    """The inputs of a builder image on a base of its own, and an image that is made from them."""
    chosen = recipe.builder(ROOT / "ci", "debian_12")
    inputs = recipe.builder_inputs(chosen, checkout=ROOT, base=base.config)
    return inputs, small(inputs.digest, text="made")


def test_a_registry_that_does_not_answer_is_an_error_and_not_an_absent_image(refusing):
    with pytest.raises(StoreError, match="connection refused") as why:
        look(f"{refusing}/jax", "one")
    assert f"{refusing}/jax" in str(why.value)


def test_a_builder_image_above_its_budget_is_not_pushed(made, address, tool, engine):
    inputs, image = made
    engine("tag", image.identity, inputs.reference)
    try:
        done = tool("build", f"--push={address}", old="budget: 4096", new="budget: 0")
    finally:
        engine("rmi", inputs.reference)
    assert done.returncode == ConfigError.exit_code, done.stderr
    assert "its budget is 0" in done.stderr
    catalog = requests.get(f"http://{address}/v2/_catalog", timeout=30).json()
    assert catalog == {"repositories": []}


def test_the_digest_of_a_saved_image_is_the_one_the_registry_has(
    image, address, push, engine, tmp_path
):
    """Where an engine calls the manifest's digest the id, this is how the configuration's is had."""
    remote, _ = push(image, f"{address}/builder", "one")
    engine("save", "--output", str(tmp_path / "saved.tar"), image.identity)
    with (tmp_path / "saved.tar").open("rb") as file:
        assert registry.config_of(file) == image.config == remote.config


def given(request) -> dict[str, str]:
    """The headers of a request, of which `Accept` may be there several times."""
    left_out = {"content-length", "transfer-encoding"}
    names = {name for name in request.headers if name.lower() not in left_out}
    return {name: ", ".join(request.headers.get_all(name)) for name in names}


class Failing(http.server.BaseHTTPRequestHandler):
    """Hands requests on to a registry; the k-th is answered with 500."""

    protocol_version = "HTTP/1.1"
    target = ""
    left = 0

    def body(self):
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        data = b""
        while size := int(self.rfile.readline(), 16):
            data += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return data

    def handle_one(self):
        body = self.body()
        type(self).left -= 1
        if type(self).left == 0:
            self.send_response(500)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        answer = requests.request(
            self.command, f"http://{self.target}{self.path}", data=body, allow_redirects=False,
            headers=given(self), timeout=240,
        )  # fmt: skip
        self.send_response(answer.status_code)
        for name, value in answer.headers.items():
            if name.lower() not in {"content-length", "transfer-encoding", "connection"}:
                self.send_header(name, value)
        length = (
            answer.headers["Content-Length"]
            if self.command == "HEAD" and "Content-Length" in answer.headers
            else len(answer.content)
        )
        self.send_header("Content-Length", str(length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.content)

    do_GET = do_HEAD = do_PUT = do_POST = do_PATCH = handle_one  # noqa: N815

    def log_message(self, *_):
        pass


def test_whichever_request_the_look_up_loses_nothing_wrong_is_concluded(image, address, push):
    """For every k: what is there is found, or the failure is an error; never "it is not there"."""
    remote, _ = push(image, f"{address}/builder", "one")
    handler = type("Here", (Failing,), {"target": address})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        through = f"127.0.0.1:{server.server_port}"
        outcomes = []
        for k in range(1, 9):
            handler.left = k
            try:
                answer = look(f"{through}/builder", "one")
                outcomes.append(answer.digest if answer else None)
            except StoreError:
                outcomes.append("error")
        server.shutdown()
    assert {*outcomes[:-1]} <= {"error", remote.digest}
    assert (outcomes[0], outcomes[-1]) == ("error", remote.digest)


def test_whichever_request_a_push_loses_the_next_push_finishes(inputs, image, address, push):
    handler = type("Here", (Failing,), {"target": address})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        through = f"127.0.0.1:{server.server_port}"
        for k in range(1, 10):
            handler.left = k
            name = f"{through}/small-{k}"
            with suppress(StoreError):
                push(image, name, "one")
            handler.left = 0
            remote, _ = push(image, name, "one")
            assert remote.config == image.config
        server.shutdown()


def test_a_moving_tag_names_the_very_same_bytes(address, image, push, here):
    pushed, _ = push(image, f"{address}/moving", "one")
    assert registry.point(f"{address}/moving", "latest", pushed.digest, here)
    assert not registry.point(f"{address}/moving", "latest", pushed.digest, here)
    there = look(f"{address}/moving", "latest")
    assert (there.digest, there.config) == (pushed.digest, pushed.config)
    gone = "sha256:" + "0" * 64
    with pytest.raises(StoreError, match="has it no more"):
        registry.point(f"{address}/moving", "latest", gone, here)
    still = look(f"{address}/moving", "latest")
    assert still.digest == pushed.digest
