"""Sigstore in place of keys: from the build to a page that names PEP 740's provenance.

Client, roots and pip are real, Sigstore's services those of `support.sigstore`.
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import sys
import tarfile
from datetime import date, datetime, timezone
from pathlib import Path

import pytest
import requests
from pypi_attestations import (
    Attestation,
    AttestationError,
    Distribution,
    GitHubPublisher,
    Provenance,
)
from sigstore.models import ClientTrustConfig
from sigstore.verify import Verifier
from support import engines, sigstore
from support.serving import serving
from support.trust import World
from support.wheelset import wheel_key

from rocwheel.base.errors import ConfigError, StoreError
from rocwheel.cli import main
from rocwheel.release.trust import TrustError, envelope, policy, signers
from rocwheel.release.trust.policy import KeyRole, Trust, TrustedKey
from rocwheel.release.trust.sigstore import Identity, SigstoreSigner

pytestmark = [
    pytest.mark.integration,
    pytest.mark.needs("node", "npm"),
    pytest.mark.xdist_group("sigstore"),
]
KINDS = {"provenance": "build", "test-result": "gate", "verification_summary": "release"}
ROLES = {"builder": "build", "runner": "gate", "promoter": "release", "approver": "people"}


@pytest.fixture(scope="module")
def instance(tmp_path_factory):
    with sigstore.instance(tmp_path_factory.mktemp("sigstore")) as running:
        yield running


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """Somebody's own instance, which gives certificates for any identity."""
    with sigstore.instance(tmp_path_factory.mktemp("other")) as running:
        yield running


class Team(World):
    """A team without a key: each role is a workflow of its repository."""

    instance: sigstore.Instance

    def entry(self, role: str) -> str:
        shutil.copy(self.instance.config, self.ci / "trust_config.json")
        who = f"identity: {sigstore.identity(ROLES[role])}\n    issuer: {sigstore.GITHUB}"
        return (
            f"  {role}:\n    algorithm: sigstore\n    {who}\n    role: {role}\n"
            "    since: 2026-01-01\n    until: 2099-01-01\n"
        )

    def uri(self, role: str) -> str:
        """Become the workflow of a role, whose machine has a token."""
        self.monkeypatch.setenv("SIGSTORE_IDENTITY_TOKEN", sigstore.token(ROLES[role]))
        return self.instance.uri

    def signer(self, role: str):
        return signers.signer(self.instance.uri, token=sigstore.token(ROLES[role]))


@pytest.fixture
def team(tmp_path, console, monkeypatch, instance):
    monkeypatch.setattr(Team, "instance", instance, raising=False)
    made = Team(tmp_path, console, monkeypatch)
    trust = made.ci / "trust.yaml"
    trust.write_text("sigstore: trust_config.json\n" + trust.read_text())
    return made


def test_a_set_is_released_and_verified_without_a_key_or_a_network(team, capsys, instance) -> None:
    """A fresh machine has the trust file, Sigstore's roots and the statements, nothing else."""
    team.released()
    fresh = team.tmp / "fresh"
    fresh.mkdir()
    for path in (team.bundle, team.ci / "trust.yaml", team.ci / "trust_config.json"):
        shutil.copy(path, fresh)
    wheel = team.manifest.built[0].filename
    shutil.copy(team.shop.store.root / wheel_key(team.shop.release, wheel), fresh)
    capsys.readouterr()
    assert main(["trust", "verify", f"{fresh}/{wheel}", f"--keys={fresh}/trust.yaml"]) == 0
    lines = capsys.readouterr().out.splitlines()
    said = sorted(line.split()[1] for line in lines)
    assert said == ["builder", "promoter", "runner", "runner"]
    assert all(line.startswith("ok") for line in lines)
    every = (fresh / "bundle.jsonl").read_bytes().splitlines()
    for kind, workflow in KINDS.items():
        bundle = next(line for line in every if kind in base64.b64decode(payload(line)).decode())
        assert signed_by(workflow, bundle, fresh / wheel, instance)
    assert not signed_by("people", bundle, fresh / wheel, instance)


def payload(line: bytes) -> str:
    return json.loads(line)["dsseEnvelope"]["payload"]


def signed_by(workflow: str, line: bytes, wheel: Path, instance) -> bool:
    """Whether Sigstore's own command takes a line for this workflow's bundle about the wheel."""
    bundle = wheel.with_name("one.sigstore.json")
    bundle.write_bytes(line)
    words = ("-m", "sigstore", f"--trust-config={instance.config}", "verify", "identity")
    words += (f"--bundle={bundle}", "--offline", f"--cert-oidc-issuer={sigstore.GITHUB}")
    words += (f"--cert-identity={sigstore.identity(workflow)}", str(wheel))
    done = subprocess.run([sys.executable, *words], check=False, capture_output=True, text=True)
    assert done.returncode in {0, 1}, done.stderr
    return done.returncode == 0


