"""Makes statements: how a set was built, a suite's result on it, why it was released.

The predicates are in-toto's: SLSA provenance v1, test result v0.1 and verification summary v1.
Fields of our own stand under `rocwheel`, which other readers pass over. One function derives a
statement's content from a manifest or a verdict, so that a check is a comparison.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from rocwheel import __version__
from rocwheel.base import files
from rocwheel.base.errors import ConfigError
from rocwheel.base.git import Source
from rocwheel.base.values import (
    Count,
    NonEmpty,
    Sha256OrNone,
    Value,
    canonical_json,
    decoder,
    replace,
)
from rocwheel.records.manifest import MANIFEST, BuildRecord, Manifest
from rocwheel.records.verdict import State, Verdict
from rocwheel.release.trust import TrustError, envelope
from rocwheel.release.trust.envelope import Sha256Digest, Statement, StatementSubject

PROVENANCE: Final = "https://slsa.dev/provenance/v1"
TEST_RESULT: Final = "https://in-toto.io/attestation/test-result/v0.1"
SUMMARY: Final = "https://slsa.dev/verification_summary/v1"
APPROVAL: Final = "https://in-toto.io/attestation/svr/v0.1"
BUILD_TYPE: Final = "https://rocwheel.dev/wheel-set/v1"
OWN: Final = "rocwheel"  # the field of a predicate that is ours
_TIMES: Final = {  # where a predicate says when it was made
    PROVENANCE: ("runDetails", "metadata", "finishedOn"),
    SUMMARY: ("timeVerified",),
    APPROVAL: ("timeCreated",),
}
RESULTS: Final = {State.PASS: "PASSED", State.FLAKY: "WARNED"}  # every other state is FAILED
WITHDRAWALS: Final = frozenset({"rollback", "yank"})
NOT_KNOWN: Final = "not recorded: this Bazel's log, events and repository cache name nothing"
NO_DIGEST: Final = {"annotations": {OWN: "Bazel says no digest of what it fetched here"}}


class Approval(Value, frozen=True, kw_only=True, omit_defaults=True):
    suite: NonEmpty
    python: NonEmpty
    by: NonEmpty
    reason: NonEmpty
    signed: Sha256OrNone = ""  # digest of the statement; one that is signed has what follows
    channel: str = ""
    family: str = ""
    verdicts: tuple[str, ...] = ()  # that it is about, with their states
    ran: Count = 0  # tests that ran, and must from now on: of a family's first set


def provenance(
    manifest: Manifest, record: BuildRecord, *, reproduced: Manifest | None = None
) -> Statement:
    """State how a set was built: inputs, place and time; or that it `reproduced` an earlier one."""
    builder, bazel = record.builder, record.bazel
    compiler = str(manifest.options.get("compiler", "")).replace(" ", "@")
    programs = [_resource(*program) for program in sorted(bazel.programs.items())]
    programs += [_resource("compiler", uri=f"pkg:generic/{compiler}")] if compiler else []
    fetched = [
        {**_resource(repository, uri=url), **({"digest": digest} if digest else NO_DIGEST)}
        for repository, urls in sorted(bazel.fetched.items())
        for url, digest in sorted(urls.items())
    ]
    return Statement(
        predicate_type=PROVENANCE,
        subject=subjects(reproduced or manifest),
        predicate={
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": parameters(manifest),
                "internalParameters": {
                    "executor": record.executor,
                    "bazel": {"version": bazel.version, "fetched": len(fetched) or NOT_KNOWN},
                },
                "resolvedDependencies": [*dependencies(manifest), *programs, *fetched],
            },
            "runDetails": {
                "builder": {
                    "id": f"{BUILD_TYPE}/{record.executor}@{record.host}",
                    "version": {OWN: __version__},
                },
                "metadata": {
                    "invocationId": f"{record.host} {record.started}",
                    "startedOn": record.started,
                    "finishedOn": record.finished,
                },
                "byproducts": [{"uri": item} for item in (builder.digests if builder else ())],
            },
            **({OWN: {"reproduced": reproduced.sha256}} if reproduced else {}),
        },
    )


def parameters(manifest: Manifest) -> dict[str, Any]:
    return {
        "jax": manifest.jax_version,
        "rocm": manifest.rocm.version,
        "pythons": _plain(manifest.pythons),
        "gfx_targets": _plain(manifest.gfx_targets),
        "bazel": manifest.bazel_version,
        "options": _plain(manifest.options),
    }


def dependencies(manifest: Manifest) -> Iterator[dict[str, Any]]:
    """Yield everything a manifest names that the set was made from, with its digest."""
    for name in ("jax", "xla", "tool"):
        source: Source = getattr(manifest, name)
        yield _resource(name, source.digest, uri=source.repository, commit=source.commit)
    rocm = manifest.rocm
    yield _resource(f"rocm {rocm.name}", rocm.sha256, uri=rocm.url)
    if image := manifest.builder_image:
        yield _resource("builder image", image.rpartition(":")[2])
    for wheel in manifest.wheels:
        if wheel.origin == "upstream":
            yield _resource(wheel.filename, wheel.sha256)


def result(
    verdict: Verdict, *, number: int = 0, previous: str = "", parts: Sequence[str] = ()
) -> Statement:
    """State a suite's result: the whole verdict, and its place among the signer's statements.

    A signed one is numbered within its cell, and `previous` is the digest of the signer's
    statement before. `parts` are the verdicts of the shards that a merged one was made of.
    """
    named = {"suite": verdict.ran.definition, "skips": verdict.ran.skips}
    return Statement(
        predicate_type=TEST_RESULT,
        subject=(
            _subject(MANIFEST, verdict.manifest),
            *(_subject(name, digest) for name, digest in sorted(verdict.wheels.items())),
        ),
        predicate={
            "result": RESULTS.get(verdict.state, "FAILED"),
            "configuration": [_resource(name, digest) for name, digest in named.items() if digest],
            "failedTests": [verdict.first_failure] if verdict.first_failure else [],
            OWN: {
                "verdict": _plain(verdict),
                "number": number,
                "previous": previous,
                "parts": list(parts),
            },
        },
    )


def verdict_in(statement: Statement, *, name: str) -> Verdict:
    """Return the verdict that a test result states. Raises TrustError where it is none."""
    own = statement.own
    decoder(Verdict)  # its annotations are looked at by one thread: many read verdicts at once
    try:
        verdict = msgspec.convert(own.get("verdict"), Verdict)
        about = {name: own[name] for name in ("number", "previous", "parts")}
        made = result(verdict, **about)
    except (msgspec.ValidationError, ConfigError, KeyError, TypeError) as exc:
        raise TrustError(f"{name}: verdict: {exc}", hint=envelope.AGAIN) from exc
    if made != statement:
        what = "says something else than the verdict in it"
        raise TrustError(f"{name}: {what}", hint=envelope.AGAIN)
    return verdict


def verdict_of(statement: Statement) -> str:
    """Return the digest of the verdict that a test result of before 0.3 names; "" for none."""
    try:
        items: Any = statement.predicate["configuration"]
        return next(str(i["digest"]["sha256"]) for i in items if i["name"] == "verdict")
    except (KeyError, TypeError, StopIteration):
        return ""


def result_fields(statement: Statement) -> Mapping[str, Any]:
    """Return what a test result says by the fields of a verdict; before 0.3 it had some of them."""
    return statement.part(OWN, "verdict") or statement.own


def approval(manifest: Manifest, word: Approval, *, time: str) -> Statement:
    return Statement(
        predicate_type=APPROVAL,
        subject=subjects(manifest),
        predicate={
            "verifier": {"id": f"{BUILD_TYPE}/approver"},
            "timeCreated": time,
            "properties": ["ROCWHEEL_CELL_APPROVED"],
            OWN: _plain(replace(word, signed="")),
        },
    )


def summary(
    manifest: Manifest,
    *,
    time: str,
    url: str,
    policy: Mapping[str, str],
    inputs: Sequence[str],
    own: Mapping[str, Any],
) -> Statement:
    """State that a set was verified: by a policy's digests, on statements with these digests.

    `own` says who did what with it, where and why: cells, bypass, approvals.
    """
    decided = files.sha256(canonical_json(dict(policy)))
    return Statement(
        predicate_type=SUMMARY,
        subject=subjects(manifest),
        predicate={
            "verifier": {"id": BUILD_TYPE, "version": {OWN: __version__}},
            "timeVerified": time,
            "resourceUri": url,
            "policy": {
                **_resource("", decided, uri=BUILD_TYPE),
                "annotations": {OWN: dict(policy)},
            },
            "inputAttestations": [
                {"uri": digest, "digest": {"sha256": digest}} for digest in inputs
            ],
            "verificationResult": "FAILED" if own.get("action") in WITHDRAWALS else "PASSED",
            "verifiedLevels": ["SLSA_BUILD_LEVEL_1"],
            "slsaVersion": "1.0",
            OWN: dict(own),
        },
    )


def subjects(manifest: Manifest) -> tuple[StatementSubject, ...]:
    """Return the manifest, whose digest is the identity of the set, and its wheels as subjects."""
    wheels = sorted((wheel.filename, wheel.sha256) for wheel in manifest.wheels)
    return (_subject(MANIFEST, manifest.sha256), *(_subject(*wheel) for wheel in wheels))


def claimed(statement: Statement) -> object:
    if statement.predicate_type == TEST_RESULT:
        return result_fields(statement).get("ended")
    *path, name = _TIMES[statement.predicate_type]
    return statement.part(*path).get(name)


def _subject(name: str, sha256: str) -> StatementSubject:
    return StatementSubject(name=name, digest=Sha256Digest(sha256=sha256))


def _resource(name: str, sha256: str = "", *, uri: str = "", commit: str = "") -> dict[str, Any]:
    digests = {"gitCommit": commit, "sha256": sha256}
    known = {algorithm: digest for algorithm, digest in digests.items() if digest}
    document = {"name": name, "uri": uri, "digest": known}
    return {key: value for key, value in document.items() if value}


def _plain(value: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))
