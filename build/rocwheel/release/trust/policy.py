"""Reads `ci/trust.yaml`: which key may sign what.

A key has one role, a scope and a window of days. A channel names the roles whose statements a
promotion needs, if any. Mistakes are errors with file, line and key.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping
from datetime import date, datetime, timedelta, timezone
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

import msgspec

from rocwheel.base import files, yaml_file
from rocwheel.base.errors import ConfigError
from rocwheel.base.values import NonEmpty, Plain, Value, replace
from rocwheel.base.versions import moment, suggest
from rocwheel.base.yaml_file import FieldError
from rocwheel.release.trust.sigstore import Identity, SigstoreSigner

if TYPE_CHECKING:
    from securesystemslib import signer as sslib

PublicKey: TypeAlias = "sslib.SSlibKey"  # both for type checkers: the library is heavy
Signer: TypeAlias = "sslib.Signer | SigstoreSigner"
FILE: Final = "trust.yaml"  # in ci/
SKEW: Final = timedelta(minutes=10)  # clocks of signers, of runners and ours may differ by that
# y of a point of order 8 on Ed25519: those of all of small order are ±it, 0, ±1
ORDER_8: Final = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
Sources: TypeAlias = "tuple[str, str, str]"  # commits of JAX and XLA, version of Bazel
Algorithm = Literal[
    "ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "rsassa-pss-sha256", "sigstore"
]


class KeyRole(enum.Enum):
    BUILDER = "builder"
    RUNNER = "runner"
    PROMOTER = "promoter"
    APPROVER = "approver"  # a person's, whose word lets a cell pass that is no pass


class Revocation(Value, frozen=True, kw_only=True):
    since: date
    reason: NonEmpty


NEVER: Final = Revocation(since=date.max, reason="never")  # in a file, nothing is no such word


class TrustedKey(Value, frozen=True, kw_only=True, dict=True):
    """A public key or an identity, what it may sign, and when. An empty scope is all of them."""

    public: str = ""  # PEM
    identity: str = ""  # in place of it, with `algorithm: sigstore`
    issuer: str = ""
    algorithm: Algorithm
    role: KeyRole
    since: date
    until: date  # the last day
    channels: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    suites: tuple[str, ...] = ()
    revoked: Revocation = NEVER

    def __post_init__(self) -> None:
        if self.until < self.since:
            raise FieldError(f"{self.until} is before {self.since}", "until", hint="swap the days")
        given = {name for name in ("public", "identity", "issuer") if getattr(self, name)}
        takes = {"identity", "issuer"} if self.algorithm == "sigstore" else {"public"}
        if given != takes:
            what = f"`algorithm: {self.algorithm}` takes {' and '.join(sorted(takes))} alone"
            raise FieldError(what, hint="copy what `trust keygen` or `trust show --signer` printed")
        try:
            self.key  # noqa: B018 - reads it
        except Exception as exc:  # what libraries raise for a damaged key is no fixed list
            hint = "copy what `trust keygen` or `trust show` printed"
            raise FieldError(f"no {self.algorithm} key: {exc}", "public", hint=hint) from exc

    @cached_property
    def key(self) -> PublicKey | Identity:
        """What signatures are checked with; a key's id is the SHA-256 of its DER form."""
        if self.algorithm == "sigstore":
            return Identity(identity=self.identity, issuer=self.issuer)
        from cryptography.hazmat.primitives import serialization as form

        public = form.load_pem_public_key(self.public.encode())
        pem = public.public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo)
        if pem.decode().split() != self.public.split():  # who reviews it sees what is read
            raise ValueError("text beside one PUBLIC KEY in PEM")
        return sslib_key(public, self.algorithm)

    def refusal(
        self, role: KeyRole, scopes: tuple[str, str, str], times: tuple[datetime, datetime]
    ) -> str:
        """Return why the key may not have signed a statement of this role then; "" if it may.

        `scopes` are a channel, a family and a suite, "" for a statement without one.
        """
        if self.role is not role:
            return f"role: it is a key of the role {self.role.value}, not {role.value}"
        for what, wanted in zip(("channels", "families", "suites"), scopes, strict=True):
            scope = getattr(self, what)
            if scope and wanted not in scope and (wanted or what == "channels"):
                return f"scope: {what} are {', '.join(scope)}, not {wanted or 'none'}"
        if (min(times) + SKEW).date() < self.since:
            return f"window: the key is valid from {self.since} on"
        if (max(times) - SKEW).date() > self.until:
            return f"window: the key was valid until {self.until}"
        if max(time.date() for time in times) >= self.revoked.since:
            return f"revoked: since {self.revoked.since}: {self.revoked.reason}"
        return ""


