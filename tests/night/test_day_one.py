"""Day one from the text of the how-to alone: its lines, as they stand, on a bucket with real roles."""

from __future__ import annotations

import http.server
import json
import re
import subprocess
import threading
from pathlib import Path

import boto3
import pytest
from botocore.exceptions import ClientError
from support.night import PROGRAM, World
from support.s3 import enforce, login, moto

from rocwheel.base.store import Options
from rocwheel.release import rights
from rocwheel.release.index import channels

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.integration, pytest.mark.soak, pytest.mark.timeout(1200)]


def lines_of_the_how_to() -> list[str]:
    text = (ROOT / "docs" / "how-to" / "nightly.md").read_text()
    section = text[text.index("## Day one") :]
    (block,) = re.findall(r"```console\n(.*?)```", section[: section.index("\n## ", 5)], re.DOTALL)
    return [line.removeprefix("$ ") for line in block.splitlines()]


class Day:
    """A scratch folder with a channel of six roles, a login that may assume them, and a page."""

    def __init__(self, server, folder: Path, monkeypatch, site: str) -> None:
        enforce(server, "inf")
        self.bucket = server.bucket(f"day-{folder.name.replace('_', '-')}"[:60].rstrip("-"))
        for name, value in server.environ().items():
            monkeypatch.setenv(name, value)
        url = f"s3://{self.bucket}"
        world = World(folder, url, options=Options(endpoint=server.endpoint))
        self.folder, self.iam = folder, _iam(server)
        arns = {role: self.role(role, url) for role in rights.ROLES}
        allowed = {"Effect": "Allow", "Action": ["s3:*", "sts:AssumeRole"], "Resource": "*"}
        mine = login(
            server, f"me-{self.bucket}", {"Version": rights.VERSION, "Statement": [allowed]}
        )
        self.ci = folder / "ci"
        for name in ("source", "therock-dist-linux-gfx90a-7.1.0.tar.gz", "nightly.yaml"):
            (folder / name).replace(self.ci / name)
        named = "".join(f"      {role}: {arn}\n" for role, arn in arns.items())
        (self.ci / "channels.yaml").write_text(
            f"channels:\n  nightly:\n    store: {url}\n    endpoint: {server.endpoint}\n"
            f"    public_url: {site}/{self.bucket}\n    prefixes:\n"
            f'      "7": {{staging: v2-staging, release: v2}}\n    roles:\n{named}'
        )
        tool = folder / "bin" / "rocwheel"
        tool.parent.mkdir()
        tool.write_text(f'#!/bin/sh\nexec {PROGRAM} "$@"\n')
        tool.chmod(0o755)
        env = world.environ()
        self.env = {
            **env, **mine, "ROCWHEEL_CI_DIR": str(self.ci),
            "ROCWHEEL_NIGHTLY_RUN_PROGRAM": PROGRAM, "PATH": f"{tool.parent}:{env['PATH']}",
        }  # fmt: skip
        enforce(server)

    def role(self, role: str, url: str) -> str:
        """Make a role with the rights that `channels rights` prints; its ARN."""
        name = f"{role}-{self.bucket}"[:60]
        trusted = {"Effect": "Allow", "Principal": {"AWS": "*"}, "Action": "sts:AssumeRole"}
        trust = json.dumps({"Version": rights.VERSION, "Statement": [trusted]})
        made = self.iam.create_role(RoleName=name, AssumeRolePolicyDocument=trust)
        own = rights.policy(channels.of_store(url), rights.ROLES[role])
        self.iam.put_role_policy(RoleName=name, PolicyName="own", PolicyDocument=json.dumps(own))
        return str(made["Role"]["Arn"])

    def type(self, line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", line], cwd=self.folder, env=self.env, capture_output=True, text=True,
            check=False, timeout=600,
        )  # fmt: skip


def _iam(server):
    return boto3.session.Session(
        aws_access_key_id="owner", aws_secret_access_key="owner", region_name="us-east-2"
    ).client("iam", endpoint_url=server.endpoint)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with moto(tmp_path_factory.mktemp("moto")) as made:
        yield made


@pytest.fixture(scope="module")
def site(server):
    """What serves the bucket to people, with a login of its own: a CDN."""
    enforce(server, "inf")
    reading = {"Effect": "Allow", "Action": ["s3:GetObject"], "Resource": "*"}
    own = login(server, "cdn", {"Version": rights.VERSION, "Statement": [reading]})
    client = boto3.session.Session(
        aws_access_key_id=own["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=own["AWS_SECRET_ACCESS_KEY"],
        region_name="us-east-2",
    ).client("s3", endpoint_url=server.endpoint)

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            bucket, _, key = self.path.lstrip("/").partition("/")
            try:
                body = client.get_object(Bucket=bucket, Key=key)["Body"].read()
            except ClientError:  # 403 as well: who may not list is not told what is missing
                body = b""
            self.send_response(200 if body else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{made.server_port}"
        made.shutdown()


def test_the_lines_of_day_one_lead_to_a_green_night(server, site, tmp_path, monkeypatch):
    day = Day(server, tmp_path, monkeypatch, site)
    lines = lines_of_the_how_to()
    assert len(lines) > 5
    assert day.type(lines[-1]).returncode == 8, "`check`, while there is no night"
    for line in lines:
        done = day.type(line)
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
        if " rehearse " in line:
            for role in rights.ROLES:
                assert f"{role}: assume arn:aws:iam::" in done.stdout
            assert "BAD" not in done.stdout
    enforce(server, "inf")
    day.iam.put_role_policy(
        RoleName=f"runner-{day.bucket}"[:60], PolicyName="more",
        PolicyDocument=json.dumps(
            {"Version": rights.VERSION, "Statement": [
                {"Effect": "Allow", "Action": ["s3:DeleteObject"], "Resource": "*"}]}
        ),
    )  # fmt: skip
    enforce(server)
    (rehearse,) = [line for line in lines if " rehearse " in line]
    done = day.type(rehearse)
    assert done.returncode == 8, "a role that may too much"
    assert "take it away: `channels rights --role runner`" in done.stdout
