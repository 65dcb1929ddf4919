"""One run of the gate: devices, ROCm, environment, preflight, tests, verdict, in this order.

However it ends, there is a verdict that says so: a machine without the family's GPU is
`no-runner`, anything that goes wrong before the first test is `infra` or has a name of its own.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from rocwheel import __version__
from rocwheel.base import container, git, home, parallel
from rocwheel.base.console import count
from rocwheel.base.errors import ConfigError, HostError, RocwheelError
from rocwheel.base.here import Here
from rocwheel.base.host import cgroup
from rocwheel.base.host import machine as machines
from rocwheel.base.process import Command
from rocwheel.base.values import Plain, replace
from rocwheel.base.versions import suggest
from rocwheel.gate import InfraError, NoTestError, SetupError, control, environment, subject
from rocwheel.gate.engine.child import WorkerSpec
from rocwheel.gate.engine.loop import TestRunner
from rocwheel.gate.engine.plan import Estimates, Lane, RunPlan, System, Watcher
from rocwheel.gate.environment import NO_ROCM, Environment, Provided
from rocwheel.gate.machine import devices, preflight
from rocwheel.gate.machine.accelerators import Accelerator, Maker
from rocwheel.gate.machine.devices import Allotted, Slots
from rocwheel.gate.machine.preflight import EnvironmentFacts
from rocwheel.gate.request import Choice, DeviceChoice, GateRequest
from rocwheel.gate.suite import discovery, upstream
from rocwheel.gate.suite.discovery import SuiteFiles
from rocwheel.gate.verdict.judge import collected, drawn, judge, with_unmet_skips
from rocwheel.records.results import CUT_SHORT, Fault, Results
from rocwheel.records.verdict import Ran, State, Verdict

WORK: Final = "gate/work"  # in the cache
WATCHED: Final = ("jax", "jaxlib")
DIRTY: Final = "-dirty"
NOTES: Final = 3  # files that tests wrote beside them


class GateResult(Plain, frozen=True, kw_only=True):
    results: Results
    judged: Fault  # the state and its reason
    verdict: Verdict
    error: RocwheelError | None = None  # why it ended before its tests
    is_cut: bool = False  # by a signal


def lines(request: GateRequest, here: Here) -> Iterator[str | SetupError]:
    """Yield what a gate would do, for --dry-run; finds devices and files, changes nothing.

    Raises the error that would end it before its first test.
    """
    try:
        yield f"devices: {devices.choose(request, here)}"
    except SetupError as exc:
        yield exc
    yield f"ROCm: {environment.rocm_of(request, here)}"
    checkout = _checkout(request, here)
    if checkout and not checkout.folder.is_dir():
        yield from map(str, checkout.commands(checkout.folder))
    else:
        tests = _find(request, here, checkout.folder if checkout else None)
        yield f"tests: {count(len(tests.files), 'file')} below {tests.root}"
    python = str(request.installed or "")
    if not python:
        try:
            python = str(_interpreter(request, here).executable)
        except InfraError as exc:
            yield exc
            return
        for name, texts in environment.listed(
            request, here.cache / WORK / "<new>", NO_ROCM
        ).items():
            yield f"{name}:"
            yield from (f"  {text}" for text in texts)
    yield f"run the tests with {python}, at most {request.run_seconds:g} s"


def _refuse_unmet(request: GateRequest, there: environment.Environment) -> None:
    found = dict(line.split("==") for line in there.packages)
    for line in (*request.suite.requirements, *request.requirements):
        wanted = Requirement(line.partition(" --hash")[0])
        version = found.get(canonicalize_name(wanted.name))
        if version is None or not wanted.specifier.contains(version, prereleases=True):
            raise ConfigError(
                f"{request.installed}: has {version or 'no version'} of {wanted.name}, "
                f"the suite needs {wanted}",
                hint="install it there, or name a folder of packages that has it: --packages",
            )


def check(request: GateRequest, here: Here) -> None:
    """Look for the tests of a suite, where they are here already. Raises ConfigError."""
    for folder in request.folders:
        if not folder.is_dir():
            raise ConfigError(f"--packages: {folder}: no such folder", hint="check the path")
    if _checkout(request, here) is None:
        _find(request, here, None)


def run(request: GateRequest, here: Here, watcher: Watcher) -> GateResult:
    """Test a wheel set with a suite. Raises only ConfigError, for a wrong request."""
    started, until = here.now(), here.clock() + request.seconds
    gate = _Gate(request=request, here=here, watcher=watcher, until=until)
    with suppress(HostError):  # an image without git
        own = home.tool(here.home, partial(git.identify, runner=here.runner))
        gate.tool = f"{own.commit}{DIRTY if own.dirty else ''}" or __version__
    error: RocwheelError | None = None
    with ExitStack() as stack:
        try:
            results = gate.run(stack)
        except ConfigError:
            raise
        except RocwheelError as exc:
            error = exc
            if here.clock() >= until:  # which is likely why
                error = InfraError(
                    f"the deadline of {request.seconds:g} s passed before the first test: {exc}",
                    hint=exc.hint,
                    detail=exc.detail,
                )
        except OSError as exc:
            error = InfraError(str(exc), hint="check disk space and permissions of this machine")
        except KeyboardInterrupt:
            results = _empty(request, State.NOT_RUN, CUT_SHORT)
            gate.is_cut = True
    if error:
        state = error.state if isinstance(error, SetupError) else State.INFRA
        results = _empty(request, state, str(error))
    results = replace(results, environment=gate.about())
    judged = judge(results, request.demand)
    verdict = gate.verdict(results, judged, started=started)
    return GateResult(
        results=results, judged=judged, verdict=verdict, error=error, is_cut=gate.is_cut
    )


@dataclass(kw_only=True)
class _Gate:
    """A gate that runs, and what it has set up so far; it may end at any step."""

    request: GateRequest
    here: Here
    watcher: Watcher
    until: float
    work: Path = Path()
    provided: Provided = NO_ROCM
    facts: EnvironmentFacts | None = None
    environment: Environment | None = None
    prepared: str = ""  # how the environment came to be
    uncompared: str = ""  # which wheels are there on trust
    lanes: tuple[Lane, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)  # the suite's variables, with values
    tests: str = ""  # commit of JAX whose tests ran, or SHA-256 of the folder
    tool: str = __version__  # our commit, "-dirty" when files differ from it
    is_cut: bool = False

    def left(self) -> float:
        return max(1.0, self.until - self.here.clock())

    def run(self, stack: ExitStack) -> Results:
        request, here = self.request, self.here
        allotted = devices.choose(request, here)
        for why in allotted.allotment.ill:
            here.console.warn(f"a GPU is left out: {why}")
        if not request.installed:
            _interpreter(request, here)
        request.logs.mkdir(parents=True, exist_ok=True)
        self.work = stack.enter_context(container.scratch(here.cache / WORK, "run")).resolve()
        tests = self.prepare()
        taken: Mapping[Accelerator, int] = {}
        if allotted.locked:  # until the gate ends
            taken = stack.enter_context(
                Slots.of(request.slots, here).take(
                    allotted.allotment.devices,
                    least=allotted.per_process,
                    most=allotted.per_process * allotted.most,
                    patience=min(request.patience, self.left()),
                )
            )
        results = self.test(tests, self.install(tests, allotted, taken))
        again = partial(self.again, allotted=allotted, taken=taken)
        try:
            return results if self.is_cut else control.compared(results, request, again)
        except KeyboardInterrupt:
            self.is_cut = True
            return results

    def prepare(self) -> SuiteFiles:
        """Bring tests and ROCm, which takes no device."""
        with self.here.console.step("Tests of the suite", key="tests"):
            tests = self.gather()
        with self.here.console.step("ROCm", key="rocm"):
            self.provided = environment.provide(self.request, self.here)
        return tests

    def gather(self) -> SuiteFiles:
        """Find and identify tests: SHA-256 of our folder, a commit, the user's checkout."""
        request, here, source = self.request, self.here, self.request.suite.source
        checkout = _checkout(request, here)
        if checkout:
            git.checkout(checkout, runner=here.runner)
        tests = _find(request, here, checkout.folder if checkout else None)
        named = sorted(name.partition("::")[0] for name in request.tests)
        if named and not {*named} & {*tests.suite_files}:
            hint = suggest(named[0], tests.suite_files)
            raise NoTestError(f"{named[0]}: {request.suite.name} has no such file", hint=hint)
        if source.folder:
            self.tests = request.known.tests if request.known else ""
            return tests
        if request.jax_tests and request.installed:  # an image has no git
            self.tests = git.digest(tests.root, iter(tests.suite_files))
        elif request.jax_tests:
            theirs = git.identify(request.jax_tests, runner=here.runner)
            self.tests = theirs.digest or theirs.commit
        else:
            self.tests = request.manifest.jax.commit
        own = upstream.variables(tests.root, source.variables, request.suite.environment)
        return replace(discovery.lay_out(tests, source, self.work), variables=own)

    def install(
        self, tests: SuiteFiles, allotted: Allotted, taken: Mapping[Accelerator, int]
    ) -> RunPlan:
        """Make the environment, check it and the devices that were taken, and plan the run."""
        request, here, own = self.request, self.here, self.work / "environment"
        with here.console.step("The environment", key="environment"):
            if request.installed:  # its files cannot be written: an image's root is read-only
                self.environment = environment.existing(
                    request.installed, env=_folders(request), runner=here.runner
                )
                self.prepared = f"that of {request.installed}"
                _refuse_unmet(request, self.environment)
            else:
                started = here.clock()
                self.environment = environment.make(
                    request, _interpreter(request, here), own, self.provided, here, left=self.left
                )
                seconds, number = here.clock() - started, len(self.packages)
                self.prepared = f"made in {seconds:.1f} s: {number} packages"
        env = {**request.suite.environment, **tests.variables, **self.provided.env}
        env |= {"PYTHONDONTWRITEBYTECODE": "1", **_folders(request)}  # the checkout stays as it is
        if request.suite.with_jax:
            env["JAX_PLATFORMS"] = preflight.platforms(allotted.allotment.devices[0].maker)
        self.env = {name: env[name] for name in request.suite.environment}
        held = tuple(taken) or allotted.allotment.devices
        self.lanes = tuple(devices.lanes(allotted, held, env))
        with here.console.step("Preflight", key="preflight"):
            self.facts = self.ask(self.environment)
            backend = f", backend {self.facts.backend}" if self.facts.backend else ""
            here.console.info(f"   CPython {self.facts.python}{backend}")
            if request.installed and (names := self.facts.uncompared):
                self.uncompared = f"not compared with the set's digests: {', '.join(names)}"
                here.console.warn(self.uncompared)
        return self.plan(tests, self.environment, self.facts, tuple(taken.values()))

    def test(self, tests: SuiteFiles, plan: RunPlan) -> Results:
        """Run the tests; another file than was named is a fault."""
        request, here = self.request, self.here
        own = self.environment.site if request.installed and self.environment else self.work
        what = f"{count(len(tests.files), 'file')} on {count(len(self.lanes), 'lane')}"
        with here.console.step(what, key="run"):
            folders = {
                tests.root: "the tests",
                own if request.installed else own / "environment": "the environment",
            }
            folders |= dict.fromkeys(
                filter(None, (tests.modules, *request.folders)), "its packages"
            )
            before = {folder: environment.states(folder) for folder in folders}
            began = here.now().timestamp()
            results = self.run_plan(plan)
        for folder, what in folders.items():
            data: list[str] = []  # that tests wrote beside them
            for name, how, when in environment.altered(folder, before[folder]):
                by = _by(results, when - began)
                if how == "appeared" and not name.endswith(environment.IMPORTABLE):
                    data.append(f"{name} appeared beside {what}{by}: a test may have failed by it")
                    continue
                # what ran is not what was named
                message = f"a file of {what} {how} while tests ran: {name}{by}"
                fault = Fault(state=State.INFRA, message=message)
                results = replace(results, faults=(*results.faults, fault))
                break
            if folder == tests.root and results.failures:
                results = replace(results, dropped=(*results.dropped, *data[:NOTES]))
        return results

    def ask(self, environment: Environment) -> EnvironmentFacts:
        """Check all devices at once; the same check runs again after a crash."""
        request, with_jax = self.request, self.request.suite.with_jax

        def command(lane: Lane) -> Command:
            output = self.work / f"preflight-{lane.name}.json"
            return preflight.command(
                environment.python, request.wheels, output, with_jax=with_jax, env=lane.env
            )

        def ask(lane: Lane) -> EnvironmentFacts:
            log = request.logs / f"preflight-{lane.name}.log"
            return preflight.ask(
                command(lane), lane, request.wheels, runner=self.here.runner, log=log,
                with_jax=with_jax,
            )  # fmt: skip

        first = {lane.devices: lane for lane in reversed(self.lanes)}
        facts = parallel.each(ask, reversed(first.values()), threads=len(first))
        self.lanes = tuple(
            replace(lane, probe=None if lane.devices[0].maker is Maker.CPU else command(lane))
            for lane in self.lanes
        )
        return facts[0]

    def plan(
        self,
        tests: SuiteFiles,
        environment: Environment,
        facts: EnvironmentFacts,
        locks: tuple[int, ...],
    ) -> RunPlan:
        request, suite, with_jax = self.request, self.request.suite, self.request.suite.with_jax
        history = request.history
        estimates = history.estimates(tests.sizes) if history else Estimates(sizes=tests.sizes)

        def hidden(file: str) -> tuple[str, ...]:
            """Return tests of a file that skipped itself: of earlier runs, else what it defines."""
            ran = tuple(test for test in estimates.tests if test.startswith(f"{file}::"))
            text = (tests.root / file).read_text(encoding="utf-8", errors="replace")
            return ran or tuple(discovery.tests_of(file, text))

        return RunPlan(
            suite=suite.name,
            shard=str(request.shard),
            files=tests.files,
            suite_files=tests.suite_files,
            worker=WorkerSpec(
                python=environment.python,
                root=tests.root,
                arguments=(*tests.arguments, *(("-m", suite.select) if suite.select else ())),
                env={},
                watch=(*WATCHED, *facts.modules) if with_jax else (),
                libraries=request.libraries,
                modules=tests.modules,
                trace=suite.trace and request.device is DeviceChoice.FAMILY,
                locks=locks,
                logs=request.logs,
            ),
            lanes=self.lanes,
            test_deadline=float(suite.deadlines.test),
            deadline=min(request.run_seconds, self.left()),
            retry_limit=suite.retries,
            backend=facts.backend,
            modules=str(environment.python.parents[1]) if with_jax else "",
            alone=tests.alone,
            process_memory=devices.host_memory(len(self.lanes)),
            device_errors=request.device_errors,
            hidden=hidden,
            estimates=estimates,
        )

    def run_plan(self, plan: RunPlan) -> Results:
        request = self.request
        targets = frozenset(device.target for lane in self.lanes for device in lane.devices)
        rocm = self.provided.record.version
        of = (request.suite.name, targets, rocm, request.wheels.jax_version)
        entries = [entry for entry in request.skips if entry.applies(*of)]
        met: Counter[str] = Counter()

        def listed(test: str) -> str:
            meeting = [entry for entry in entries if entry.meets(test)]
            met.update(entry.where for entry in meeting)
            return str(meeting[0]) if meeting else ""

        if request.choice is Choice.ALL:
            plan = replace(plan, skip=listed)
        elif request.choice is Choice.SKIPPED:
            anywhere = plan.files if any(entry.keyword for entry in entries) else ()
            names = (*anywhere, *(entry.pattern for entry in entries))
            plan = _only(plan, names, lambda test: bool(listed(test)))
        else:
            named = request.tests  # a file stands for all of its tests
            plan = _only(plan, named, lambda test: bool(named & {test, test.partition("::")[0]}))
        results = self.engine(plan)
        if request.choice is Choice.NAMED and not plan.shard:
            found = {name for test in results.tests for name in (test.test, test.file)}
            found |= {error.file for error in results.collect_errors}
            faults = (
                Fault(state=State.NOTHING_RAN, message=f"{name}: {plan.suite} has no such test")
                for name in sorted(request.tests - found)
            )
            results = replace(results, faults=(*results.faults, *faults))
        # a keyword of several suites need not be one of each
        due = (e for e in entries if met[e.where] or not e.keyword or len(e.suites) == 1)
        results = replace(results, skips={entry.where: met[entry.where] for entry in due})
        return results if plan.shard or not request.whole else with_unmet_skips(results)

    def engine(self, plan: RunPlan) -> Results:
        here, slots = self.here, Slots.of(self.request.slots, self.here)
        machine = System(
            starter=here.runner,
            clock=here.clock,
            oom_kills=lambda: cgroup.oom_kills(here.root),
            quarantine=lambda device, reason: (
                slots.quarantine(device, reason) if device.maker is not Maker.CPU else None
            ),
        )
        results = TestRunner(plan, machine, self.watcher).run()
        self.is_cut = any(fault.message == CUT_SHORT for fault in results.faults)
        return results

    def again(
        self,
        asked: GateRequest,
        failed: Mapping[control.Devices, set[str]],
        *,
        allotted: Allotted,
        taken: Mapping[Accelerator, int],
    ) -> Iterator[tuple[control.Devices, Results]]:
        """Try what failed on each device again there, with the set of another request."""
        here = self.here
        other = _Gate(
            request=asked, here=here, watcher=Watcher(), work=self.work / "control",
            until=min(self.until, here.clock() + control.LIMIT),
        )  # fmt: skip
        number = count(sum(map(len, failed.values())), "failure")
        what = f"Control run: {number} with the released set {asked.manifest.sha256[:12]}"
        with here.console.step(what, key="control"):
            asked.logs.mkdir(parents=True, exist_ok=True)
            plan = other.install(_within(other.left(), other.prepare), allotted, taken)
            lanes: dict[control.Devices, list[Lane]] = {}
            for lane in plan.lanes:
                lanes.setdefault(tuple(d.device for d in lane.devices), []).append(lane)
            for devices_, names in failed.items():
                if here.clock() >= other.until:
                    return
                part = _only(plan, names, names.__contains__)
                part = replace(part, lanes=tuple(lanes[devices_]), deadline=other.left())
                # what is in none of its files is no test there; one is looked at all the same
                found = other.engine(replace(part, files=part.files or plan.files[:1]))
                if other.is_cut:
                    raise KeyboardInterrupt
                yield devices_, found

    @property
    def packages(self) -> tuple[str, ...]:
        return self.environment.packages if self.environment else ()

    def about(self) -> dict[str, str]:
        """Return the circumstances of the run, for the report and for running it again."""
        request, facts, rocm = self.request, self.facts, self.provided.record
        devices = {d.serial: d for lane in self.lanes for d in lane.devices}
        return {
            "command": request.command,
            "wheels": "\n".join(wheel.filename for wheel in request.wheels.wheels),
            "manifest": request.manifest.sha256,
            "family": request.family.name,
            "python": facts.python if facts else str(request.python),
            "jax": request.wheels.jax_version if request.suite.with_jax else "",
            "backend": facts.backend if facts else "",
            "rocm": " ".join(filter(None, (rocm.origin, rocm.name, rocm.version, rocm.sha256))),
            "devices": "\n".join(
                f"{d.target} {d.serial} {d.name}".strip() for d in devices.values()
            ),
            "host": request.host,
            "runner": request.runner,
            "environment": "; ".join(filter(None, (self.prepared, self.uncompared))),
            "packages": "\n".join(self.packages),
            "variables": "\n".join(f"{name}={value}" for name, value in self.env.items()),
            "tests": self.tests,
            "tool": self.tool,
        }

    def verdict(self, results: Results, judged: Fault, *, started: datetime) -> Verdict:
        request = self.request
        wheels = {wheel.filename: wheel.sha256 for wheel in request.wheels.wheels}
        return Verdict(
            manifest=request.manifest.sha256,
            family=request.family.name,
            python=str(request.python),
            wheels=wheels if self.environment else {},
            backend=self.facts.backend if self.facts else "",
            runner=request.runner,
            host=request.host,
            devices=tuple(dict.fromkeys(d.device for lane in self.lanes for d in lane.devices)),
            rocm=self.provided.record,
            jax_version=request.wheels.jax_version,
            started=started.isoformat(),
            ended=self.here.now().isoformat(),
            tool=self.tool,
            ran=self._ran(results),
            **drawn(results, judged, request.demand),
        )

    def _ran(self, results: Results) -> Ran:
        request, known = self.request, self.request.known
        pytest = [item.partition("==")[2] for item in self.packages if item.startswith("pytest==")]
        unknown = ""  # why these tests cannot be run again with the same rocwheel
        if self.tool.endswith(DIRTY):
            unknown = "files of rocwheel differ from its commit"
        elif results.tests and self.tool == __version__:
            unknown = "this rocwheel does not know the commit it was built from"
        return Ran(
            definition=known.definition if known else "",
            skips=known.skips if known else "",
            tests=self.tests,
            selection=request.suite.select,
            pytest=next(iter(pytest), ""),
            collected=collected(results),
            unofficial=(*request.unofficial, *filter(None, (self.uncompared, unknown))),
        )