@pytest.fixture
def served(team):
    """A team whose release is served here: loopback is a secure origin, as PEP 740 asks."""
    root = team.shop.store.root
    root.mkdir(parents=True, exist_ok=True)
    with serving(team.shop.store) as site:
        channels = team.ci / "channels.yaml"
        channels.write_text(channels.read_text() + f"    public_url: {site.url.rstrip('/')}\n")
        team.index = f"{site.url.rstrip('/')}/{team.shop.release.index}/"
        yield team


def provenances(team) -> dict[str, Provenance]:
    """What the pages of an index name, both forms of them, read as their readers do."""
    found = {}
    for wheel in team.manifest.built:
        url = f"{team.index}{wheel.project}/"
        accept = {"Accept": "application/vnd.pypi.simple.v1+json"}
        page = requests.get(url, headers=accept, timeout=10).json()
        (file,) = (item for item in page["files"] if item["filename"] == wheel.filename)
        assert page["meta"]["api-version"] == "1.3"
        html = requests.get(url, headers={"Accept": "text/html"}, timeout=10).text
        assert f'data-provenance="{file["provenance"]}"' in html
        data = requests.get(file["provenance"], timeout=10).content
        found[wheel.filename] = Provenance.model_validate_json(data)
    return found


def test_pages_name_the_provenance_of_each_wheel(served, monkeypatch, instance) -> None:
    """PyPI's own library verifies what PEP 740 asks: publisher, name and digest."""
    served.released()
    found = provenances(served)
    root = served.shop.store.root
    config = ClientTrustConfig.from_json(instance.config.read_text())
    verifier = Verifier(trusted_root=config.trusted_root)
    monkeypatch.setattr(Verifier, "production", lambda **_: verifier)
    release = GitHubPublisher(repository=sigstore.REPOSITORY, workflow="release.yml")
    assert len(found) == len(served.manifest.built)
    for wheel in served.manifest.built:
        (bundle,) = found[wheel.filename].attestation_bundles
        assert bundle.publisher == release
        (attestation,) = bundle.attestations
        dist = Distribution.from_file(root / wheel_key(served.shop.release, wheel.filename))
        kind, _ = attestation.verify(release, dist, offline=True)
        assert kind == "https://docs.pypi.org/attestations/publish/v1"
        wrong = GitHubPublisher(repository="others/wheels", workflow="release.yml")
        with pytest.raises(AttestationError):
            attestation.verify(wrong, dist, offline=True)
        with pytest.raises(AttestationError, match="digest"):
            attestation.verify(release, Distribution(name=dist.name, digest="0" * 64))


def test_installers_take_pages_with_a_provenance(served) -> None:
    served.released()
    wheel = next(item for item in served.manifest.built if item.project.endswith("pjrt"))
    pip = ("-m", "pip", "download", "--no-deps", f"--index-url={served.index}", wheel.project)
    got = served.tmp / "got"
    subprocess.run(
        [sys.executable, *pip, f"--dest={got}", "--only-binary=:all:", "--quiet",
         "--platform=manylinux_2_28_x86_64", "--platform=manylinux_2_27_x86_64", "--platform=any"],
        check=True,
    )  # fmt: skip
    assert [path.name for path in got.iterdir()] == [wheel.filename]


def test_a_provenance_that_is_gone_is_seen(served, capsys) -> None:
    served.released()
    check = served.target("index", "check")
    assert served.run(*check) == 0, capsys.readouterr()
    lost = min(served.shop.store.root.rglob("*.provenance"))
    lost.unlink()
    assert served.run(*check) == 7
    said = "".join(capsys.readouterr())
    assert f"{lost.name}: missing" in said


def test_an_identity_that_is_no_publisher_releases_without_provenance(
    served, capsys, monkeypatch
) -> None:
    """PEP 740's readers know workflows of GitHub and GitLab, and Google's accounts."""
    trust = served.ci / "trust.yaml"
    text, who = trust.read_text(), "release@team.example"
    text = text.replace(sigstore.identity("release"), who)
    parts = text.split("  promoter:\n")
    parts[1] = parts[1].replace(sigstore.GITHUB, "https://oidc.team.example", 1)
    trust.write_text("  promoter:\n".join(parts))
    token = sigstore.plain_token(who, "https://oidc.team.example")
    uri = served.instance.uri

    def of(role: str) -> str:
        monkeypatch.setenv(
            "SIGSTORE_IDENTITY_TOKEN", token if role == "promoter" else sigstore.token(ROLES[role])
        )
        return uri

    served.uri = of
    served.released()
    assert "no provenance on pages" in capsys.readouterr().err
    page = requests.get(
        f"{served.index}{served.manifest.built[0].project}/index.json", timeout=10
    ).json()
    assert page["meta"]["api-version"] == "1.1"
    assert not any("provenance" in file for file in page["files"])


