"""The control run: what failed runs again with the set that its family has released.

It runs on the same device, for ten minutes at most, and says of each failure whether it is new.
It changes no state: a gate that failed has failed.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Final

from rocwheel.base.errors import ConfigError, RocwheelError
from rocwheel.base.values import Plain, replace
from rocwheel.gate.request import Choice, GateRequest
from rocwheel.records.results import KNOWN, MACHINE, NEW, UNSEEN, Outcome, Results, TestResult
from rocwheel.records.verdict import Device, State

LIMIT: Final = 600.0  # seconds for all of it, the installation included
MOST: Final = 1000  # failures that get a word
LATE: Final = f"{UNSEEN}: {LIMIT / 60:g} minutes passed"
_TYPE: Final = re.compile(r"(?:in \w+: )?[A-Za-z_][\w.]*(?=:)")  # of the exception in a message
Devices = tuple[Device, ...]
Rerun = Callable[[GateRequest, Mapping[Devices, set[str]]], Iterator[tuple[Devices, Results]]]


class _Failure(Plain, frozen=True, kw_only=True):
    """A test or a file that failed: where, how, and its word if that needs no other run."""

    devices: Devices
    kinds: set[str]
    word: str = ""


def compared(results: Results, request: GateRequest, rerun: Rerun) -> Results:
    """Add a word to each failure; `rerun` tries tests of a request again, device by device."""
    if request.released is None or not request.whole:
        return results
    failed = dict(islice(_failures(results), MOST))
    words = {name: failure.word for name, failure in failed.items() if failure.word}
    left: dict[Devices, set[str]] = {}
    for name in failed.keys() - words.keys():
        left.setdefault(failed[name].devices, set()).add(name)
    otherwise = LATE
    try:
        for devices, found in rerun(_asked(request), left) if left else ():
            is_ill = _is_ill(found)
            for name in left[devices]:
                words[name] = _word(name, failed[name].kinds, found, is_ill=is_ill)
    except (RocwheelError, OSError) as exc:
        otherwise = f"{UNSEEN}: {' '.join(str(exc).split())}"
    words = {name: words.get(name, otherwise) for name in failed}
    return replace(
        results,
        tests=tuple(
            replace(test, control=words[test.test]) if test.test in words else test
            for test in results.tests
        ),
        collect_errors=tuple(
            replace(error, control=words[error.file]) if error.file in words else error
            for error in results.collect_errors
        ),
    )


def _asked(request: GateRequest) -> GateRequest:
    manifest, wheels = request.released() if request.released else (request.manifest, None)
    if wheels is None or manifest.sha256 == request.manifest.sha256:
        raise ConfigError("this is the released set")
    same = manifest.rocm.sha256 == request.manifest.rocm.sha256
    return replace(
        request, manifest=manifest, wheels=wheels, rocm=request.rocm if same else "",
        choice=Choice.NAMED, output=request.output / "control",
    )  # fmt: skip


def _failures(results: Results) -> Iterator[tuple[str, _Failure]]:
    lanes = {lane.name: lane for lane in results.lanes}
    for test in results.failures:
        lane, word = lanes[test.attempts[-1].lane], ""
        bad = [attempt for attempt in test.attempts if attempt.outcome.bad]
        if lane.lost or _met_machine(results, test):
            word = MACHINE
        elif not bad:
            word = f"{UNSEEN}: it fails by what it leaves to others"
        kinds = {_kind(attempt.outcome, attempt.message) for attempt in bad}
        yield test.test, _Failure(devices=lane.devices, kinds=kinds, word=word)
    well = [lane.devices for lane in results.lanes if not lane.lost]
    for error in results.collect_errors:
        kinds, word = {_kind(Outcome.FAILED, error.message)}, "" if well else MACHINE
        yield error.file, _Failure(devices=next(iter(well), ()), kinds=kinds, word=word)


def _word(name: str, kinds: set[str], found: Results, *, is_ill: bool) -> str:
    file = name.partition("::")[0]
    errors = {error.file: error.message for error in found.collect_errors}
    if name in errors:
        return _held(kinds, {_kind(Outcome.FAILED, errors[name])}, errors[name])
    for test in found.tests:
        if test.test in (name, file):
            return _tried(test, kinds, found, is_ill=is_ill)
    if name in (*found.files, "(session)"):  # it was collected
        return MACHINE if is_ill else NEW
    return f"{UNSEEN}: {'it cannot be collected' if file in errors else 'it is not'} there"


def _tried(test: TestResult, kinds: set[str], found: Results, *, is_ill: bool) -> str:
    bad = [attempt for attempt in test.attempts if attempt.outcome.bad]
    is_late = any(attempt.message.endswith(" while it ran") for attempt in bad)
    if is_late or test.reason.startswith("the deadline"):
        return LATE
    if bad and test.outcome is not Outcome.PASSED:
        there = {_kind(attempt.outcome, attempt.message) for attempt in bad}
        return MACHINE if _met_machine(found, test) else _held(kinds, there, bad[-1].message)
    if test.outcome is Outcome.XFAILED or is_ill:
        return MACHINE if is_ill else KNOWN
    if test.attempts and test.outcome is not Outcome.SKIPPED:
        return NEW
    return f"{UNSEEN}: {test.outcome.value} there: {test.reason}"


def _held(kinds: set[str], there: set[str], message: str) -> str:
    return KNOWN if kinds & there else f"{NEW}: the released set fails otherwise: {message}"


def _kind(outcome: Outcome, message: str) -> str:
    """Return what the same failure has in common from run to run: an exception's type."""
    if outcome is not Outcome.FAILED:
        return str(outcome.value)
    found = _TYPE.match(message)
    return found[0] if found else "AssertionError"  # of which pytest shows the comparison alone


def _met_machine(results: Results, test: TestResult) -> bool:
    own = f"{test.test}: "
    return any(f.state is State.INFRA and f.message.startswith(own) for f in results.faults)


def _is_ill(results: Results) -> bool:
    """Return whether the machine failed in a way that no one test met."""
    tests = tuple(f"{test.test}: " for test in results.tests)
    return any(f.state is State.INFRA and not f.message.startswith(tests) for f in results.faults)
