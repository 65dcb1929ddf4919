"""A remote cache and a remote executor: their options, and whether they can be used right now.

Bazel itself goes on when a cache fails, but waits for it once per action: a cache that is down or
slow is therefore left out of the build, and both the console and the build record say so. Secrets
are never in an argv: headers go into an rc file that only the user can read, outside every
workspace.

A JVM reads no `SSL_CERT_FILE`: behind a proxy with its own CA, Bazel's downloads end with "PKIX
path building failed" where curl, git and pip work. So the CA bundle of this machine's programs
becomes a trust store, and Bazel's server gets it as a startup option
(https://bazel.build/docs/user-manual#startup-options).
"""

from __future__ import annotations

import itertools
import os
import socket
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from rocwheel.base import errors, files
from rocwheel.base.download import reason, session
from rocwheel.base.errors import ConfigError
from rocwheel.base.process import CA_BUNDLES, GuestPath
from rocwheel.base.values import Plain, replace
from rocwheel.records.build_options import RemoteOptions

if TYPE_CHECKING:
    from cryptography import x509

PASSWORD: Final = "changeit"  # noqa: S105 - the JVM wants one; certificates are public
OPTION: Final = "--host_jvm_args=-Djavax.net.ssl.trustStore"


class Certificates(Plain, frozen=True, kw_only=True):
    """A CA bundle of this machine, in PEM."""

    bundle: Path
    digest: str

    @property
    def name(self) -> str:
        return f"certificates-{self.digest[:16]}.p12"

    def startup(self, folder: GuestPath) -> tuple[str, ...]:
        """Return Bazel's startup options, with the trust store in `folder`."""
        return (
            f"{OPTION}={folder}/{self.name}",
            f"{OPTION}Type=PKCS12",
            f"{OPTION}Password={PASSWORD}",
        )

    def write(self, folder: Path) -> None:
        """Write the trust store, once. Raises ConfigError for a bundle that changed meanwhile."""
        path = folder / self.name
        if path.is_file():
            return
        from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12

        found = _parsed(self.bundle, self.bundle.read_bytes())
        entries = [
            pkcs12.PKCS12Certificate(item, f"ca-{number}".encode())
            for number, item in enumerate(found)
        ]
        encryption = BestAvailableEncryption(PASSWORD.encode())
        files.write(path, pkcs12.serialize_java_truststore(entries, encryption))


def in_use(environ: Mapping[str, str], *, options: tuple[str, ...] = ()) -> Certificates | None:
    """Return the CA bundle that the environment names; None where it names none.

    A trust store among the user's own startup `options` is left alone. Raises ConfigError for a
    bundle that is missing or holds no certificate.
    """
    named = next(((name, environ[name]) for name in CA_BUNDLES if environ.get(name)), None)
    if named is None or any(option.startswith(OPTION) for option in options):
        return None
    bundle = Path(named[1])
    hint = "name a CA bundle in PEM, or unset the variable"
    with errors.named(f"{named[0]}={bundle}", ConfigError, hint=hint):
        data = bundle.read_bytes()
    _parsed(bundle, data)
    return Certificates(bundle=bundle, digest=files.sha256(data))


def _parsed(bundle: Path, data: bytes) -> list[x509.Certificate]:
    from cryptography import x509

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of roots older than RFC 5280, which every bundle has
            return x509.load_pem_x509_certificates(data)
    except ValueError as exc:
        raise ConfigError(
            f"{bundle}: holds no certificates in PEM",
            hint="name a CA bundle, such as /etc/ssl/certs/ca-certificates.crt",
        ) from exc


SLOW_SECONDS: Final = 2.0  # for a request of a few bytes; Bazel would wait as long per action
PROBE: Final = b"rocwheel asks for what no cache has\n"
CACHE_SCHEMES: Final = ("http", "https", "grpc", "grpcs")
EXECUTOR_SCHEMES: Final = ("grpc", "grpcs")
# What begins HTTP/2, which gRPC is: the preface and empty settings (RFC 9113, 3.4). A server
# answers with its own settings, a frame of type 4.
PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
SETTINGS: Final = b"\x04"
PORTS: Final = {"http": 80, "https": 443, "grpc": 80, "grpcs": 443}
FINE: Final = frozenset({*range(200, 300), 404})