def test_a_stopped_promotion_logs_no_wheel_twice(team, monkeypatch, capsys) -> None:
    """Each entry of the public log stays for ever."""
    signed, sign = [], SigstoreSigner.provenances

    def counting(self, wheels):
        signed.extend(wheels)
        return sign(self, wheels)

    def stopping(*_):
        raise StoreError("stopped", hint="")

    monkeypatch.setattr(SigstoreSigner, "provenances", counting)
    with monkeypatch.context() as stopped:
        stopped.setattr("rocwheel.release.promote.verdicts.keys", stopping)
        with pytest.raises(AssertionError):
            team.released()
    first = list(signed)
    promote = team.target("promote", f"--manifest={team.manifest.sha256}")
    assert team.run(*promote, f"--signer={team.uri('promoter')}") == 0, capsys.readouterr().err
    assert sorted(first) == sorted(wheel.filename for wheel in team.manifest.built)
    assert signed == first


def keyed(workflow: str = "build", **changes) -> TrustedKey:
    fields = {"identity": sigstore.identity(workflow), "issuer": sigstore.GITHUB, **changes}
    return TrustedKey(
        algorithm="sigstore", role=KeyRole.BUILDER, since=date(2026, 1, 1), until=date(2099, 1, 1),
        **fields,
    )  # fmt: skip


def trusting(config, *keys: TrustedKey) -> Trust:
    return Trust(keys={key.key.keyid: key for key in keys}, sigstore=str(config))


@pytest.fixture(scope="module")
def line(instance) -> bytes:
    """A statement, signed by the workflow that builds."""
    return made(instance.uri)


def made(uri: str, *, subject: str = "a", **claims) -> bytes:
    statement = envelope.Statement(
        predicate_type="https://slsa.dev/provenance/v1",
        subject=(
            envelope.StatementSubject(name=subject, digest=envelope.Sha256Digest(sha256="ab" * 32)),
        ),
        predicate={},
    )
    signer = signers.signer(uri, token=sigstore.token("build", **claims))
    return envelope.sign(envelope.unsigned(statement), signer, name="it")


def test_a_line_is_a_bundle_and_says_when_it_was_signed(line, instance) -> None:
    signed = envelope.read(line, trusting(instance.config, keyed()), name="it")
    assert signed.statement.subjects == {"a": "ab" * 32}
    age = datetime.now(timezone.utc) - signed.logged
    assert 0 <= age.total_seconds() < 600


def entry(document) -> dict:
    return document["verificationMaterial"]["tlogEntries"][0]


def swap(document, other: bytes, *names: str) -> None:
    """Take a part of another bundle."""
    source = json.loads(other)
    for name in names[:-1]:
        document, source = document[name], source[name]
    document[names[-1]] = source[names[-1]]