def _empty(request: GateRequest, state: State, message: str) -> Results:
    """Return the results of a gate that ended before its first test."""
    return Results(
        suite=request.suite.name,
        shard=str(request.shard),
        files=(),
        suite_files=(),
        tests=(),
        faults=(Fault(state=state, message=message),),
    )


def _within(seconds: float, work: Callable[[], SuiteFiles]) -> SuiteFiles:
    """Return what `work` does in a thread, which is left alone when it takes longer."""
    done: Queue[SuiteFiles | Exception] = Queue()

    def run() -> None:
        try:
            done.put(work())
        except Exception as exc:  # noqa: BLE001 - it is raised below
            done.put(exc)

    Thread(target=run, daemon=True).start()
    try:
        found = done.get(timeout=seconds)
    except Empty:
        raise InfraError("its tests and its ROCm did not come in time") from None
    if isinstance(found, Exception):
        raise found
    return found


def _by(results: Results, seconds: float) -> str:
    """Name the tests that ran at that time of a run, where there are any."""
    at = 1000 * seconds
    ran = dict.fromkeys(
        test.test
        for test in results.tests
        for attempt in test.attempts
        if attempt.start_ms - 20 <= at <= attempt.start_ms + attempt.duration_ms + 20
    )
    return f", during {', '.join(ran)}" if ran else ""


