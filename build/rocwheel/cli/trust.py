"""`trust`: keys that sign, who may sign what, the chain behind a wheel, rights in a bucket."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import click

from rocwheel.base import files
from rocwheel.base.choices import ROLES
from rocwheel.base.console import columns, printable
from rocwheel.base.download import Client, Retry
from rocwheel.base.errors import ConfigError, named
from rocwheel.base.values import replace
from rocwheel.cli.app import App
from rocwheel.cli.options import PATH, dry_run, group, option
from rocwheel.cli.target import (
    ManifestOptions,
    PersonOptions,
    Target,
    TargetOptions,
    judging,
    key_of,
    manifest_options,
    person_options,
    signer_option,
    target_options,
    trusting,
)
from rocwheel.records import families, manifest, places
from rocwheel.records.places import Place
from rocwheel.release import operations, promote, proof, rights, withdraw
from rocwheel.release.index.channels import Channel
from rocwheel.release.ledger import log
from rocwheel.release.ledger.state import Action, IndexState
from rocwheel.release.operations import Who
from rocwheel.release.trust import TrustError, envelope, head, policy, signers, verifier
from rocwheel.release.trust.policy import KeyRole, Signer
from rocwheel.release.trust.sigstore import SigstoreSigner

_DAYS = click.IntRange(1, 36_500)
_FILES = re.compile(r"/files/[0-9a-f]{16}\Z")  # where a wheel lies, which is no index
at_least_option = option(
    "--at-least",
    section="Target",
    metavar="N",
    type=click.IntRange(min=0),
    default=0,
    help="Refuse a release whose log ends before this entry.",
)


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
@option("--days", metavar="DAYS", type=_DAYS, default=365, help="How long it is valid.")
@click.pass_obj
def keygen(app: App, file: Path, role: str, days: int) -> None:
    """Make an Ed25519 key that its owner alone can read; print its entry of ci/trust.yaml."""
    today = app.now().date()
    until = today + timedelta(days)
    _entry(app, file, {"role": role, "since": today, "until": until})


def _entry(app: App, file: Path, fields: dict[str, Any]) -> None:
    key = signers.generate(file)
    public = "".join(f"      {line}\n" for line in signers.public_pem(key).splitlines())
    rest = "".join(f"    {field}: {value}\n" for field, value in fields.items())
    text = f"  {file.stem}:\n    algorithm: {key.scheme}\n{rest}    public: |\n{public}"
    app.emit({"name": file.stem, "keyid": key.keyid, "entry": text}, text.rstrip("\n"))


@trust.command("show")
@signer_option
@click.pass_obj
def show(app: App, signer: str) -> None:
    """List the keys of ci/trust.yaml, or print the entry of one.

    With --signer it prints the entry of that key.
    """
    if key := key_of(app, signer):
        public: Any = key.public_key
        if isinstance(key, SigstoreSigner):
            part = {"algorithm": "sigstore", "identity": public.identity, "issuer": public.issuer}
            text = "\n".join(f"{name}: {value}" for name, value in part.items())
        else:
            text = signers.public_pem(public)
            part = {"algorithm": public.scheme, "public": text}
        return app.emit({"keyid": public.keyid, **part}, text)
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


@trust.command("sign")
@click.argument("path", metavar="FILE", type=PATH)
@signer_option
@click.pass_obj
def sign(app: App, path: Path, signer: str) -> None:
    """Sign a statement from a machine without a key, such as a wheelhouse's provenance.

    FILE is the statement, or the wheelhouse. Needs --signer.
    """
    key = _given(app, signer)
    if path.is_dir():
        role = policy.load(app.home.ci / policy.FILE).keys.get(key.public_key.keyid)
        if role and role.role is not KeyRole.BUILDER:
            what = f"{path}: a builder states what was built, and this key is a {role.role.value}'s"
            raise TrustError(what, hint="sign it with a builder's key: --signer")
        path = proof.state_build(path, key)
    else:
        files.write(path, envelope.sign(_read(path), key, name=str(path)))
    app.emit({"signed": str(path), "keyid": key.public_key.keyid}, f"signed {path}")


def _given(app: App, signer: str) -> Signer:
    if key := key_of(app, signer):
        return key
    raise click.UsageError("give --signer URI: the key that signs")


def _read(path: Path) -> bytes:
    hint = "check the path; statements of a release are fetched as docs/how-to/trust.md says"
    with named(path, ConfigError, hint=hint):
        return files.read(path, most=64 << 20)


@trust.command("approve")
@click.argument("cells", metavar="SUITE:CPYTHON[=RAN]...", nargs=-1, required=True)
@manifest_options
@person_options
@signer_option
@dry_run
@click.pass_obj
def approve(
    app: App,
    *,
    cells: tuple[str, ...],
    target: ManifestOptions,
    person: PersonOptions,
    signer: str,
    dry_run: bool,
) -> None:
    """Sign that cells of a staged set may be released: flaky, untested, or a family's first.

    The approval covers this channel and the failures of today, not later ones. Needs --signer and
    --reason.
    """
    key, who = _given(app, signer), withdraw.with_reason(person.who(app), person.reason)
    where = Target(app, target)
    manifest, channel = where.manifest(app, target.manifest), judging(app, where.channel)
    families = where.families_of(manifest)
    planned = promote.plan(manifest, families, channel, where.store, who=who, passes_held=True)
    keys = promote.approve(planned, cells, signer=key, dry_run=dry_run)
    document = {"manifest": manifest.sha256, "statements": keys}
    lines = "\n".join(f"approve  {where.store.locate(key)}" for key in keys)
    app.emit(document, lines if dry_run else f"approved {' '.join(cells)}")


@trust.command("rotate")
@click.argument("name")
@click.argument("file", type=PATH)
@option("--overlap", metavar="DAYS", type=_DAYS, default=14, help="Days on which both keys count.")
@click.pass_obj
def rotate(app: App, name: str, file: Path, overlap: int) -> None:
    """Make a key, in FILE, that replaces NAME; print its entry and the last day of the old one."""
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


def stale(
    app: App, releases: Iterable[tuple[Place, IndexState]], channel: Channel, at_least: int
) -> tuple[list[str], list[str]]:
    """Return why releases are older than what was seen, and which head statements lag."""
    problems, lags, seen = list[str](), list[str](), head.Seen(app.cache)
    for place, state in releases:
        how: Any = {"now": app.now(), "at_least": at_least}
        wrong, lag = head.check(place, state, channel, seen, **how)
        problems += wrong
        lags += [lag] if lag else []
    return problems, lags


@trust.command("renew")
@target_options
@person_options
@signer_option
@dry_run
@click.pass_obj
def renew_heads(
    app: App, target: TargetOptions, person: PersonOptions, signer: str, dry_run: bool
) -> None:
    """Sign a new head statement, which names the last entry of a release's log.

    Commands that change a release with a promoter's key do this, too. Needs --signer.
    """
    key, where, who = _given(app, signer), Target(app, target), person.who(app)
    channel, releases = trusting(app, where.channel), [place for _, place in where.pairs()]
    how: Any = {"dry_run": dry_run}
    numbers = {place.location: renew(app, place, channel, key, who, **how) for place in releases}
    lines = [f"{name}: entry {number}" for name, number in numbers.items() if number]
    app.emit({"heads": numbers}, "\n".join(lines) or "nothing was released")


def renew(
    app: App, place: Place, channel: Channel, signer: Signer, who: Who, *, dry_run: bool = False
) -> int:
    """Renew the head statement of a release; return the number of its last entry."""
    if place.is_staging:
        return 0
    state = log.read(place)
    operations.check_sound(place, state)
    proof.check_signer(channel, place, signer, who=who, action=Action.PROMOTE)
    if not dry_run:
        head.renew(place, state, channel, signer, now=app.now())
    return state.number


@trust.command("verify")
@click.argument("what", metavar="WHAT...", nargs=-1, required=True)
@option("--keys", type=PATH, help="The trust file; default: ci/trust.yaml.")
@option(
    "--statements",
    metavar="PATH|URL",
    help="The set's statements, or the index that has them; default: bundle.jsonl beside it.",
)
@option(
    "--channel",
    metavar="NAME",
    help="The channel it was released to; default: one whose rule in the trust file names a "
    "promoter.",
)
@option(
    "--index-url",
    metavar="URL",
    help="Where it was released, for an index that is read from a mirror.",
)
@at_least_option
@click.pass_obj
def verify(
    app: App,
    *,
    what: tuple[str, ...],
    keys: Path | None,
    statements: str,
    channel: str,
    index_url: str,
    at_least: int,
) -> int:
    """Verify who built, tested and released wheels: one line per link.

    WHAT is a wheel, a manifest.json or its folder, or the URL of a wheel or an index. A wheel is
    downloaded whole; for an index, the digests on its pages are verified. The exit status is 9 if
    a link is broken or missing, or an index is older than one seen before.
    """
    for text in (*what, statements):
        if "://" in text and not text.startswith(("https://", "http://")):
            hint = "give an http or https address, or a path; `index serve` serves a store"
            raise ConfigError(f"{text}: is read by no installer", hint=hint)
    _ = keys and _read(keys)  # one that is not there would know no key
    known = policy.load(keys or app.home.ci / policy.FILE)
    channels = {n for n, rule in known.rules.items() if KeyRole.PROMOTER in rule.required}
    channels = {channel} if channel else channels
    documents, lines = list[dict[str, Any]](), list[str]()
    with Client(app.environ, retry=Retry(), note=app.console.info) as client:
        seen = head.Seen(app.cache)
        reader = head.Reader(client, known, seen, now=app.now(), at_least=at_least)
        asked = (_asked(app, one, statements, reader) for one in what)
        for item in itertools.chain.from_iterable(asked):
            how: Any = {"now": app.now(), "channels": channels, "url": index_url or item.index}
            bundle, more = reader.statements(item)
            links = (*verifier.follow(item.sha256, bundle, known, **how), *more)
            document: dict[str, Any] = {"file": item.name, "sha256": item.sha256}
            document |= {"links": [x.to_json() for x in links], "state": verifier.state(links)}
            documents.append(document)
            lines += map(printable, (f"{document['state']}: {item.name}", *map(str, links)))
    if not documents:
        raise ConfigError(f"{' '.join(what)}: offers no wheel", hint="give what --index-url takes")
    text = "\n".join(lines[1:] if len(documents) == 1 else lines)
    app.emit(documents[0] if len(documents) == 1 else {"files": documents}, text)
    return 0 if {d["state"] for d in documents} <= {"verified", "yanked"} else TrustError.exit_code


def _asked(app: App, asked: str, statements: str, reader: head.Reader) -> Iterator[head.Asked]:
    what, given = asked.rstrip("/"), statements.rstrip("/")
    if "://" not in what:
        path = app.cwd / what
        if path.is_file() and path.suffix != ".whl" and path.name != manifest.MANIFEST:
            hint = "give a wheel, a manifest.json, its folder, or a URL"
            raise ConfigError(f"{path}: neither a wheel nor a manifest", hint=hint)
        whole = sorted(path.glob("*.whl")) if path.is_dir() else ()
        for one in (*whole, *([path / manifest.MANIFEST] if path.is_dir() else [path])):
            if one.suffix != ".whl" and "://" in given:
                if whole:
                    continue  # the index has its wheels
                raise click.UsageError("--statements URL is for wheels; give a file for a set")
            sha256 = files.sha256(one) if one.is_file() else _read(one).hex()
            if "://" in given:
                yield replace(reader.offer(given, one.name), name=str(one), sha256=sha256)
            else:
                bundle = _read(app.cwd / given if given else one.parent / places.BUNDLE)
                yield head.Asked(name=str(one), sha256=sha256, bundle=bundle)
    elif what.endswith(".whl"):
        folder, _, name = what.rpartition("/")
        if _FILES.search(folder) and "://" not in given:
            raise click.UsageError("--statements URL says which index offers the wheel")
        index = given if _FILES.search(folder) else folder
        found = reader.offer(index, unquote(name))
        yield replace(found, name=what, sha256=reader.client.digest(found.url)[0])
    else:
        yield from reader.offers(what)


@trust.command("rights")
@option(
    "--role",
    type=click.Choice(ROLES),
    required=True,
    help="What the machine does; docs/how-to/buckets.md has a table.",
)
@option(
    "--repository",
    metavar="OWNER/NAME",
    help="Print the role's trust policy for GitHub Actions of this repository, too.",
)
@target_options
@click.pass_obj
def show_rights(app: App, role: str, repository: str, target: TargetOptions) -> None:
    """Print the S3 policy of a role: what it may do in the channel's bucket, and nothing more.

    Without --family it is for all families; name one for a runner.
    """
    if repository and repository.count("/") != 1:
        raise ConfigError(f"--repository: {repository!r}: no repository", hint="write OWNER/NAME")
    family = families.named(target.family, {}).name if target.family else "*"
    document = rights.policy(target.open(app), rights.ROLES[role], family=family)
    if repository:
        trust = rights.trust(rights.ROLES[role], repository)
        document = {"rights": document, "trust": trust}
    app.emit(document, json.dumps(document, indent=2))