ATTACKS = {
    "another payload": lambda d, o: swap(d, o, "dsseEnvelope", "payload"),
    "another signature": lambda d, o: swap(d, o, "dsseEnvelope", "signatures"),
    "another envelope": lambda d, o: swap(d, o, "dsseEnvelope"),
    "another certificate": lambda d, o: swap(d, o, "verificationMaterial", "certificate"),
    "another's entry of the log": lambda d, o: swap(d, o, "verificationMaterial", "tlogEntries"),
    "no entry of the log": lambda d, _: d["verificationMaterial"].update(tlogEntries=[]),
    "no promise of the log": lambda d, _: entry(d).pop("inclusionPromise"),
    "no proof of inclusion": lambda d, _: entry(d).pop("inclusionProof"),
    "a later time": lambda d, _: entry(d).update(integratedTime="1895491769"),
    "an earlier time": lambda d, _: entry(d).update(integratedTime="1695491769"),
    "another log": lambda d, _: entry(d)["logId"].update(
        keyId=base64.b64encode(b"x" * 32).decode()
    ),
    "another root hash": lambda d, _: entry(d)["inclusionProof"].update(
        rootHash=base64.b64encode(b"x" * 32).decode()
    ),
    "no certificate": lambda d, _: d["verificationMaterial"].pop("certificate"),
    "a certificate that is none": lambda d, _: d["verificationMaterial"]["certificate"].update(
        rawBytes="AAAA"
    ),
    "base64 that is none": lambda d, _: d["verificationMaterial"]["certificate"].update(
        rawBytes="?"
    ),
    "no signature": lambda d, _: d["dsseEnvelope"].update(signatures=[]),
    "two signatures": lambda d, _: d["dsseEnvelope"].update(
        signatures=d["dsseEnvelope"]["signatures"] * 2
    ),
    "an older bundle": lambda d, _: d.update(
        mediaType="application/vnd.dev.sigstore.bundle+json;version=0.1"
    ),
    "a list for material": lambda d, _: d.update(verificationMaterial=[]),
    "material of numbers": lambda d, _: d.update(verificationMaterial={"certificate": 1}),
    "deep material": lambda d, _: d["verificationMaterial"].update(
        x=json.loads("[" * 900 + "]" * 900)
    ),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_was_changed_is_refused(line, instance, attack) -> None:
    """`line` is of the workflow that builds, the parts are of another of its statements."""
    later = made(instance.uri, subject="b")
    bad = sigstore.edited(line, lambda document: ATTACKS[attack](document, later))
    if attack == "another envelope":  # which is signed by another certificate, of the same workflow
        assert json.loads(later)["verificationMaterial"] != json.loads(line)["verificationMaterial"]
    with pytest.raises(TrustError, match="it"):
        envelope.read(bad, trusting(instance.config, keyed()), name="it")


@pytest.mark.parametrize(
    ("key", "says"),
    [
        (keyed("gate"), "is not in the trust file"),
        (keyed(issuer="https://accounts.google.com"), "is not in the trust file"),
        (keyed(identity=sigstore.identity("build") + "x"), "is not in the trust file"),
    ],
)
def test_only_the_identity_that_the_trust_file_names_counts(line, instance, key, says) -> None:
    with pytest.raises(TrustError, match=says):
        envelope.read(line, trusting(instance.config, key), name="it")


def test_another_instance_signs_nothing(other, instance) -> None:
    """Whoever runs a Fulcio gives out certificates for any identity: its root is not ours."""
    with pytest.raises(TrustError, match="it: signature: sigstore: cannot check"):
        envelope.read(made(other.uri), trusting(instance.config, keyed()), name="it")
    with pytest.raises(TrustError, match="it: signature: sigstore: cannot check"):
        envelope.read(made(other.uri), trusting("", keyed()), name="it")


def test_the_name_of_an_identity_is_no_signature(line, instance) -> None:
    """An envelope that claims a key's id where the trust file has an identity."""
    payload = json.loads(line)["dsseEnvelope"]["payload"]
    forged = {
        "payload": payload, "payloadType": envelope.PAYLOAD,
        "signatures": [{"keyid": keyed().key.keyid, "sig": "AAAA"}],
    }  # fmt: skip
    data = sigstore.edited(json.dumps(forged).encode(), lambda _: None)
    with pytest.raises(TrustError, match="it: signature: sigstore: cannot check"):
        envelope.read(data, trusting(instance.config, keyed()), name="it")


def test_a_revocation_counts_from_the_logs_time_on(line, instance) -> None:
    """What the statement claims as its time is long before."""
    today = datetime.now(timezone.utc)
    revoked = policy.Revocation(since=today.date(), reason="taken over")
    trust = trusting(instance.config, keyed(revoked=revoked))
    signed = envelope.read(line, trust, name="it")
    case = policy.Case(trust=trust, channel="", family="", now=today)
    early = "2026-05-01T11:00:00Z"
    assert case.refusal(signed.signatures, KeyRole.BUILDER, early) == ""
    assert "revoked" in case.refusal(signed.signatures, KeyRole.BUILDER, early, signed.logged)


def test_a_bundle_holds_one_signature(line, instance, tmp_path) -> None:
    signers.generate(tmp_path / "a.pem")
    key = signers.signer(f"file:{tmp_path}/a.pem")
    with pytest.raises(TrustError, match="one signature alone"):
        envelope.sign(line, key, name="it")
    statement = envelope.parse(line, name="it").statement
    signer = signers.signer(instance.uri, token=sigstore.token("build"))
    signed = envelope.sign(envelope.unsigned(statement), key, name="it")
    with pytest.raises(TrustError, match="one signature alone"):
        envelope.sign(signed, signer, name="it")


@pytest.mark.parametrize(
    ("token", "says"),
    [
        ("", "no OIDC identity here\nhint:  in GitHub Actions give the job `id-token: write`"),
        ("abc", "cannot sign: Identity token is malformed"),
        (sigstore.token("build", seconds=-60), "cannot sign: Identity token"),
        (sigstore.token("build", aud="x"), "cannot sign: Identity token"),
    ],
    ids=["none", "malformed", "expired", "of another audience"],  # a token names the second
)
def test_who_has_no_identity_hears_of_it_first(team, capsys, monkeypatch, token, says) -> None:
    """Before anything is read, gated or promoted."""
    for name in ("GITHUB_ACTIONS", "GITLAB_CI", "BUILDKITE", "CIRCLECI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SIGSTORE_IDENTITY_TOKEN", token)
    assert team.run("trust", "sign", team.folder, f"--signer={team.instance.uri}") == 9
    error = capsys.readouterr().err
    assert says in error
    assert "Traceback" not in error


def test_the_entry_that_show_prints_is_what_a_trust_file_takes(team, capsys) -> None:
    assert team.run("trust", "show", f"--signer={team.uri('builder')}") == 0
    shown = capsys.readouterr().out
    assert f"identity: {sigstore.identity('build')}" in shown
    for line in shown.splitlines():
        assert f"    {line}\n" in (team.ci / "trust.yaml").read_text()
    assert team.run("trust", "show") == 0


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("sigstore: trust_config.json", "sigstore: none.json"), "no file"),
        (("    issuer: ", "    public: x\n    issuer: "), "takes identity and issuer alone"),
        (("algorithm: sigstore", "algorithm: ed25519"), "takes public alone"),
    ],
)
def test_mistakes_in_a_trust_file_have_a_place(team, capsys, change, says) -> None:
    path = team.ci / "trust.yaml"
    path.write_text(path.read_text().replace(*change, 1))
    assert team.run("trust", "show") == 3
    error = capsys.readouterr().err
    assert says in error
    assert "trust.yaml:" in error


