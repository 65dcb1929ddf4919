"""Keys, a trust file and signed statements around a set that `support.wheelset` made."""

from __future__ import annotations

import json
import shutil
from datetime import date
from pathlib import Path

from support.wheelset import FAMILY, NOW, Shop, make_set, make_verdict

from rocwheel.base.values import replace
from rocwheel.cli import main
from rocwheel.records.manifest import (
    BUILD_RECORD,
    BazelRecord,
    BuildRecord,
    InvocationRecord,
    Manifest,
)
from rocwheel.records.verdict import State
from rocwheel.release import proof
from rocwheel.release.ledger import log, manifests, verdicts
from rocwheel.release.trust import envelope, signers, statements, verifier
from rocwheel.release.trust.policy import ChannelRule, KeyRole, Trust, TrustedKey

ROOT = Path(__file__).parents[2]
ENDED = "2026-05-01T11:30:00+00:00"
WINDOW = {"since": date(2026, 1, 1), "until": date(2099, 1, 1)}  # files of a test lie there today


INVOCATION = InvocationRecord(
    command="bazel build",
    actions_executed=4000,
    cache_hits=12,
    bytes_made=0,
    bytes_cached=0,
    notes=(),
    warnings=(),
    milliseconds=1,
    critical_path_milliseconds=0,
    critical_path=(),
    slowest_actions=(),
    log="",
    profile="",
)


def make_record(manifest: Manifest) -> BuildRecord:
    """What `dist_wheels` writes beside a set."""
    return BuildRecord(
        manifest=manifest.sha256,
        started=ENDED,
        host="build1",
        executor="host",
        rocm_root="/rocm",
        source_root="/jax",
        command_line="dist_wheels",
        bazel=BazelRecord(path="/bazel", version="7.7.0", invocations=()),
        milliseconds={},
        findings=(),
    )


def spelt(document) -> bytes:
    """An envelope as `trust sign` writes it, so that what is refused is what it says."""
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode() + b"\n"


class Keyring:
    """A key of each role, and others' keys, in a folder outside of any checkout."""

    def __init__(
        self,
        folder: Path,
        names=("builder", "runner", "promoter", "approver", "stranger"),
        **more: str,
    ) -> None:
        """Make a key of each name, and `more` with their roles."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.signers, self.public, self.more = folder, {}, {}, more
        for name in (*names, *more):
            key = signers.generate(folder / f"{name}.pem")
            self.public[name] = signers.public_pem(key)
            self.signers[name] = signers.signer(f"file:{folder}/{name}.pem")

    def key(self, name: str, role: str = "", **changes) -> TrustedKey:
        fields = {"algorithm": "ed25519", "role": KeyRole(role or name), **WINDOW, **changes}
        return TrustedKey(public=self.public[name], **fields)

    def trust(self, *required: str, **changes) -> Trust:
        """A trust file for `--store`; `changes` are further fields of a key, or its absence."""
        keys = {
            self.signers[name].public_key.keyid: self.key(name, role, **changes.get(name, {}))
            for name, role in {**{each.value: "" for each in KeyRole}, **self.more}.items()
            if name in self.signers and changes.get(name, {}) is not None
        }
        rule = ChannelRule(required=tuple(map(KeyRole, required)))
        names = {signer.public_key.keyid: name for name, signer in self.signers.items()}
        return Trust(sha256="7" * 64, keys=keys, names=names, rules={"": rule})


class SignedShop(Shop):
    """A shop whose channel needs a builder, a runner and a promoter; one CPython is enough."""

    manifest: Manifest  # of the set that is ready

    def __init__(self, tmp_path: Path, console, keys: Keyring, url: str = "") -> None:
        self.keys, self.tmp = keys, tmp_path
        trust = keys.trust("builder", "runner", "promoter")
        super().__init__(url or (tmp_path / "store").as_uri(), console, trust=trust)

    def trusting(self, *more: str, **changes) -> None:
        """Use another trust file, which requires these roles, too."""
        trust = self.keys.trust("builder", "runner", "promoter", *more, **changes)
        self.channel = replace(self.channel, trust=trust)

    def provenance(self, manifest: Manifest, signer: str = "builder", *, edit=None) -> bytes:
        statement = statements.provenance(manifest, make_record(manifest))
        return self.signed(edit(statement) if edit else statement, signer)

    def signed(self, statement, *names: str) -> bytes:
        data = envelope.unsigned(statement)
        for name in names:
            data = envelope.sign(data, self.keys.signers[name], name="made")
        return data

    def add(self, manifest: Manifest, signer: str = "runner", parts=(), **fields) -> str:
        """Store and sign a verdict; return the statement's key."""
        verdict = make_verdict(manifest, **fields)
        return verdicts.add(self.staging, verdict, self.keys.signers[signer], parts=parts)

    def ready(self, suffix: str | None = None) -> Manifest:
        """A set that is built, staged and gated, all of it signed."""
        folder = self.tmp / f"wheelhouse{suffix or ''}"
        manifest = make_set(folder, pythons=("3.12",), suffix=suffix)
        self.stage(folder)
        proof.add(self.staging, manifest.sha256, self.provenance(manifest))
        for suite in ("smoke", "unit"):
            self.add(manifest, suite=suite, state=State.PASS)
        self.manifest = manifest
        return manifest

    def promote(self, manifest: Manifest, signer: str | None = "promoter", **options) -> int:
        from rocwheel.release import promote

        plan = self.plan(manifest, **options)
        sign = self.keys.signers[signer] if signer else None
        return promote.apply(plan, console=self.console, signer=sign)

    def verified(self) -> str:
        """What `trust verify` says of the released set."""
        place, known = self.release, log.read(self.release).sets[self.manifest.sha256]
        bundle = manifests.bundle(place, known)
        found = verifier.follow(self.manifest.sha256, bundle, self.channel.trust, now=NOW)
        return verifier.state(found)


