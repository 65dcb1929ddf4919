"""References of images, and with whose login a registry is asked."""

from __future__ import annotations

import base64
import http.server
import json
import threading

import pytest

from rocwheel.base.errors import HostError, StoreError
from rocwheel.base.process import HostRunner, base_env
from rocwheel.image import registry

needs_skopeo = pytest.mark.needs("skopeo")
KNOWN = base64.b64encode(b"somebody:secret").decode()


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
def private(tmp_path):
    """A registry that lets one user in, and has nothing; its address and what it was sent."""
    seen = []

    class Private(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            sent = self.headers.get("Authorization", "")
            seen.append(sent)
            let_in = sent == f"Basic {KNOWN}"
            self.send_response(401 if not let_in else 200 if self.path == "/v2/" else 404)
            self.send_header("WWW-Authenticate", 'Basic realm="here"')
            why = "manifest unknown" if let_in else "authentication required"
            code = "MANIFEST_UNKNOWN" if let_in else "UNAUTHORIZED"
            body = json.dumps({"errors": [{"code": code, "message": why}]}).encode()
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Private) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}", seen
        server.shutdown()


@pytest.fixture
def look(private, tmp_path):
    """Asks the private registry with a user's settings, and those of nobody else."""
    address, _ = private
    (tmp_path / "bin").mkdir()

    def ask(**environ):
        nowhere = str(tmp_path / "none")
        path = f"{tmp_path / 'bin'}:/usr/bin:/bin"
        environ = {"HOME": nowhere, "XDG_RUNTIME_DIR": nowhere, "PATH": path} | environ
        runner = HostRunner(base_env(environ))
        return registry.look(f"{address}/x", "1", environ=environ, runner=runner)

    return ask


@needs_skopeo
@pytest.mark.parametrize(
    ("variable", "value", "file"),
    [
        ("DOCKER_CONFIG", ".", "config.json"),
        ("HOME", ".", ".docker/config.json"),
        ("REGISTRY_AUTH_FILE", "auth.json", "auth.json"),
        ("XDG_RUNTIME_DIR", ".", "containers/auth.json"),
    ],
)
def test_a_login_of_either_engine_is_used(variable, value, file, private, look, tmp_path):  # noqa: PLR0917
    address, seen = private
    with pytest.raises(StoreError, match="unauthorized") as refused:
        look()
    assert refused.value.hint == "log in to the registry"
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(json.dumps({"auths": {address: {"auth": KNOWN}}}))
    assert look(**{variable: str(tmp_path / value)}) is None
    assert seen[-1] == f"Basic {KNOWN}"


@needs_skopeo
@pytest.mark.parametrize("key", ["credsStore", "credHelpers"])
def test_a_login_that_a_credential_helper_keeps_is_used(key, private, look, tmp_path):
    address, seen = private
    helper = tmp_path / "bin" / "docker-credential-kept"
    helper.write_text(
        f'#!/bin/sh\ntest "$1 $(cat) $PROFILE" = "get {address} mine" || exit 1\n'
        'echo \'{"Username": "somebody", "Secret": "secret"}\'\n'
    )
    helper.chmod(0o755)
    config = {"credsStore": "kept"} if key == "credsStore" else {"credHelpers": {address: "kept"}}
    (tmp_path / "config.json").write_text(json.dumps({"auths": {address: {}}, **config}))
    assert look(DOCKER_CONFIG=str(tmp_path), PROFILE="mine") is None
    assert seen[-1] == f"Basic {KNOWN}"
    with pytest.raises(StoreError):  # the helper knows no such user
        look(DOCKER_CONFIG=str(tmp_path), PROFILE="other")


def test_a_missing_skopeo_is_an_error_with_its_package(tmp_path):
    environ = {"PATH": str(tmp_path)}
    with pytest.raises(HostError, match="skopeo: no such program") as refused:
        registry.look("here.io/x", "1", environ=environ, runner=HostRunner(environ))
    assert "Debian" in refused.value.hint
