"""What a rehearsal says of a registry: whether the login that the engine keeps is taken there."""

from __future__ import annotations

import base64
import http.server
import json
import threading

import pytest

from rocwheel.cli import main

LOGIN = base64.b64encode(b"me:secret").decode()


class Registry(http.server.BaseHTTPRequestHandler):
    """A registry that tells strangers nothing, and others that there is no such image."""

    def do_GET(self) -> None:
        known = self.headers.get("Authorization") == f"Basic {LOGIN}"
        self.send_response(404 if known else 401)
        self.send_header("WWW-Authenticate", 'Basic realm="r"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(
    ("login", "state"), [(LOGIN, "good"), ("b3RoZXI6eA==", "BAD"), ("", "BAD")]
)
def test_a_login_that_the_registry_refuses_is_bad(tmp_path, monkeypatch, capsys, login, state):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Registry) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        name = f"127.0.0.1:{server.server_port}"
        (tmp_path / "nightly.yaml").write_text(
            "sets: [{name: jax, source_dir: source, families: [gfx90a], pythons: ['3.12'],"
            " rocm: {source: therock.tar.gz}}]\n"
            f"images: [{{recipe: jax, push: '{name}/team'}}]\n"
        )
        auths = {name: {"auth": login}} if login else {}
        (tmp_path / "config.json").write_text(json.dumps({"auths": auths}))
        monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
        store = f"--store={(tmp_path / 'store').as_uri()}"
        line = ["--json", "nightly", "rehearse", store, f"--config={tmp_path / 'nightly.yaml'}"]
        code = main(line)
        server.shutdown()
    (row,) = [
        row for row in json.loads(capsys.readouterr().out)["tried"] if "registry" in row["what"]
    ]
    assert row["what"] == f"registry {name}/team"
    assert row["state"] == state
    assert code == (0 if state == "good" else 8)
    assert bool(row["todo"]) == (state == "BAD")