def sslib_key(public: Any, algorithm: str) -> PublicKey:
    """Return a public key of `cryptography` as one that checks signatures.

    Raises ValueError for another algorithm, or a point for which any signature can be forged.
    """
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
    from securesystemslib.signer import SSlibKey

    der = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    key = SSlibKey.from_crypto(public, files.sha256(der), algorithm)
    sizes = {"ecdsa-sha2-nistp256": "secp256r1", "ecdsa-sha2-nistp384": "secp384r1"}
    curve = getattr(getattr(public, "curve", None), "name", "")
    if curve != sizes.get(algorithm, "") or not algorithm.startswith(key.keytype[:3]):
        raise ValueError(f"it is a key of {key.keytype} {curve}".rstrip())
    if algorithm.startswith("rsa") and public.key_size < 2048:  # noqa: PLR2004
        raise ValueError(f"its {public.key_size} bits can be factored")
    y, prime = int.from_bytes(der[-32:], "little") % 2**255, 2**255 - 19
    if algorithm == "ed25519" and (y >= prime or min(y, prime - y) in {0, 1, ORDER_8}):
        raise ValueError("a point for which signatures can be forged (small order), or not reduced")
    return key


Days = Annotated[int, msgspec.Meta(ge=1, le=366)]


class ChannelRule(Value, frozen=True, kw_only=True):
    required: tuple[KeyRole, ...] = ()
    locked: bool = False  # takes only sets whose sources are a verified pin's
    reproduced: bool = False  # takes only sets that a second builder's key says it built again
    fresh_days: Days = 7  # for how long a head statement of a release is believed

    def __post_init__(self) -> None:
        yaml_file.each_once((role.value for role in self.required), "required")
        for name in ("locked", "reproduced"):
            if getattr(self, name) and KeyRole.BUILDER not in self.required:
                what = "only a builder says what was built"
                raise FieldError(what, name, hint="require builder")


class _File(Value, frozen=True, kw_only=True):
    sigstore: str = ""
    keys: Mapping[str, TrustedKey] = {}
    channels: Mapping[str, ChannelRule] = {}


class Trust(Plain, frozen=True, kw_only=True):
    """The trust file: keys by their id, with the names people gave them, and rules by channel."""

    sha256: str = ""  # of the file; "" where there is none
    keys: Mapping[str, TrustedKey] = {}
    names: Mapping[str, str] = {}
    rules: Mapping[str, ChannelRule] = {}
    sigstore: str = ""  # a trust configuration's file; "" is the public instance
    # what a locked channel takes: sources of verified pins with their jaxlibs, and ROCm
    pins: Mapping[Sources, frozenset[str]] = {}
    rocm: frozenset[str] = frozenset()

    def rule(self, channel: str) -> ChannelRule:
        return self.rules.get(channel, ChannelRule())

    def with_rule_of(self, channel: str, asked: str) -> Trust:
        """Return the same file with this channel's rule added to the one asked for."""
        rules = (self.rule(asked), self.rule(channel))
        rule = ChannelRule(
            required=tuple({role for r in rules for role in r.required}),
            locked=any(r.locked for r in rules),
            reproduced=any(r.reproduced for r in rules),
            fresh_days=min(r.fresh_days for r in rules),
        )
        return replace(self, rules={**self.rules, asked: rule})

    def name(self, keyid: str) -> str:
        return self.names.get(keyid, f"unknown key {keyid[:12]}")


class Case(Plain, frozen=True, kw_only=True):
    trust: Trust
    channel: str
    family: str
    now: datetime

    @property
    def required(self) -> tuple[KeyRole, ...]:
        return self.trust.rule(self.channel).required

    def refusal(
        self,
        keyids: Iterable[str],
        role: KeyRole,
        claimed: object,
        seen: datetime | None = None,
        suite: str = "",
    ) -> str:
        """Return why a statement does not count, "" where it does; all its keys must be allowed.

        A signer can state any time, so the time when the store got it counts as well.
        """
        try:
            time = time_of(claimed)
        except ConfigError as exc:
            return f"time: {exc}"
        if time > self.now + SKEW:
            return f"time: it was made at {claimed}, later than now"
        times, scopes = (time, seen or time), (self.channel, self.family, suite)
        refusals = ((key, self.trust.keys[key].refusal(role, scopes, times)) for key in keyids)
        return next((f"{self.trust.name(key)}: {why}" for key, why in refusals if why), "")

    def is_void(self, keyids: Iterable[str], claimed: object, seen: datetime | None) -> bool:
        """Return whether one of these keys was revoked when it signed: it blocks nothing either."""
        try:
            last = max(time_of(claimed), seen or time_of(claimed)).date()
        except ConfigError:
            return False
        return any(last >= self.trust.keys[keyid].revoked.since for keyid in keyids)


