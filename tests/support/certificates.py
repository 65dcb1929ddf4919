"""A certificate authority of one test, a server's certificate for loopback, and a client's."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Certificates:
    """PEM files; keys are PKCS #8, which is what Bazel reads."""

    authority: Path
    server: Path
    server_key: Path
    client: Path
    client_key: Path


def make(folder: Path) -> Certificates:
    folder.mkdir(parents=True, exist_ok=True)
    _openssl(folder, "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=authority"
             " -keyout authority.key -out authority.pem")  # fmt: skip
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    for name in ("server", "client"):
        _openssl(folder, f"req -newkey rsa:2048 -nodes -subj /CN={name}"
                 f" -keyout {name}.key -out {name}.csr")  # fmt: skip
        _openssl(folder, f"x509 -req -in {name}.csr -CA authority.pem -CAkey authority.key"
                 f" -CAcreateserial -days 2 -extfile names -out {name}.pem")  # fmt: skip
    return Certificates(
        authority=folder / "authority.pem",
        server=folder / "server.pem",
        server_key=folder / "server.key",
        client=folder / "client.pem",
        client_key=folder / "client.key",
    )


def _openssl(folder: Path, arguments: str) -> None:
    subprocess.run(["openssl", *arguments.split()], cwd=folder, check=True, capture_output=True)