def _checkout(request: GateRequest, here: Here) -> git.Checkout | None:
    """Return the JAX commit whose tests run; None for tests of ours or a checkout of the user's."""
    if request.suite.source.folder or request.jax_tests:
        return None
    return subject.jax_of(request.manifest, cache=here.cache)


def _find(request: GateRequest, here: Here, fetched: Path | None) -> SuiteFiles:
    source = request.suite.source
    top = here.home.tests / source.folder if source.folder else request.jax_tests or fetched
    if top is None:
        raise ConfigError(f"{request.key}: no tests", hint="add --jax-tests with a JAX checkout")
    return discovery.find(source, top, request.shard)


def _interpreter(request: GateRequest, here: Here) -> machines.Interpreter:
    for known in machines.pythons(here.environ, runner=here.runner, only=request.python):
        if known.version == request.python:
            return known
    every = machines.pythons(here.environ, runner=here.runner)
    there = ", ".join(str(item.version) for item in every) or "none"
    raise InfraError(
        f"this machine has no CPython {request.python}; it has {there}",
        hint=f"install {request.python.executable}, or put it on PATH",
    )


def _folders(request: GateRequest) -> dict[str, str]:
    """Return the variable that puts packages of the user before those of an image."""
    return {"PYTHONPATH": os.pathsep.join(map(str, request.folders))} if request.folders else {}


def _only(plan: RunPlan, names: Iterable[str], wanted: Callable[[str], bool]) -> RunPlan:
    """Select some tests; other files than theirs are not even imported."""
    files = {name.partition("::")[0] for name in names}
    kept = tuple(file for file in plan.files if file in files)
    return replace(plan, files=kept, wanted=wanted)
