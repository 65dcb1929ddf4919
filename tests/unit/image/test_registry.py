"""How registries are asked: by the rule for proxies, with what `docker login` kept."""

from __future__ import annotations

import base64
import http.server
import json
import threading

import pytest

from rocwheel.errors import StoreError
from rocwheel.image import registry


class Proxy(http.server.BaseHTTPRequestHandler):
    """Answers for every registry that it has nothing, after asking for credentials."""

    def do_GET(self):
        self.server.asked.append((self.path, self.headers.get("Authorization")))
        self.send_response(404 if self.headers.get("Authorization") else 401)
        self.send_header("WWW-Authenticate", 'Basic realm="here"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def proxy():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as server:
        server.asked = []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_a_registry_is_asked_through_the_proxy_with_the_credentials_of_docker_login(
    proxy, tmp_path, monkeypatch
):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # only what is given counts
    secret = base64.b64encode(b"me:secret").decode()
    (tmp_path / "config.json").write_text(json.dumps({"auths": {"127.0.0.1:7": {"auth": secret}}}))
    environ = {
        "http_proxy": f"http://127.0.0.1:{proxy.server_port}",
        "DOCKER_CONFIG": str(tmp_path),
    }
    assert registry.look("127.0.0.1:7/builder", "one", environ=environ) is None
    url = "http://127.0.0.1:7/v2/builder/manifests/one"
    assert proxy.asked == [(url, None), (url, f"Basic {secret}")]
    with pytest.raises(StoreError, match=r"7/v2/builder/manifests/one: .*Connection refused"):
        registry.look("127.0.0.1:7/builder", "one", environ={**environ, "no_proxy": "127.0.0.1"})