def load(
    path: Path, *, channels: Collection[str] | None = None, least: Path | None = None
) -> Trust:
    """Read the trust file; one that is not there requires nothing and knows no key.

    `channels` are those that exist: a rule for another one would protect nothing. `least` is the
    file that rocwheel came with, of whose rules a team's own may only add to. Raises ConfigError.
    """
    shipped = load(least) if least else Trust()
    if not path.exists():
        return shipped
    document = yaml_file.load(path)
    content = document.to(_File)
    names: dict[str, str] = {}
    for name, key in content.keys.items():
        if key.key.keyid in names:
            other = names[key.key.keyid]
            hint = "each role needs a key of its own: make another with `trust keygen`"
            raise document.error(f"the same key as {other}", "keys", name, "public", hint=hint)
        names[key.key.keyid] = name
    for channel, rule in content.channels.items():
        if channels is not None and channel not in channels:
            hint = suggest(channel, frozenset(channels))
            raise document.error("no such channel", "channels", channel, hint=hint)
        roles = [
            key.role
            for key in content.keys.values()
            if key.revoked is NEVER and (not key.channels or channel in key.channels)
        ]
        for number, role in enumerate(rule.required):
            if roles.count(role) <= (rule.reproduced and role is KeyRole.BUILDER):
                at = ("channels", channel, "required", number)
                hint = f"add a key with `role: {role.value}`, made by `trust keygen`"
                what = f"{'only one' if role in roles else 'no'} key has the role {role.value}"
                raise document.error(what, *at, hint=hint)
    for channel in shipped.rules.keys() & set(channels or ()):
        mine, rule = content.channels.get(channel, ChannelRule()), shipped.rules[channel]
        is_less = rule.locked > mine.locked or rule.reproduced > mine.reproduced
        if set(rule.required) - set(mine.required) or is_less:
            what = f"requires less of {channel} than the file that rocwheel came with"
            raise document.error(what, hint=f"a team's own file may only add: see {least}")
    locked = any(rule.locked for rule in content.channels.values())
    pins, rocm = _pinned(path.parent) if locked else ({}, frozenset[str]())
    return Trust(
        pins=pins,
        rocm=rocm,
        sha256=files.sha256(path),
        keys={key.key.keyid: key for key in content.keys.values()},
        names=names,
        rules=content.channels,
        sigstore=_root(document, path.parent, content.sigstore),
    )


def _root(document: yaml_file.Document, ci: Path, name: str) -> str:
    if name and not (ci / name).is_file():
        raise document.error(f"no file {ci / name}", "sigstore", hint="put it beside this file")
    return str(ci / name) if name else ""


def _pinned(ci: Path) -> tuple[dict[Sources, frozenset[str]], frozenset[str]]:
    """Return the sources of verified pins with their jaxlibs, and nights' ROCm, by SHA-256."""
    pins, night = (yaml_file.load(ci / name) for name in ("pins.yaml", "nightly.yaml"))
    try:
        jaxlibs = {
            (pin["commit"], pin["xla_commit"], pin["bazel"]): frozenset(
                wheel["sha256"] for wheel in pin["jaxlib"]["wheels"].values()
            )
            for pin in pins.to(dict[str, Any])["pins"].values()
            if not pin.get("unverified")
        }
        sets = night.to(dict[str, Any])["sets"]
        return jaxlibs, frozenset(item["rocm"].get("sha256", "") for item in sets) - {""}
    except (AttributeError, LookupError, TypeError) as exc:
        what = f"{pins.name}, {night.name}: no pins of builds and nights: {exc!r}"
        raise ConfigError(what, hint="dist_wheels and `nightly plan` show where") from exc


def time_of(text: object) -> datetime:
    """Return a statement's time. Raises ConfigError for text that is none in UTC."""
    if (time := moment(str(text))).utcoffset():
        raise ConfigError(f"{text!r} is not a time in UTC", hint="write 2026-11-01T12:00:00Z")
    return time.astimezone(timezone.utc)
