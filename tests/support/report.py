"""Results with everything a report can show."""

from __future__ import annotations

from rocwheel.records.results import (
    Attempt,
    CollectError,
    Fault,
    LaneRecord,
    LastRun,
    Outcome,
    ProcessRecord,
    Results,
    TestResult,
)
from rocwheel.records.verdict import Device, State

NASTY = "</script><script>window.broken = true</script> \x1b[31mred\x00 ]]> é"


def attempt(outcome: Outcome, *, start: int = 0, ms: int = 10, lane: str = "gpu0", **more: object):
    number = int(lane[-1]) + 1
    return Attempt(
        outcome=outcome, lane=lane, process=number, start_ms=start, duration_ms=ms, **more
    )


def rich(passing: int = 30, *, output: str = NASTY) -> Results:
    """Passing, failing, crashing, hanging, flaky, skipped tests on two devices."""
    bad = Outcome.FAILED
    tests = [
        TestResult(
            test=f"test_a.py::test_{n:04d}",
            outcome=Outcome.PASSED,
            attempts=(attempt(Outcome.PASSED, start=10 * n, ms=n % 97 + 1, lane=f"gpu{n % 2}"),),
            libraries=("hipFFT",) if n < 3 else (),
            evidence=("hipFFT",) if n == 0 else (),
        )
        for n in range(passing)
    ]
    tests += [
        TestResult(
            test="test_b.py::Case::test_bad[a::b]",
            outcome=bad,
            attempts=(
                attempt(
                    bad, start=400, message="assert 1 == 2", detail="the traceback", output=output
                ),
                attempt(bad, start=900, lane="gpu1", message="assert 1 == 2"),
            ),
            libraries=("hipBLAS",),
            line=7,
        ),
        TestResult(
            test="test_b.py::test_crash",
            outcome=Outcome.CRASHED,
            attempts=(
                attempt(Outcome.CRASHED, start=500, message="signal 11 (SIGSEGV)", detail="stack"),
            ),
        ),
        TestResult(
            test="test_b.py::test_hang",
            outcome=Outcome.TIMED_OUT,
            attempts=(attempt(Outcome.TIMED_OUT, start=600, ms=200, message="no end after 1 s"),),
        ),
        TestResult(
            test="test_b.py::test_flaky",
            outcome=Outcome.FLAKY,
            attempts=(
                attempt(bad, start=300, message="first time"),
                attempt(Outcome.PASSED, start=950, lane="gpu1"),
            ),
        ),
        TestResult(test="test_b.py::test_skip", outcome=Outcome.SKIPPED, reason="no TF32 here"),
        TestResult(test="test_b.py::test_never", outcome=Outcome.NOT_RUN, reason="cut short"),
    ]
    files = ("test_a.py", "test_b.py", "test_c.py")
    return Results(
        suite="smoke",
        shard="",
        files=files,
        suite_files=files,
        tests=tuple(tests),
        collect_errors=(CollectError(file="test_c.py", message="no module", detail="ImportError"),),
        lanes=tuple(
            LaneRecord(name=f"gpu{n}", devices=(Device(target="gfx942", serial=f"serial{n}"),))
            for n in range(2)
        ),
        processes=tuple(
            ProcessRecord(
                number=n + 1,
                lane=f"gpu{n}",
                start_ms=0,
                end_ms=max(1000, 10 * passing),
                ended="exit status 1",
                log=f"{n + 1:03d}-gpu{n}.log",
            )
            for n in range(2)
        ),
        faults=(Fault(state=State.CRASH, message="process 1 on gpu0 ended badly"),),
        environment={
            "command": "gate --suite=smoke --wheels='/my wheels'",
            "family": "gfx94X-dcgpu",
            "python": "3.12.1",
            "packages": "jax==0.9.1",
        },
        duration_ms=max(1000, 10 * passing),
    )


LAST = LastRun(
    manifest="",
    state=State.FAIL,
    ended="2026-05-01 12:00",
    bad={"test_b.py::test_hang": "timed-out", "test_a.py::test_0003": "failed"},
)
FOUND = Fault(
    state=State.CRASH, message="1 test crashed: test_b.py::test_crash: signal 11 (SIGSEGV)"
)