@dataclass(frozen=True, kw_only=True)
class Remote(RemoteOptions):
    """The remote cache and executor that were asked for; `headers` are secrets."""

    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    lacks: str = ""  # why cache and executor are not used, though they were asked for

    @property
    def options(self) -> tuple[str, ...]:
        """Bazel's options for all of it; none when neither cache nor executor is left."""
        if not self.cache and not self.executor:
            return ()
        given = (
            ("--remote_cache", self.cache),
            ("--remote_executor", self.executor),
            ("--tls_certificate", self.tls_ca),
            ("--tls_client_certificate", self.tls_certificate),
            ("--tls_client_key", self.tls_key),
            ("--remote_timeout", self.timeout),
        )
        return (
            *(f"{name}={value}" for name, value in given if value),
            f"--{'' if self.upload else 'no'}remote_upload_local_results",
            "--remote_local_fallback",
            # JAX's rc file says local; where the executor cannot, the next of the list may.
            *(("--spawn_strategy=remote,sandboxed,local",) if self.executor else ()),
            # What is uploaded must be what was compiled, even when a file changes meanwhile:
            # https://github.com/bazelbuild/bazel/issues/3360
            *(("--experimental_guard_against_concurrent_changes",) if self.upload else ()),
            # Announcing rc options would print the headers.
            *(("--noannounce_rc",) if self.headers else ()),
        )

    @property
    def header_lines(self) -> str:
        """Lines of an rc file, which splits at blanks unless they are quoted."""
        return "".join(
            f"build {quoted(f'--remote_header={name}={value}')}\n" for name, value in self.headers
        )

    def rc_file(self, folder: PurePath) -> PurePath | None:
        """Return the rc file below `folder` that gives Bazel the headers; None without headers."""
        if not self.headers:
            return None
        key = files.sha256(self.header_lines.encode())[:16]
        return folder / f"headers-{key}.bazelrc"

    @property
    def secrets(self) -> tuple[str, ...]:
        """Credentials that may stand in no file that is kept."""
        return tuple(value for _, value in self.headers if value)


LOCAL: Final = Remote()


def read_remote(asked: RemoteOptions, workspaces: Iterable[Path] = ()) -> Remote:
    """Check the options for remote building; read the header file.

    Raises ConfigError for an address of the wrong kind or with a password in it, and for secrets
    below a workspace, where they would be packed, committed or uploaded. Where a file of
    credentials is missing, neither cache nor executor is used.
    """
    for name, address, schemes in (
        ("--remote-cache", asked.cache, CACHE_SCHEMES),
        ("--remote-executor", asked.executor, EXECUTOR_SCHEMES),
    ):
        if address:
            _check_address(name, address, schemes)
    if asked.upload and not (asked.cache or asked.executor):
        raise ConfigError("--remote-upload: no remote cache", hint="add --remote-cache URL")
    credentials = (asked.header_file, asked.tls_certificate, asked.tls_key, asked.tls_ca)
    given = [file for file in credentials if file]
    for file, workspace in itertools.product(given, workspaces):
        if file.resolve().is_relative_to(workspace.resolve()):
            raise ConfigError(
                f"{file}: credentials lie below the workspace {workspace}",
                hint="keep them elsewhere, for example below ~/.config",
            )
    if bool(asked.tls_certificate) != bool(asked.tls_key):
        raise ConfigError(
            "a client certificate and its key belong together",
            hint="give --remote-tls-certificate and --remote-tls-key",
        )
    missing = next((file for file in given if not file.is_file()), None)
    places = {"remote cache": asked.cache, "remote executor": asked.executor}
    if missing and any(places.values()):  # a runner that is given none builds all the same
        what = " and ".join(name for name, address in places.items() if address)
        return Remote(lacks=f"{what} not used: {missing}: no such file")
    if missing:
        raise ConfigError(f"{missing}: no such file", hint="check the path")
    # https://github.com/bazelbuild/bazel/issues/12764
    key = asked.tls_key
    if key and "BEGIN PRIVATE KEY" not in key.read_text(encoding="utf-8", errors="replace"):
        raise ConfigError(
            f"{key}: no PKCS #8 key, and Bazel reads no other",
            hint=f"openssl pkcs8 -topk8 -nocrypt -in {key} -out <another file>",
        )
    headers = _headers(asked.header_file) if asked.header_file else ()
    return Remote(**vars(asked), headers=headers)


