"""A worker for BuildGrid, run with its Python: takes actions, runs them, stores what they made.

    python remote_worker.py ADDRESS FOLDER

BuildGrid is only the server; its usual worker (buildbox) is in no package registry. This one
speaks the same two protocols (Remote Workers API, Remote Execution API v2) and runs one action at
a time in a folder of its own, without a sandbox. It appends a line per action to FOLDER/actions.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import grpc
from buildgrid._protos.build.bazel.remote.execution.v2 import (
    remote_execution_pb2 as rex,
)
from buildgrid._protos.build.bazel.remote.execution.v2 import (
    remote_execution_pb2_grpc as rex_grpc,
)
from buildgrid._protos.google.devtools.remoteworkers.v1test2 import bots_pb2, bots_pb2_grpc

COMPLETED, ACTIVE = bots_pb2.LeaseState.COMPLETED, bots_pb2.LeaseState.ACTIVE


class Store:
    """Blobs of the server, by digest."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._cas = rex_grpc.ContentAddressableStorageStub(channel)

    def read(self, digest: rex.Digest) -> bytes:
        request = rex.BatchReadBlobsRequest(digests=[digest])
        (response,) = self._cas.BatchReadBlobs(request).responses
        return response.data

    def write(self, data: bytes) -> rex.Digest:
        digest = rex.Digest(hash=hashlib.sha256(data).hexdigest(), size_bytes=len(data))
        blob = rex.BatchUpdateBlobsRequest.Request(digest=digest, data=data)
        self._cas.BatchUpdateBlobs(rex.BatchUpdateBlobsRequest(requests=[blob]))
        return digest

    def unpack(self, digest: rex.Digest, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        directory = rex.Directory.FromString(self.read(digest))
        for file in directory.files:
            path = folder / file.name
            path.write_bytes(self.read(file.digest))
            path.chmod(0o755 if file.is_executable else 0o644)
        for link in directory.symlinks:
            (folder / link.name).symlink_to(link.target)
        for child in directory.directories:
            self.unpack(child.digest, folder / child.name)


def run(action: rex.Action, store: Store, folder: Path) -> rex.ActionResult:
    command = rex.Command.FromString(store.read(action.command_digest))
    root = folder / "root"
    shutil.rmtree(root, ignore_errors=True)
    store.unpack(action.input_root_digest, root)
    outputs = list(command.output_paths) or [*command.output_files, *command.output_directories]
    here = root / command.working_directory
    for output in outputs:
        (here / output).parent.mkdir(parents=True, exist_ok=True)
    env = {item.name: item.value for item in command.environment_variables}
    done = subprocess.run(
        list(command.arguments),
        cwd=here,
        env={"PATH": os.environ["PATH"], **env},
        capture_output=True,
        check=False,
    )
    result = rex.ActionResult(
        exit_code=done.returncode, stdout_raw=done.stdout, stderr_raw=done.stderr
    )
    for output in outputs:
        path = here / output
        if path.is_file():
            result.output_files.add(
                path=output,
                digest=store.write(path.read_bytes()),
                is_executable=os.access(path, os.X_OK),
            )
    with (folder / "actions").open("a") as log:
        log.write(" ".join(outputs) + "\n")
    return result


def main(address: str, folder: Path) -> None:
    channel = grpc.insecure_channel(address)
    grpc.channel_ready_future(channel).result(timeout=240)
    store, bots = Store(channel), bots_pb2_grpc.BotsStub(channel)
    (folder / "ready").touch()  # the calls below wait until there is work
    session = bots_pb2.BotSession(bot_id=f"worker-{os.getpid()}", status=1)
    session.worker.devices.add(handle="cpu")
    session = bots.CreateBotSession(
        bots_pb2.CreateBotSessionRequest(parent="", bot_session=session)
    )

    def update() -> bots_pb2.BotSession:
        return bots.UpdateBotSession(
            bots_pb2.UpdateBotSessionRequest(name=session.name, bot_session=session)
        )

    while True:
        if session.leases:
            action = rex.Action()
            session.leases[0].payload.Unpack(action)
            session.leases[0].state = ACTIVE
            session = update()
            session.leases[0].result.Pack(run(action, store, folder))
            session.leases[0].state = COMPLETED
        else:
            time.sleep(0.05)
        session = update()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
