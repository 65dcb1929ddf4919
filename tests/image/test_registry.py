"""Where a registry is asked for a repository, and with whose credentials."""

from __future__ import annotations

import base64
import http.server
import json
import threading

import pytest

from rocwheel.base.errors import StoreError
from rocwheel.image import registry

KNOWN = base64.b64encode(b"somebody:secret").decode()


@pytest.mark.parametrize(
    ("repository", "url"),
    [
        ("debian", "https://registry-1.docker.io/v2/library/debian"),
        ("docker.io/rocm/jax", "https://registry-1.docker.io/v2/rocm/jax"),
        ("rocm/jax", "https://registry-1.docker.io/v2/rocm/jax"),
        ("ghcr.io/rocm/jax", "https://ghcr.io/v2/rocm/jax"),
        ("localhost:5000/jax", "http://localhost:5000/v2/jax"),
        ("[::1]:5000/jax", "http://[::1]:5000/v2/jax"),
    ],
)
def test_a_name_without_a_registry_is_asked_of_docker_hub(repository, url):
    assert registry.address(repository)[1] == url


@pytest.mark.parametrize(
    ("reference", "parts"),
    [
        ("rocm/jax", ("rocm/jax", "latest")),
        ("rocm/jax:1.2", ("rocm/jax", "1.2")),
        ("localhost:5000/jax", ("localhost:5000/jax", "latest")),
        ("localhost:5000/jax:1.2", ("localhost:5000/jax", "1.2")),
        ("localhost:5000/jax@sha256:ab", ("localhost:5000/jax", "sha256:ab")),
        ("localhost:5000/jax:1.2@sha256:ab", ("localhost:5000/jax", "sha256:ab")),
    ],
)
def test_a_reference_is_asked_for_by_digest_and_its_tag_is_no_part_of_the_repository(
    reference, parts
):
    assert registry.parts(reference) == parts


@pytest.fixture
def private():
    """A registry that lets one user in, and has nothing; its address and what it was sent."""
    seen = []

    class Private(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            sent = self.headers.get("Authorization", "")
            seen.append(sent)
            self.send_response(404 if sent == f"Basic {KNOWN}" else 401)
            self.send_header("WWW-Authenticate", 'Basic realm="here"')
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Private) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}", seen
        server.shutdown()


@pytest.mark.parametrize(
    ("variable", "folder", "file"),
    [
        ("DOCKER_CONFIG", "", "config.json"),
        ("HOME", "", ".docker/config.json"),
        ("REGISTRY_AUTH_FILE", "auth.json", "auth.json"),
        ("XDG_RUNTIME_DIR", "", "containers/auth.json"),
    ],
)
def test_credentials_are_where_a_login_of_either_engine_left_them(
    variable, folder, file, private, tmp_path
):
    address, seen = private
    nowhere = {"HOME": str(tmp_path / "none"), "XDG_RUNTIME_DIR": str(tmp_path / "none")}
    with pytest.raises(StoreError, match="401"):
        registry.look(f"{address}/x", "1", environ=nowhere)
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(json.dumps({"auths": {address: {"auth": KNOWN}}}))
    environ = {**nowhere, variable: str(tmp_path / folder)}
    assert registry.look(f"{address}/x", "1", environ=environ) is None
    assert seen[-1] == f"Basic {KNOWN}"
