"""`trust`: keys that sign, who may sign what, and the chain behind a downloaded wheel."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import click
from msgspec.structs import asdict

from rocwheel.base import files
from rocwheel.base.console import columns, printable
from rocwheel.base.download import Client, Retry
from rocwheel.base.errors import ConfigError, named
from rocwheel.cli.app import App
from rocwheel.cli.options import PATH, group, option
from rocwheel.cli.target import (
    ManifestOptions,
    PersonOptions,
    Target,
    judging,
    key_of,
    manifest_options,
    person_options,
    signer_option,
)
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


@group("trust")
def trust() -> None:
    """Make keys, sign statements, verify what was built, tested and released."""


@trust.command("keygen")
@click.argument("file", type=PATH)
@option(
    "--role",
    type=click.Choice(("builder", "runner", "promoter", "approver")),
    required=True,
    help="What the key is for.",
)
@option("--days", type=_DAYS, default=365, help="How long it is valid.")
@click.pass_obj
def keygen(app: App, file: Path, role: str, days: int) -> None:
    """Make an Ed25519 key that its owner alone can read; print its entry of ci/trust.yaml."""
    today = app.now().date()
    until = today + timedelta(days)
    _entry(app, file, {"role": role, "since": today, "until": until})


def _entry(app: App, file: Path, fields: dict[str, Any]) -> None:
    """Make a key; print what ci/trust.yaml says of it."""
    key = signers.generate(file)
    public = "".join(f"      {line}\n" for line in signers.public_pem(key).splitlines())
    rest = "".join(f"    {field}: {value}\n" for field, value in fields.items())
    text = f"  {file.stem}:\n    algorithm: {key.scheme}\n{rest}    public: |\n{public}"
    app.emit({"name": file.stem, "keyid": key.keyid, "entry": text}, text.rstrip("\n"))


@trust.command("show")
@signer_option
@click.pass_obj
def show(app: App, signer: str) -> None:
    """List the keys of ci/trust.yaml; with --signer print what that file says of that key."""
    if key := key_of(app, signer):
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


@trust.command("sign")
@click.argument("path", metavar="FILE", type=PATH)
@signer_option
@click.pass_obj
def sign(app: App, path: Path, signer: str) -> None:
    """Sign a statement that a machine without a key wrote, such as a wheelhouse's provenance.

    FILE is the statement, or the wheelhouse.
    """
    path = path / evidence.PROVENANCE if path.is_dir() else path
    key = _given(app, signer)
    files.write(path, envelope.sign(_read(path), key, name=str(path)))
    app.emit({"signed": str(path), "keyid": key.public_key.keyid}, f"signed {path}")


def _given(app: App, signer: str) -> Signer:
    """Return the key of --signer. Raises UsageError where there is none."""
    if key := key_of(app, signer):
        return key
    raise click.UsageError("give --signer")


def _read(path: Path) -> bytes:
    hint = "check the path; statements of a release are fetched as docs/how-to/trust.md says"
    with named(path, ConfigError, hint=hint):
        return files.read(path, most=64 << 20)


@trust.command("approve")
@click.argument("cells", metavar="SUITE:CPYTHON...", nargs=-1, required=True)
@manifest_options
@person_options
@signer_option
@click.pass_obj
def approve(
    app: App, cells: tuple[str, ...], target: ManifestOptions, person: PersonOptions, signer: str
) -> None:
    """Sign that cells of a staged set may be released: flaky ones, or let through untested.

    The word holds on this channel, for what speaks against a cell now and for nothing later.
    """
    key, who = _given(app, signer), withdraw.with_reason(person.who(app), person.reason)
    where = Target(app, target)
    manifest, channel = where.manifest(app, target.manifest), judging(app, where.channel)
    families = where.families_of(manifest)
    planned = promote.plan(manifest, families, channel, where.store, who=who, passes_held=True)
    keys = promote.approve(planned, cells, signer=key)
    document = {"manifest": manifest.sha256, "statements": keys}
    app.emit(document, f"approved {' '.join(cells)}")


@trust.command("rotate")
@click.argument("name")
@click.argument("file", type=PATH)
@option("--overlap", type=_DAYS, default=14, help="Days in which both count.")
@click.pass_obj
def rotate(app: App, name: str, file: Path, overlap: int) -> None:
    """Make the key that follows NAME, in FILE; print its entry and the last day of the old one."""
    known = policy.load(app.home.ci / policy.FILE)
    keys = (key for keyid, key in known.keys.items() if known.name(keyid) == name)
    old = next(keys, None)
    if old is None:
        raise ConfigError(f"{name}: no such key", hint="`trust show` lists them")
    today = app.now().date()
    scopes = {what: list(getattr(old, what)) for what in ("channels", "families", "suites")}
    fields = {"role": old.role.value, "since": today, "until": today + (old.until - old.since)}
    app.console.info(f"{name}: set until: {today + timedelta(overlap)}")
    _entry(app, file, {**fields, **{n: v for n, v in scopes.items() if v}})


@trust.command("verify")
@click.argument("what", metavar="WHEEL|MANIFEST|URL")
@option("--keys", type=PATH, help="The trust file; default: ci/trust.yaml.")
@option(
    "--statements",
    metavar="PATH|URL",
    help="The set's statements, or the index that has them; default: bundle.jsonl beside it.",
)
@click.pass_obj
def verify(app: App, what: str, keys: Path | None, statements: str) -> int:
    """Verify who built, tested and released a wheel: one line per link.

    MANIFEST is a manifest.json or its folder; URL a wheel in an index, which is read to its end, or
    an index, whose pages' digests are verified. Ends with 9 where a link is broken or missing.
    """
    _ = keys and _read(keys)  # one that is not there would know no key
    known = policy.load(keys or app.home.ci / policy.FILE)
    documents, lines = list[dict[str, Any]](), list[str]()
    with Client(app.environ, retry=Retry(), note=app.console.info) as client:
        for name, sha256, bundle in _asked(app, what, statements, client):
            links = chain.follow(sha256, bundle, known, now=app.now())
            document = {"file": name, "sha256": sha256, "links": list(map(asdict, links))}
            documents.append({**document, "state": chain.state(links)})
            lines += map(printable, (f"{documents[-1]['state']}: {name}", *map(str, links)))
    if not documents:
        raise ConfigError(f"{what}: offers no wheel", hint="give what --index-url takes")
    text = "\n".join(lines[1:] if len(documents) == 1 else lines)
    app.emit(documents[0] if len(documents) == 1 else {"files": documents}, text)
    return 0 if {d["state"] for d in documents} <= {"verified", "yanked"} else TrustError.exit_code


def _asked(
    app: App, what: str, statements: str, client: Client
) -> Iterator[tuple[str, str, bytes]]:
    """Yield the name, the SHA-256 and the statements of each file that is to be verified."""
    what, given = what.rstrip("/"), statements.rstrip("/")
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
