"""What a rehearsal says of registries and of runners, as their servers answer it."""

from __future__ import annotations

import base64
import http.server
import json
import threading
from fnmatch import fnmatch
from urllib.parse import parse_qs, urlsplit

import pytest

from rocwheel.cli import main
from rocwheel.night import rehearsal
from rocwheel.release import rights
from rocwheel.release.index import channels

LOGIN = base64.b64encode(b"me:secret").decode()


class Registry(http.server.BaseHTTPRequestHandler):
    """A registry that tells strangers nothing, and others that there is no such image."""

    def do_GET(self) -> None:
        known = self.headers.get("Authorization") == f"Basic {LOGIN}"
        self.send_response(401 if not known else 200 if self.path == "/v2/" else 404)
        self.send_header("WWW-Authenticate", 'Basic realm="r"')
        body = b'{"errors": [{"code": "NAME_UNKNOWN", "message": "name unknown"}]}'
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.needs("skopeo")
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


class GitHub(http.server.BaseHTTPRequestHandler):
    """GitHub's API for runners: 150 at the repository, some at the organisation, by pages."""

    protocol_version = "HTTP/1.1"
    organisation = 200  # the status of its answer

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        asked = parse_qs(url.query)
        page = int(asked.get("page", ["1"])[0])
        first = 100 * (page - 1)
        if url.path.startswith("/repos/team/rocm/"):
            code, names = 200, [f"other-{n}" for n in range(149)] + ["ours"]
        else:
            code, names = self.organisation, ["of-all"]
        runners = [
            {"status": "offline" if name == "other-0" else "online", "labels": [{"name": name}]}
            for name in names[first : first + 100]
        ]
        body = json.dumps({"runners": runners}).encode() if code < 300 else b"<html>no"
        good = self.headers["Authorization"] == "Bearer token"
        self.send_response(code if good else 401)
        if first + 100 < len(names):
            where = f"http://{self.headers['Host']}{url.path}?per_page=100&page={page + 1}"
            self.send_header("Link", f'<{where}>; rel="next"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def labels_of(tmp_path, monkeypatch, capsys, *words: str, server=GitHub, **env: str):
    """Rehearse against a server that plays GitHub; the exit status and the state of each row."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), server) as site:
        threading.Thread(target=site.serve_forever, daemon=True).start()
        (tmp_path / "nightly.yaml").write_text(
            "sets: [{name: jax, source_dir: source, families: [gfx90a], pythons: ['3.12'],"
            " rocm: {source: therock.tar.gz}}]\nbuild: {label: builders}\ntrigger: presubmit\n"
        )
        address = f"http://127.0.0.1:{site.server_port}"
        for name, value in {"GITHUB_API_URL": address, "GH_TOKEN": "token", **env}.items():
            monkeypatch.setenv(name, value.format(address))
        store = f"--store={(tmp_path / 'store').as_uri()}"
        config = f"--config={tmp_path / 'nightly.yaml'}"
        line = ("--json", "nightly", "rehearse", store, config, "--repository=team/rocm", *words)
        code = main([*line])
        site.shutdown()
    rows = json.loads(capsys.readouterr().out)["tried"]
    return code, {r["what"]: r for r in rows if r["what"].startswith(("label ", "runners"))}


def test_runners_of_every_page_and_of_the_organisation_count(tmp_path, monkeypatch, capsys):
    (tmp_path / "pools.yaml").write_text("labels: {builders: ours}\n")
    pools = f"--pools={tmp_path / 'pools.yaml'}"
    code, rows = labels_of(tmp_path, monkeypatch, capsys, pools)
    assert code == 8, "labels of the matrix have none"
    assert rows["label ours"]["state"] == "good", "the last of 150, under this place's name"
    assert "label builders" not in rows
    assert "runners" not in rows
    (tmp_path / "pools.yaml").write_text("labels: {builders: of-all}\n")
    _, rows = labels_of(tmp_path, monkeypatch, capsys, pools)
    assert rows["label of-all"]["state"] == "good"
    (tmp_path / "pools.yaml").write_text("labels: {builders: other-0}\n")
    _, rows = labels_of(tmp_path, monkeypatch, capsys, pools)
    assert rows["label other-0"]["state"] == "BAD", "it is offline"


class Refusing(GitHub):
    organisation = 403


def test_an_organisation_that_a_token_may_not_ask_is_no_failure(tmp_path, monkeypatch, capsys):
    _, rows = labels_of(tmp_path, monkeypatch, capsys, server=Refusing)
    assert rows["runners"]["state"] == "not tried"
    assert "orgs/team" in rows["runners"]["why"]
    assert rows["label builders"]["state"] == "BAD"


@pytest.mark.parametrize("env", [{"GH_TOKEN": "wrong"}, {"GITHUB_API_URL": "http://127.0.0.1:9"}])
def test_a_token_that_is_refused_or_a_server_that_is_away_is_one_bad_line(
    tmp_path, monkeypatch, capsys, env
):
    code, rows = labels_of(tmp_path, monkeypatch, capsys, **env)
    assert code == 8
    assert [row["state"] for row in rows.values()] == ["BAD"]
    assert rows["runners"]["todo"] == "correct the token"


def test_github_is_asked_through_the_proxy(tmp_path, monkeypatch, capsys):
    """The address that no one answers is reached by the proxy, which here is GitHub itself."""

    class Proxy(GitHub):
        def do_GET(self) -> None:
            self.path = self.path.partition("github.invalid")[2]
            super().do_GET()

    env = {"GITHUB_API_URL": "http://github.invalid", "http_proxy": "{}", "no_proxy": ""}
    _, rows = labels_of(tmp_path, monkeypatch, capsys, server=Proxy, **env)
    assert "label builders" in rows
    assert "runners" not in rows


@pytest.mark.parametrize("layout", ["family", "both"])
@pytest.mark.parametrize("role", ["stager", "runner", "promoter"])
def test_what_is_tried_of_a_role_is_what_its_policy_says(layout, role, monkeypatch):
    """Below `all`, too: there a runner has its family's folder, and no other."""
    channel = channels.Channel(
        name="x", store="s3://bucket", layout=layout,
        prefixes={7: channels.Prefixes(staging="v2-staging", release="v2")},
    )  # fmt: skip
    tried = rehearsal.Rehearsal(
        nights=None,
        channel=channel,
        settings=None,
        pools=None,
        client=None,
        now=None,
        environ={},
        runner=None,
    )
    names = {True: set(), False: set()}
    monkeypatch.setattr(
        rehearsal, "_right", lambda _store, _role, action, name, *, wanted: names[wanted].add((action, name))
    )  # fmt: skip
    list(tried._rights(rights.ROLES[role], "gfx90a", None))
    policy = rights.policy(channel, rights.ROLES[role], family="gfx90a")["Statement"]

    def allows(action: str, name: str) -> bool:
        effects = {
            item["Effect"]
            for item in policy
            if action in item["Action"]
            and any(
                fnmatch(name.replace("*", "x"), each.partition("/")[2]) for each in item["Resource"]
            )
        }
        return effects == {"Allow"}

    assert all(allows(*item) for item in names[True])
    assert not any(allows(*item) for item in names[False])
    own = ("s3:PutObject", "v2-staging/all/_rocwheel/verdicts/*gfx90a*")
    assert (own in names[True]) is (role == "runner" and layout == "both")
    whole = {"stager": True, "runner": False}
    if role in whole and layout == "both":
        assert ("s3:PutObject", "v2-staging/all/*") in names[whole[role]]
    assert len(names[False]) > 5
