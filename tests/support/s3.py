"""Real S3 servers on this machine, each started once per test session.

Several, because they can do different things and the store has to notice: SeaweedFS keeps every
condition and checksum, as AWS does; moto keeps conditions on puts but none on copies, and accepts
wrong checksums; rclone ignores all conditions; Ceph's RGW wants ETags without quotes. SeaweedFS and
RGW refuse who has no credentials, as a new bucket of AWS does; `public` is a SeaweedFS that lets
strangers read, and so does moto's bucket. rclone lets everybody in.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import boto3
import pytest
from botocore.config import Config
from support.certificates import Certificates
from support.ports import free_port
from support.processes import DIES_WITH_US

KEY, SECRET = "rocwheeltest", "rocwheelsecret"
READER, READER_SECRET = "rocwheelread", "rocwheelreadsecret"
BUCKET = "wheels"
START_SECONDS = 240


@dataclass(frozen=True, kw_only=True)
class Server:
    """A running server; `folder` is where it keeps files, if it does."""

    name: str
    endpoint: str
    pid: int
    folder: Path | None = None
    ca: str = ""  # the file of the authority of its certificate

    def environ(self, key: str = KEY, secret: str = SECRET) -> dict[str, str]:
        """What makes boto3 talk to it: no file of the person who runs the tests is read."""
        return {
            "AWS_ACCESS_KEY_ID": key,
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_ENDPOINT_URL_S3": self.endpoint,
            "AWS_REGION": "us-east-2",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
            **({"AWS_CA_BUNDLE": self.ca} if self.ca else {}),
        }

    def client(self, attempts: int = 5):
        config = Config(max_pool_connections=32, retries={"total_max_attempts": attempts})
        return boto3.session.Session(
            aws_access_key_id=KEY, aws_secret_access_key=SECRET, region_name="us-east-2"
        ).client("s3", endpoint_url=self.endpoint, config=config, verify=self.ca or None)

    def bucket(self, name: str) -> str:
        """Make a bucket; moto's is public, as one of AWS that is an index by itself."""
        client = self.client()
        where = {"CreateBucketConfiguration": {"LocationConstraint": "us-east-2"}}
        client.create_bucket(Bucket=name, **({} if self.name == "rgw" else where))
        if self.name == "moto":
            statement = {
                "Effect": "Allow",
                "Principal": "*",
                "Action": "s3:GetObject",
                "Resource": f"arn:aws:s3:::{name}/*",
            }
            policy = {"Version": "2012-10-17", "Statement": [statement]}
            client.put_bucket_policy(Bucket=name, Policy=json.dumps(policy))
        return name


def program(name: str) -> str:
    """A program beside this interpreter, or on PATH."""
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else shutil.which(name) or name