def test_a_trust_configuration_that_is_none_is_named(team, capsys) -> None:
    (team.tmp / "bad.json").write_text("{}")
    team.uri("builder")
    assert team.run("trust", "sign", team.folder, f"--signer=sigstore:{team.tmp}/bad.json") == 3
    assert "bad.json: no trust configuration" in capsys.readouterr().err


def test_without_the_package_it_is_named(line, instance, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "sigstore.models", None)
    with pytest.raises(ConfigError, match=r"the package sigstore.*is not there") as told:
        envelope.read(line, trusting(instance.config, keyed()), name="it")
    assert ".[sigstore]" in told.value.hint


def test_a_certificate_that_is_about_to_end_is_renewed(instance, monkeypatch) -> None:
    signer = signers.signer(instance.uri, token=sigstore.token("build"))
    first = signer._certificate()
    assert signer._certificate() == first
    signer._until = datetime.now(timezone.utc)
    assert signer._certificate().public_key() != first.public_key()


@pytest.fixture(scope="session")
def published():
    """Attestations of PyPI's own library, made by GitHub's runners and Sigstore's public instance.

    They lie in the library's source distribution, from the package index.
    """
    folder = engines.folder() / "attestations"
    folder.mkdir(parents=True, exist_ok=True)
    sdist = folder / "pypi_attestations-0.0.30.tar.gz"
    if not sdist.exists():
        pip = ("-m", "pip", "download", "--quiet", "--no-deps", "--no-binary=:all:", "-d")
        subprocess.run([sys.executable, *pip, str(folder), "pypi-attestations==0.0.30"], check=True)
    with tarfile.open(sdist) as archive:
        name = (
            "pypi_attestations-0.0.30/test/assets/pypi_attestations-0.0.19.tar.gz.slsa.attestation"
        )
        return Attestation.model_validate_json(archive.extractfile(name).read())


def test_a_statement_of_the_public_instance_is_verified_offline(published) -> None:
    """A real provenance, by the roots that the package has; one of another workflow is refused."""
    bundle = json.loads(published.to_bundle().to_json())
    data = sigstore.edited(json.dumps(bundle).encode(), lambda _: None)
    where = "https://github.com/trailofbits/pypi-attestations/.github/workflows/release.yml@refs/tags/v0.0.19"
    signed = envelope.read(data, trusting("", keyed(identity=where)), name="it")
    assert signed.statement.predicate_type == "https://slsa.dev/provenance/v1"
    assert signed.statement.subjects
    assert Identity(identity=where, issuer=sigstore.GITHUB).keyid in signed.signatures
    with pytest.raises(TrustError):
        envelope.read(data, trusting("", keyed()), name="it")
    broken = sigstore.edited(data, lambda d: d["dsseEnvelope"]["signatures"][0].update(sig="AAAA"))
    with pytest.raises(TrustError, match="cannot check"):
        envelope.read(broken, trusting("", keyed(identity=where)), name="it")
