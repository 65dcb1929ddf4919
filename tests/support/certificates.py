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


def make(folder: Path, name: str = "IP:127.0.0.1") -> Certificates:
    """Make them in a folder; `name` is the server's, as openssl writes it."""
    folder.mkdir(parents=True, exist_ok=True)
    _openssl(folder, "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=authority"
             " -addext keyUsage=critical,keyCertSign,cRLSign"
             " -keyout authority.key -out authority.pem")  # fmt: skip
    (folder / "names").write_text(
        f"subjectAltName={name}\nauthorityKeyIdentifier=keyid\nsubjectKeyIdentifier=hash\n"
    )
    for owner in ("server", "client"):
        _openssl(folder, f"req -newkey rsa:2048 -nodes -subj /CN={owner}"
                 f" -keyout {owner}.key -out {owner}.csr")  # fmt: skip
        _openssl(folder, f"x509 -req -in {owner}.csr -CA authority.pem -CAkey authority.key"
                 f" -CAcreateserial -days 2 -extfile names -out {owner}.pem")  # fmt: skip
    return Certificates(
        authority=folder / "authority.pem",
        server=folder / "server.pem",
        server_key=folder / "server.key",
        client=folder / "client.pem",
        client_key=folder / "client.key",
    )


def _openssl(folder: Path, arguments: str) -> None:
    subprocess.run(["openssl", *arguments.split()], cwd=folder, check=True, capture_output=True)
