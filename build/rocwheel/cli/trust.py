"""`trust`: keys that sign, who may sign what, and the chain behind a downloaded wheel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from rocwheel.base.errors import ConfigError, named
from rocwheel.base.option import OptionSet, opt
from rocwheel.cli.app import App
from rocwheel.cli.command import command, group, own
from rocwheel.cli.imports import when_run
from rocwheel.cli.target import ManifestOptions, PersonOptions, Target, judging

with when_run():
    from datetime import timedelta
    from pathlib import Path
    from urllib.parse import unquote

    from msgspec.structs import asdict

    from rocwheel.base import files
    from rocwheel.base.console import columns, printable
    from rocwheel.base.download import Client, Retry
    from rocwheel.records import manifest, places
    from rocwheel.release import promote, withdraw
    from rocwheel.release.trust import (
        TrustError,
        chain,
        envelope,
        evidence,
        online,
        policy,
        signers,
    )
    from rocwheel.release.trust.policy import Signer

_DAYS = click.IntRange(1, 36_500)


class SignerOptions(OptionSet):
    """The option that names the key a command signs with."""

    signer: str = opt(
        "Person",
        "--signer URI",
        "Sign what this command states: file:/path/key.pem, awskms:alias/NAME, "
        "hsm:SLOT?label=TOKEN or, with an OIDC identity, sigstore:",
        envvar="ROCWHEEL_SIGNER",
    )

    def key(self, app: App) -> Signer | None:
        """Open the key; None without --signer. Raises ConfigError, TrustError."""
        if not self.signer:
            return None
        scheme, _, rest = self.signer.partition(":")
        path = f"{scheme}:{app.cwd / rest.removeprefix('//')}"
        pin = app.environ.get("ROCWHEEL_SIGNER_PIN_FILE", "")
        return signers.signer(
            path if scheme in {"file", "sigstore"} and rest else self.signer,
            pin=app.cwd / pin if pin else None,
            token=app.environ.get("SIGSTORE_IDENTITY_TOKEN", ""),
        )


@group("trust")
def trust() -> None:
    """Make keys, sign statements, verify what was built, tested and released."""


class KeygenOptions(OptionSet):
    file: Path = own("FILE", is_path=True, required=True)
    role: str = own(
        "--role",
        "What the key is for.",
        only=("builder", "runner", "promoter", "approver"),
        required=True,
    )
    days: int = own("--days", "How long it is valid.", kind=_DAYS, default=365)


@command("keygen", KeygenOptions, parent=trust)
def keygen(app: App, options: KeygenOptions) -> None:
    """Make an Ed25519 key that its owner alone can read; print its entry of ci/trust.yaml."""
    today = app.now().date()
    until = today + timedelta(options.days)
    _entry(app, options.file, {"role": options.role, "since": today, "until": until})


def _entry(app: App, file: Path, fields: dict[str, Any]) -> None:
    """Make a key; print what ci/trust.yaml says of it."""
    key = signers.generate(file)
    public = "".join(f"      {line}\n" for line in signers.public_pem(key).splitlines())
    rest = "".join(f"    {field}: {value}\n" for field, value in fields.items())
    text = f"  {file.stem}:\n    algorithm: {key.scheme}\n{rest}    public: |\n{public}"
    app.emit({"name": file.stem, "keyid": key.keyid, "entry": text}, text.rstrip("\n"))


@command("show", SignerOptions, parent=trust)
def show(app: App, options: SignerOptions) -> None:
    """List the keys of ci/trust.yaml; with --signer print what that file says of that key."""
    if key := options.key(app):
        return _show_public(app, key.public_key)
    known = policy.load(app.home.ci / policy.FILE)
    rows = [
        (known.name(keyid), item.role.value, str(item.since), str(item.until), keyid[:12],
         f"revoked since {item.revoked.since}" if item.revoked is not policy.NEVER else "")
        for keyid, item in known.keys.items()
    ]  # fmt: skip
    rules = {name: [role.value for role in rule.required] for name, rule in known.rules.items()}
    table = columns(("key", "role", "since", "until", "id", ""), rows)
    lines = [*(table if rows else ["no key"]), *(f"{n} needs {', '.join(r)}" for n, r in rules.items())]  # fmt: skip # noqa: E501
    return app.emit({"keys": [row[0] for row in rows], "required": rules}, "\n".join(lines))


def _show_public(app: App, key: Any) -> None:
    part = signers.public_part(key)
    text = part.get("public") or "\n".join(f"{name}: {value}" for name, value in part.items())
    app.emit({"keyid": key.keyid, **part}, text)


class SignOptions(SignerOptions):
    file: Path = own("FILE", is_path=True, required=True)


@command("sign", SignOptions, parent=trust)
def sign(app: App, options: SignOptions) -> None:
    """Sign a statement that a machine without a key wrote, such as a wheelhouse's provenance.

    FILE is the statement, or the wheelhouse.
    """
    path = options.file
    path = path / evidence.PROVENANCE if path.is_dir() else path
    signer = _given(app, options)
    files.write(path, envelope.sign(_read(path), signer, name=str(path)))
    app.emit({"signed": str(path), "keyid": signer.public_key.keyid}, f"signed {path}")


def _given(app: App, options: SignerOptions) -> Signer:
    """Return the key of --signer. Raises UsageError where there is none."""
    if signer := options.key(app):
        return signer
    raise click.UsageError("give --signer")


def _read(path: Path) -> bytes:
    hint = "check the path; statements of a release are fetched as docs/how-to/trust.md says"
    with named(path, ConfigError, hint=hint):
        return files.read(path, most=64 << 20)


class ApproveOptions(ManifestOptions, PersonOptions, SignerOptions):
    cells: tuple[str, ...] = own(
        "SUITE:CPYTHON...", param="cells", nargs=-1, required=True, default=()
    )


@command("approve", ApproveOptions, parent=trust)
def approve(app: App, options: ApproveOptions) -> None:
    """Sign that cells of a staged set may be released: flaky ones, or let through untested.

    The word holds on this channel, for what speaks against a cell now and for nothing later.
    """
    signer, who = _given(app, options), withdraw.with_reason(options.who(app), options.reason)
    target = Target(app, options)
    manifest, channel = target.manifest(app, options.manifest), judging(app, target.channel)
    families = target.families_of(manifest)
    planned = promote.plan(manifest, families, channel, target.store, who=who, passes_held=True)
    keys = promote.approve(planned, options.cells, signer=signer)
    document = {"manifest": manifest.sha256, "statements": keys}
    app.emit(document, f"approved {' '.join(options.cells)}")


class RotateOptions(OptionSet):
    name: str = own("NAME", required=True)
    file: Path = own("FILE", is_path=True, required=True)
    overlap: int = own("--overlap", "Days in which both count.", kind=_DAYS, default=14)


@command("rotate", RotateOptions, parent=trust)
def rotate(app: App, options: RotateOptions) -> None:
    """Make the key that follows NAME, in FILE; print its entry and the last day of the old one."""
    known = policy.load(app.home.ci / policy.FILE)
    old = next((key for keyid, key in known.keys.items() if known.name(keyid) == options.name), None)  # fmt: skip # noqa: E501
    if old is None:
        raise ConfigError(f"{options.name}: no such key", hint="`trust show` lists them")
    today = app.now().date()
    scopes = {name: list(getattr(old, name)) for name in ("channels", "families", "suites")}
    fields = {"role": old.role.value, "since": today, "until": today + (old.until - old.since)}
    app.console.info(f"{options.name}: set until: {today + timedelta(options.overlap)}")
    _entry(app, options.file, {**fields, **{n: v for n, v in scopes.items() if v}})


class VerifyOptions(OptionSet):
    what: str = own("WHEEL|MANIFEST|URL", param="what", required=True)
    keys: Path | None = own("--keys", "The trust file; default: ci/trust.yaml.", is_path=True)
    statements: str = own(
        "--statements PATH|URL",
        "The set's statements, or the index that has them; default: bundle.jsonl beside it.",
    )


@command("verify", VerifyOptions, parent=trust)
def verify(app: App, options: VerifyOptions) -> int:
    """Verify who built, tested and released a wheel: one line per link.

    MANIFEST is a manifest.json or its folder; URL a wheel in an index, which is read to its end, or
    an index, whose pages' digests are verified. Ends with 9 where a link is broken or missing.
    """
    _ = options.keys and _read(options.keys)  # one that is not there would know no key
    known = policy.load(options.keys or app.home.ci / policy.FILE)
    documents, lines = list[dict[str, Any]](), list[str]()
    with Client(app.environ, retry=Retry(), note=app.console.info) as client:
        for name, sha256, bundle in _asked(app, options, client):
            links = chain.follow(sha256, bundle, known, now=app.now())
            document = {"file": name, "sha256": sha256, "links": list(map(asdict, links))}
            documents.append({**document, "state": chain.state(links)})
            lines += map(printable, (f"{documents[-1]['state']}: {name}", *map(str, links)))
    if not documents:
        raise ConfigError(f"{options.what}: offers no wheel", hint="give what --index-url takes")
    text = "\n".join(lines[1:] if len(documents) == 1 else lines)
    app.emit(documents[0] if len(documents) == 1 else {"files": documents}, text)
    return 0 if {d["state"] for d in documents} <= {"verified", "yanked"} else TrustError.exit_code


def _asked(app: App, options: VerifyOptions, client: Client) -> Iterator[tuple[str, str, bytes]]:
    """Yield the name, the SHA-256 and the statements of each file that is to be verified."""
    what, given = options.what.rstrip("/"), options.statements.rstrip("/")
    if "://" not in what:
        path = app.cwd / what
        path = path / manifest.MANIFEST if path.is_dir() else path
        if "://" in given and path.suffix != ".whl":
            raise click.UsageError("--statements URL is for a wheel; give a file for a set")
        sha256 = files.sha256(path) if path.is_file() else _read(path).hex()
        if "://" in given:
            bundle = online.statements(client, online.offer(client, given, path.name).where)
        else:
            bundle = _read(app.cwd / given if given else path.parent / places.BUNDLE)
        yield str(path), sha256, bundle
    elif what.endswith(".whl"):
        folder, _, name = what.rpartition("/")
        where = online.offer(client, folder, unquote(name)).where
        yield what, client.digest(what)[0], online.statements(client, where)
    else:
        for item in online.offers(client, what):
            yield item.filename, item.sha256, online.statements(client, item.where)