def ask(remote: Remote) -> tuple[Remote, list[str]]:
    """Try cache and executor with small requests; keep what works, and note the rest."""
    notes = [remote.lacks] if remote.lacks else []
    cache, executor = remote.cache, remote.executor
    if cache and (problem := _ask_cache(remote)):
        notes.append(f"remote cache not used: {problem}")
        cache = ""
    if executor and (problem := _connect(executor, remote)):
        notes.append(f"remote executor not used: {problem}")
        executor = ""
    left = replace(remote, cache=cache, executor=executor, upload=remote.upload and bool(cache))
    return left, notes


def quoted(option: str) -> str:
    """Quote an option for an rc file, as Bazel's tokenizer reads it."""
    escaped = option.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def write_headers(remote: Remote, folder: Path) -> None:
    """Put the headers where `Remote.rc_file` says; only the user can read that file."""
    name = remote.rc_file(folder)
    if name:
        path = Path(name)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(remote.header_lines)
        path.chmod(0o600)  # it may have been there


def _check_address(name: str, address: str, schemes: tuple[str, ...]) -> None:
    parts = urlsplit(address)
    if parts.scheme not in schemes or not parts.hostname:
        raise ConfigError(
            f"{name} {address.rpartition('@')[2].partition('?')[0]}: not an address of this kind",
            hint=f"write {' or '.join(f'{scheme}://host' for scheme in schemes)}",
        )
    if parts.username is not None or parts.password is not None or parts.query:
        raise ConfigError(
            f"{name} {parts.scheme}://{parts.hostname}: has a password or token in it",
            hint="put an Authorization line into a file: --remote-header-file",
        )


def _headers(path: Path) -> tuple[tuple[str, str], ...]:
    """Read `Name: value` lines; blank lines and those with `#` in front do not count."""
    if path.stat().st_mode & 0o077:
        raise ConfigError(
            f"{path}: others may read the credentials in it", hint=f"chmod 600 {path}"
        )
    headers = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, colon, value = line.partition(":")
        if not colon or not name.strip() or " " in name.strip():
            raise ConfigError(
                f"{path}:{number}: no header", hint="write for example Authorization: Bearer …"
            )
        headers.append((name.strip(), value.strip()))
    return tuple(headers)


def _ask_cache(remote: Remote) -> str:
    """Return what keeps the cache from being used; "" for nothing.

    It is asked for an entry that no cache has, and must deny it in time. Refused, lost or wrong
    bytes need no check: Bazel warns, and builds that action.
    """
    if urlsplit(remote.cache).scheme.startswith("grpc"):
        return _connect(remote.cache, remote)
    import requests

    base = remote.cache.rstrip("/")
    url = f"{base}/ac/{files.sha256(PROBE)}"
    with session({}) as asking:
        asking.headers.update(dict(remote.headers))
        asking.verify = str(remote.tls_ca) if remote.tls_ca else True
        if remote.tls_certificate:
            asking.cert = (str(remote.tls_certificate), str(remote.tls_key))
        try:
            answer = asking.get(url, timeout=SLOW_SECONDS, allow_redirects=False)
        except requests.Timeout:
            return f"{base}: no answer within {SLOW_SECONDS:g} s"
        except (requests.RequestException, OSError) as exc:
            return f"{base}: {reason(exc)}"
    is_fine = answer.status_code in FINE
    return "" if is_fine else f"{base}: answers {answer.status_code} {answer.reason}"


def _connect(address: str, remote: Remote) -> str:
    import ssl  # which commands that only look do not need

    parts = urlsplit(address)
    host, port = parts.hostname or "", parts.port or PORTS[parts.scheme]
    try:
        with socket.create_connection((host, port), timeout=SLOW_SECONDS) as plain:
            link = plain
            if parts.scheme == "grpcs":
                tls = ssl.create_default_context(cafile=remote.tls_ca)
                tls.set_alpn_protocols(["h2"])
                if remote.tls_certificate:
                    tls.load_cert_chain(remote.tls_certificate, remote.tls_key)
                link = tls.wrap_socket(plain, server_hostname=host)
            with link:
                link.sendall(PREFACE)
                answer = link.recv(9)
    except TimeoutError:
        return f"{address}: no answer within {SLOW_SECONDS:g} s"
    except OSError as exc:
        return f"{address}: {exc.strerror or exc}"
    return "" if answer[3:4] == SETTINGS else f"{address}: answers, and not as gRPC does"
