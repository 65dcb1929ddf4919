"""Statements as their specifications have them: https://slsa.dev/spec/v1.0 and in-toto's v1."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest
from support.trust import ENDED, make_record
from support.wheelset import make_set, make_verdict

from rocwheel.base.values import replace
from rocwheel.release.trust import envelope, statements
from rocwheel.release.trust.statements import Approval

# https://github.com/in-toto/attestation/blob/main/spec/v1/digest_set.md, those that we have
LENGTHS = {"sha256": 64, "sha512": 128, "sha1": 40, "gitCommit": 40}
DESCRIPTORS = ("resolvedDependencies", "byproducts", "configuration", "inputAttestations", "policy")


@pytest.fixture
def every(tmp_path) -> list[statements.Statement]:
    manifest = make_set(tmp_path / "wheelhouse", pythons=("3.12",))
    manifest = replace(manifest, options={"compiler": "clang 18"})
    record = make_record(manifest)
    about = {"url": "https://wheels.example/v2/", "policy": {"trust": "a" * 64, "matrix": "b" * 64}}
    word = Approval(suite="unit", python="3.12", by="ann", reason="known")
    return [
        statements.provenance(manifest, record),
        statements.result(make_verdict(manifest, suite="unit"), number=1, previous=""),
        statements.summary(manifest, time=ENDED, inputs=["c" * 64], own={}, **about),
        statements.approval(manifest, word, time=ENDED),
    ]


def descriptors(value: Any, *, named: bool = False):
    """Yield every resource descriptor of a predicate."""
    if isinstance(value, dict):
        if named:
            yield value
        for name, item in value.items():
            yield from descriptors(item, named=name in DESCRIPTORS)
    elif isinstance(value, list):
        for item in value:
            yield from descriptors(item, named=named)


def test_each_descriptor_has_a_uri_or_digests_of_known_algorithms(every) -> None:
    """One that names nothing which can be looked up is none, and a digest is of an algorithm."""
    seen = [item for each in every for item in descriptors(each.predicate)]
    assert len(seen) >= 9
    for item in seen:
        assert item.get("uri") or item.get("digest"), item
        for algorithm, digest in item.get("digest", {}).items():
            assert re.fullmatch(r"[0-9a-f]+", digest), item
            assert len(digest) == LENGTHS[algorithm], item


def test_a_summary_names_each_file_that_decided(every) -> None:
    """Its digest follows from theirs, and their names stand beside it."""
    policy = every[2].predicate["policy"]
    assert policy["annotations"] == {"rocwheel": {"trust": "a" * 64, "matrix": "b" * 64}}
    assert len(policy["digest"]["sha256"]) == 64


def test_the_compiler_can_be_looked_up(every) -> None:
    built = every[0].part("buildDefinition")["resolvedDependencies"]
    assert {"name": "compiler", "uri": "pkg:generic/clang@18"} in built


def test_many_threads_read_the_first_verdicts_of_a_process(tmp_path) -> None:
    """Two threads that looked at the annotations of a type for the first time ended the process."""
    manifest = make_set(tmp_path / "wheelhouse", pythons=("3.12",))
    made = statements.result(make_verdict(manifest, suite="unit"), number=1)
    (tmp_path / "line").write_bytes(envelope.unsigned(made))
    program = (
        "import sys, threading\n"
        "from rocwheel.release.trust import envelope, statements\n"
        "statement = envelope.parse(open(sys.argv[1], 'rb').read(), name='x').statement\n"
        "gate = threading.Barrier(16)\n"
        "def read():\n"
        "    gate.wait()\n"
        "    statements.verdict_in(statement, name='x')\n"
        "threads = [threading.Thread(target=read) for _ in range(16)]\n"
        "[thread.start() for thread in threads]\n"
        "[thread.join() for thread in threads]\n"
    )
    for _ in range(3):
        line = [sys.executable, "-c", program, str(tmp_path / "line")]
        subprocess.run(line, check=True, timeout=120)
