from __future__ import annotations

from rocwheel.records.verdict import Attempts, Counts, Device, RocmProvided, State, Verdict

VERDICT = Verdict(
    manifest="a" * 64,
    family="gfx94X-dcgpu",
    python="3.14-ft",
    suite="multi_gpu",
    state=State.FLAKY,
    reason="3 tests passed only on a retry, the suite allows 2",
    counts=Counts(passed=10, flaky=3, skipped=2, xfailed=1),
    wheels={"jaxlib-0.9.1-cp312-cp312-manylinux_2_27_x86_64.whl": "b" * 64},
    backend="rocm",
    runner="linux-gfx942-8gpu-ossci-rocm",
    host="node17",
    devices=(Device(target="gfx942", serial="0x1234", memory=206_158_430_208),),
    rocm=RocmProvided(origin="tarball", version="7.10.0", sha256="c" * 64, name="t.tar.gz"),
    jax_version="0.9.1",
    started="2026-05-01T01:02:03Z",
    ended="2026-05-01T01:12:03.250+00:00",
    tool="0.1.0",
    attempts=(Attempts(test="a.py::test_b", outcomes=("fail", "pass")),),
    reports={"junit": "verdicts/x/junit.xml"},
)


def test_only_a_pass_ends_with_zero_and_no_two_states_share_a_code():
    codes = {state: state.exit_code for state in State}
    assert codes.pop(State.PASS) == 0
    assert sorted(codes.values()) == sorted(set(codes.values()))
    assert all(20 <= code < 40 for code in codes.values())


def test_every_collected_test_is_counted_once():
    assert Counts(passed=4, failed=1, skipped=7, not_run=9, flaky=1).collected == 22