class World:
    """A team's data with one channel, a key of each role, and a set that is built."""

    def __init__(self, tmp_path: Path, console, monkeypatch) -> None:
        self.tmp, self.monkeypatch = tmp_path, monkeypatch
        monkeypatch.setenv("ROCWHEEL_CACHE_DIR", str(tmp_path / "cache"))  # remembers heads
        self.ci, self.keys, self.folder = tmp_path / "data/ci", tmp_path / "keys", tmp_path / "wh"
        shutil.copytree(ROOT / "ci", self.ci)
        for name in ("suites", "amdgpu_family_matrix.py"):
            source = ROOT / name
            copy = shutil.copytree if source.is_dir() else shutil.copy
            copy(source, tmp_path / "data" / name)
        self.keys.mkdir()
        self.store = (tmp_path / "store").as_uri()
        (tmp_path / "store" / "v2").mkdir(parents=True)  # a store that holds nothing is refused
        (self.ci / "channels.yaml").write_text(
            f"channels:\n  mine:\n    store: {self.store}\n    first_sets: free\n"
            '    prefixes: {"7": {staging: v2-staging, release: v2}}\n'
        )
        entries = "".join(map(self.entry, ("builder", "runner", "promoter", "approver")))
        (self.ci / "trust.yaml").write_text(
            f"keys:\n{entries}channels:\n  mine: {{required: [builder, runner, promoter]}}\n"
        )
        self.manifest = make_set(self.folder, pythons=("3.12",))
        (self.folder / BUILD_RECORD).write_bytes(make_record(self.manifest).to_bytes())
        self.shop = Shop(self.store, console)

    def entry(self, role: str) -> str:
        """Make a key; return what the trust file says of it."""
        key = signers.generate(self.keys / f"{role}.pem")
        public = "".join(f"      {line}\n" for line in signers.public_pem(key).splitlines())
        return (
            f"  {role}:\n    algorithm: ed25519\n    role: {role}\n    since: 2026-01-01\n"
            f"    until: 2099-01-01\n    public: |\n{public}"
        )

    def uri(self, role: str) -> str:
        return f"file:{self.keys / role}.pem"

    def signer(self, role: str):
        return signers.signer(self.uri(role))

    def run(self, *words: str) -> int:
        return main([*map(str, words), f"--ci-dir={self.ci}"])

    def target(self, *words: str) -> tuple[str, ...]:
        return (*words, "--channel=mine", f"--family={FAMILY.name}")

    def gate(self) -> None:
        for suite in ("smoke", "unit"):
            verdict = make_verdict(self.manifest, suite=suite)
            verdicts.add(self.shop.staging, verdict, self.signer("runner"))

    def staged(self) -> None:
        """Sign how the set was built, and stage it."""
        proof.state_build(self.folder, self.signer("builder"))
        assert self.run(*self.target("stage", self.folder)) == 0

    def released(self) -> None:
        self.staged()
        self.gate()
        assert self.change("promote") == 0

    def change(self, action: str, *words: str, signer: str = "promoter") -> int:
        """Do this with the set, or the file that is named."""
        what = () if "--file" in words else (f"--manifest={self.manifest.sha256}",)
        sign = (f"--signer={self.uri(signer)}",) if signer else ()
        return self.run(*self.target(action, *what, *words, "--by=ann", "--reason=it leaks"), *sign)

    @property
    def bundle(self) -> Path:
        return self.shop.store.root / self.shop.release.attestation(
            self.manifest.sha256, "bundle.jsonl"
        )


__all__ = ["FAMILY", "NOW", "Keyring", "SignedShop", "World", "make_record", "spelt"]