@contextlib.contextmanager
def started(
    argv: list[str], log: Path, env: dict[str, str] | None = None, *, cwd: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A process of its own, ended with everything it started."""
    with log.open("ab") as out:
        process = subprocess.Popen(
            [*DIES_WITH_US, *argv],
            stdout=out,
            stderr=out,
            stdin=subprocess.DEVNULL,
            cwd=cwd,
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextlib.contextmanager
def running(
    argv: list[str],
    url: str,
    log: Path,
    env: dict[str, str] | None = None,
    *,
    cwd: Path | None = None,
) -> Iterator[int]:
    """A server process that answers at `url`; ended with everything it started."""
    with started(argv, log, env, cwd=cwd) as process:
        deadline = time.monotonic() + START_SECONDS
        while not answers(url):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{argv[0]} does not answer:\n{log.read_text()[-3000:]}")
            time.sleep(0.05)
        yield process.pid


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=240):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False


@contextlib.contextmanager
def moto(folder: Path) -> Iterator[Server]:
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    argv = [program("moto_server"), "-H", "127.0.0.1", "-p", str(port)]
    with running(argv, f"{endpoint}/moto-api/", folder / "moto.log") as pid:
        yield Server(name="moto", endpoint=endpoint, pid=pid)


def login(server: Server, name: str, document: dict | None) -> dict[str, str]:
    """The environment of a user of moto whose only rights are these; None is all rights."""
    iam = boto3.session.Session(
        aws_access_key_id=KEY, aws_secret_access_key=SECRET, region_name="us-east-2"
    ).client("iam", endpoint_url=server.endpoint)
    allowed = {"Effect": "Allow", "Action": ["s3:*"], "Resource": "*"}
    document = document or {"Version": "2012-10-17", "Statement": [allowed]}
    iam.create_user(UserName=name)
    iam.put_user_policy(UserName=name, PolicyName="own", PolicyDocument=json.dumps(document))
    made = iam.create_access_key(UserName=name)["AccessKey"]
    return server.environ(made["AccessKeyId"], made["SecretAccessKey"])


def enforce(server: Server, after: str = "0") -> None:
    """Let moto enforce policies after so many requests; `inf` is never."""
    request = urllib.request.Request(
        f"{server.endpoint}/moto-api/reset-auth",
        data=after.encode(),
        method="POST",
        headers={"Content-Type": "text/plain"},
    )
    with urllib.request.urlopen(request):
        pass


@contextlib.contextmanager
def rclone(folder: Path) -> Iterator[Server]:
    port, kept = free_port(), folder / "rclone"
    kept.mkdir(parents=True, exist_ok=True)
    endpoint = f"http://127.0.0.1:{port}"
    # Without --auth-key it lets everybody in, which is how the tests read it as pip does.
    argv = [program("rclone"), "serve", "s3", str(kept), "--addr", f"127.0.0.1:{port}"]
    env = {"RCLONE_CONFIG": os.devnull}
    with running(argv, endpoint, folder / "rclone.log", env) as pid:
        yield Server(name="rclone", endpoint=endpoint, pid=pid, folder=kept)


@contextlib.contextmanager
def seaweedfs(
    folder: Path,
    *,
    anonymous: tuple[str, ...] = (),
    users: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
    certificates: Certificates | None = None,
) -> Iterator[Server]:
    """Start one; each of `users` has its own name as key, and these rights, such as Write:a/b*.

    With `certificates` its endpoint is the one for HTTPS.
    """
    kept = folder / "seaweedfs"
    kept.mkdir(parents=True, exist_ok=True)

    def identity(name: str, actions: list[str], key: str = "", secret: str = "") -> dict:
        credentials = [{"accessKey": key, "secretKey": secret}] if key else []
        return {"name": name, "actions": actions, "credentials": credentials}

    identities = [
        identity("anonymous", list(anonymous)),
        identity("owner", ["Admin", "Read", "Write", "List", "Tagging"], KEY, SECRET),
        identity("reader", ["Read", "List"], READER, READER_SECRET),
        *(
            identity(name, list(rights), f"rocwheel{name}", SECRET)
            for name, rights in users.items()
        ),
    ]
    (folder / "identities.json").write_text(json.dumps({"identities": identities}))
    argv = [program("weed"), "server", "-dir=.", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]
    argv += [
        "-s3",
        "-s3.iam=false",
        "-s3.autoCreateBucket=false",
        f"-s3.config={folder / 'identities.json'}",
    ]
    # Fixed, or it takes no more volumes than the disk has room for when it looks: with 15 GB free,
    # two buckets have them all and every put is an InternalError.
    argv += ["-master.volumeSizeLimitMB=1024", "-volume.max=500", "-volume.minFreeSpace=64MiB"]
    argv += ["-master.telemetry=false"]
    argv += ["-master.electionTimeout=1s", "-master.heartbeatInterval=100ms"]
    argv += ["-s3.port.iceberg=0", "-s3.port.lance=0"]
    ports = {name: free_port() for name in ("master", "volume", "filer", "s3")}
    argv += [f"-{name}.port={port}" for name, port in ports.items()]
    argv += [f"-{name}.port.grpc={free_port()}" for name in ports]
    endpoint, ca = f"http://127.0.0.1:{ports['s3']}", ""
    if certificates:
        ca, port = str(certificates.authority), free_port()
        argv += [f"-s3.cert.file={certificates.server}", f"-s3.key.file={certificates.server_key}"]
        argv += [f"-s3.port.https={port}"]
    with running(argv, f"{endpoint}/healthz", folder / "seaweedfs.log", cwd=kept) as pid:
        endpoint = f"https://127.0.0.1:{port}" if certificates else endpoint
        server = Server(name="seaweedfs", endpoint=endpoint, pid=pid, folder=kept, ca=ca)
        _wait_for_volumes(server)
        yield server


@contextlib.contextmanager
def public(folder: Path) -> Iterator[Server]:
    """SeaweedFS that may be read without credentials, as behind a web server."""
    own = folder / "public"
    own.mkdir()
    with seaweedfs(own, anonymous=("Read",)) as server:
        yield server


def _wait_for_volumes(server: Server) -> None:
    """Wait until it can store something: it answers before that."""
    client = server.client(attempts=1)
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            client.create_bucket(Bucket="first")
            client.put_object(Bucket="first", Key="first", Body=b"first")
        except Exception:  # whatever it says while it starts
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return


CEPH = """\
[global]
fsid = {fsid}
mon host = v2:127.0.0.1:{mon}
mon initial members = a
public network = 127.0.0.0/8
public addr = 127.0.0.1
cluster addr = 127.0.0.1
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 4
osd pool default pg autoscale mode = off
mon allow pool size one = true
mon max pg per osd = 1000
osd crush chooseleaf type = 0
osd objectstore = memstore
memstore device bytes = 2147483648
mon data = {folder}/mon
osd data = {folder}/osd
rgw data = {folder}/run
run dir = {folder}/run
admin socket = {folder}/run/$name.asok
pid file = {folder}/run/$name.pid
log file = {folder}/$name.log
mon data avail crit = 0
mon data avail warn = 0
mon cluster log file = {folder}/cluster.log
rgw frontends = beast endpoint=127.0.0.1:{rgw}
[client]
keyring = {folder}/admin.keyring
[osd]
keyring = {folder}/osd.keyring
"""


@contextlib.contextmanager
def rgw(folder: Path) -> Iterator[Server]:
    """One node of Ceph with its object gateway: Debian's ceph-mon, ceph-osd and radosgw."""
    folder = folder / "ceph"
    for name in ("mon", "osd", "run"):
        (folder / name).mkdir(parents=True)
    ports = {"mon": free_port(), "rgw": free_port()}
    fsid, osd = str(uuid.uuid4()), str(uuid.uuid4())
    (folder / "ceph.conf").write_text(CEPH.format(fsid=fsid, folder=folder, **ports))
    conf = ("-c", f"{folder}/ceph.conf")

    def call(*argv: str, stdin: str = "") -> str:
        done = subprocess.run(
            argv, input=stdin, text=True, capture_output=True, check=False, timeout=400
        )
        if done.returncode:
            raise RuntimeError(f"{argv}: {done.stderr}")
        return done.stdout.strip()

    def keys(name: str, entity: str, *options: str) -> None:
        call("ceph-authtool", f"{folder}/{name}.keyring", "-C", "-n", entity, *options)

    keys("admin", "client.admin", "-g", "--cap", "mon", "allow *", "--cap", "osd", "allow *")
    keys("mon", "mon.", "-g", "--cap", "mon", "allow *")
    call("ceph-authtool", f"{folder}/mon.keyring", "--import-keyring", f"{folder}/admin.keyring")
    address = f"[v2:127.0.0.1:{ports['mon']}]"
    call("monmaptool", "--create", "--fsid", fsid, "--addv", "a", address, f"{folder}/monmap")
    mon = ["ceph-mon", *conf, "-i", "a"]
    call(*mon, "--mkfs", "--monmap", f"{folder}/monmap", "--keyring", f"{folder}/mon.keyring")
    endpoint = f"http://127.0.0.1:{ports['rgw']}"
    with contextlib.ExitStack() as stack:
        stack.enter_context(started([*mon, "-f"], folder / "mon.out"))
        secret = call("ceph-authtool", "--gen-print-key")
        call("ceph", *conf, "osd", "new", osd, "-i", "-", stdin=f'{{"cephx_secret": "{secret}"}}')
        keys("osd", "osd.0", "-a", secret)
        daemon = ["ceph-osd", *conf, "-i", "0"]
        call(*daemon, "--mkfs", "--osd-uuid", osd)
        stack.enter_context(started([*daemon, "-f"], folder / "osd.out"))
        create = ("user", "create", "--uid=owner", "--display-name=owner")
        call("radosgw-admin", *conf, *create, f"--access-key={KEY}", f"--secret-key={SECRET}")
        gateway = ["radosgw", *conf, "-n", "client.admin", "-f"]
        pid = stack.enter_context(running(gateway, endpoint, folder / "rgw.out"))
        yield Server(name="rgw", endpoint=endpoint, pid=pid)


SERVERS = {"moto": moto, "rclone": rclone, "seaweedfs": seaweedfs, "public": public, "rgw": rgw}


class Servers:
    """The servers of this session, started when a test first asks for one."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self._running: dict[str, Server] = {}
        self._places = 0

    def __getitem__(self, name: str) -> Server:
        if name not in self._running:
            self._running[name] = self._stack.enter_context(SERVERS[name](self._folder))
            self._running[name].bucket(BUCKET)
        return self._running[name]

    def fresh_url(self, name: str) -> str:
        """An empty place on that server: buckets are dear in SeaweedFS, prefixes are not."""
        self._places += 1
        assert self[name]
        return f"s3://{BUCKET}/place-{self._places}"


@pytest.fixture(scope="session")
def servers(tmp_path_factory) -> Iterator[Servers]:
    with contextlib.ExitStack() as stack:
        yield Servers(tmp_path_factory.mktemp("s3"), stack)
