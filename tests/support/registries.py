"""A real image registry (Debian's docker-registry) on loopback."""

from __future__ import annotations

import hashlib
import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import requests
from support.ports import free_port
from support.processes import DIES_WITH_US


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Its address; it keeps what it gets below the folder, and dies with the test."""
    port = free_port()
    (folder / "config.yml").write_text(
        "version: 0.1\nlog: {level: error}\n"
        f"storage: {{filesystem: {{rootdirectory: {folder}/registry}}}}\n"
        f"http: {{addr: 127.0.0.1:{port}}}\n"
    )
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*DIES_WITH_US, "docker-registry", "serve", str(folder / "config.yml")],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        until = time.monotonic() + 240
        while True:
            try:
                requests.get(f"http://127.0.0.1:{port}/v2/", timeout=240)
                break
            except requests.ConnectionError:
                assert time.monotonic() < until, (folder / "log").read_text()
                time.sleep(0.1)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def image(address: str, name: str, tag: str) -> str:
    """Push an image without layers, whose configuration has its tag as a label; its digest."""
    base = f"http://{address}/v2/{name}"
    labels = {"architecture": "amd64", "os": "linux", "config": {"Labels": {"tag": tag}}}
    config = json.dumps(labels).encode()
    digest = f"sha256:{hashlib.sha256(config).hexdigest()}"
    place = requests.post(f"{base}/blobs/uploads/", timeout=60).headers["Location"]
    requests.put(place, params={"digest": digest}, data=config, timeout=60).raise_for_status()
    kind = "application/vnd.oci.image.manifest.v1+json"
    described = {
        "mediaType": "application/vnd.oci.image.config.v1+json", "digest": digest, "size": len(config),
    }  # fmt: skip
    manifest = {"schemaVersion": 2, "mediaType": kind, "config": described, "layers": []}
    sent = requests.put(
        f"{base}/manifests/{tag}", json=manifest, headers={"Content-Type": kind}, timeout=60
    )
    sent.raise_for_status()
    return sent.headers["Docker-Content-Digest"]
