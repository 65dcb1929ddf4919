"""An instance of Sigstore on this machine: its services stood in for by those of its own people.

Fulcio, its certificate log and Rekor cannot run here. `@sigstore/mock` of sigstore/sigstore-js is
what Sigstore's clients are tested with; `sigstore_services/server.cjs` says what it lacks beside
the real ones. Client, certificates, proofs and roots are real.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jwt
from support import engines

SERVICES = Path(__file__).parent / "sigstore_services"
GITHUB = "https://token.actions.githubusercontent.com"
REPOSITORY = "team/wheels"


def services() -> Path:
    """Return the folder with the services and what they need, installed once."""
    files = sorted(SERVICES.iterdir())
    key = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:12]
    folder = engines.folder() / f"sigstore-{key}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "ready").exists():
            shutil.copytree(SERVICES, folder, dirs_exist_ok=True)
            npm = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
            subprocess.run(npm, cwd=folder, check=True, capture_output=True, timeout=600)
            (folder / "ready").touch()
    return folder


class Instance:
    """A running instance: `config` is what Sigstore's clients take as `--trust-config`."""

    def __init__(self, config: Path) -> None:
        self.config = config

    @property
    def uri(self) -> str:
        """What `--signer` takes."""
        return f"sigstore:{self.config}"


@contextmanager
def instance(folder: Path) -> Iterator[Instance]:
    """Run the services; write their trust configuration into a folder."""
    server = ["node", services() / "server.cjs"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(server, **pipes) as process:
        try:
            config = folder / "trust_config.json"
            config.write_bytes(process.stdout.readline())
            yield Instance(config)
        finally:
            process.stdin.close()
            process.wait(10)


def token(workflow: str, *, seconds: int = 600, **claims: str) -> str:
    """Return an OIDC token as GitHub gives one to a workflow; its signature is not looked at."""
    ref = "refs/heads/main"
    path = f"{REPOSITORY}/.github/workflows/{workflow}.yml@{ref}"
    return plain_token(
        f"https://github.com/{path}", GITHUB, seconds=seconds,
        # Fulcio puts the workflow's URL into the certificate, its stand-in what the subject is
        repository=REPOSITORY, ref=ref, sha="1" * 40, workflow_ref=path, job_workflow_ref=path,
        event_name="schedule", **claims,
    )  # fmt: skip


def plain_token(subject: str, issuer: str, *, seconds: int = 600, **claims: str) -> str:
    """Return a token of any provider."""
    now = int(time.time())
    times = {"iat": now - 1, "nbf": now - 1, "exp": now + seconds}
    said = {"sub": subject, "iss": issuer, "aud": "sigstore", **times, **claims}
    return jwt.encode(said, "of no consequence, but of 32 bytes or more")


def identity(workflow: str) -> str:
    """Return whom such a token's certificate names."""
    return f"https://github.com/{REPOSITORY}/.github/workflows/{workflow}.yml@refs/heads/main"


def edited(line: bytes, change) -> bytes:
    """Return a bundle with something else in it, spelt as ours are."""
    document = json.loads(line)
    change(document)
    return (
        json.dumps(document, separators=(",", ":"), sort_keys=True, ensure_ascii=False).encode()
        + b"\n"
    )
