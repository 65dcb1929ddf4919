"""One run of the gate: devices, ROCm, environment, preflight, tests, verdict, in this order.

However it ends, there is a verdict that says so: a machine without the family's GPU is
`no-runner`, anything that goes wrong before the first test is `infra` or has a name of its own.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Final

from rocwheel import __version__
from rocwheel.base import container, git, home, parallel
from rocwheel.base.console import Console, count
from rocwheel.base.errors import ConfigError, HostError, RocwheelError
from rocwheel.base.host import cgroup
from rocwheel.base.host import machine as machines
from rocwheel.base.process import Command
from rocwheel.base.values import Plain, replace
from rocwheel.gate import environment, provisioning, subject
from rocwheel.gate.engine.child import WorkerSpec
from rocwheel.gate.engine.loop import TestRunner
from rocwheel.gate.engine.plan import Lane, RunPlan, System, Watcher
from rocwheel.gate.engine.scheduler import Estimates
from rocwheel.gate.environment import Environment
from rocwheel.gate.machine import devices, preflight
from rocwheel.gate.machine.accelerators import Accelerator, Maker
from rocwheel.gate.machine.devices import Allotted
from rocwheel.gate.machine.preflight import EnvironmentFacts
from rocwheel.gate.machine.slots import Slots
from rocwheel.gate.provisioning import Provided
from rocwheel.gate.request import Choice, DeviceChoice, GateRequest, Host
from rocwheel.gate.setup_errors import InfraError, SetupError
from rocwheel.gate.suite import discovery, upstream
from rocwheel.gate.suite.discovery import SuiteFiles
from rocwheel.gate.verdict import run_record
from rocwheel.gate.verdict.judge import judge, with_unmet_skips
from rocwheel.records.results import CUT_SHORT, Fault, Results
from rocwheel.records.verdict import RocmProvided, State, Verdict

WORK: Final = "gate/work"  # in the cache
WATCHED: Final = ("jax", "jaxlib")


class GateResult(Plain, frozen=True, kw_only=True):
    """What a run of the gate found."""

    results: Results
    judged: Fault  # the state and its reason
    verdict: Verdict
    error: RocwheelError | None = None  # why it ended before its tests


def lines(request: GateRequest, host: Host) -> Iterator[str | SetupError]:
    """Yield the steps of a gate, for --dry-run; finds devices and files, changes nothing.

    Raises the error that would end it before its first test.
    """
    try:
        yield f"devices: {devices.choose(request, host)}"
    except SetupError as exc:
        yield exc
    yield f"ROCm: {provisioning.describe(request, host)}"
    checkout = _checkout(request, host)
    if checkout and not checkout.folder.is_dir():
        yield from map(str, checkout.commands(checkout.folder))
    else:
        tests = _find(request, checkout.folder if checkout else None)
        yield f"tests: {count(len(tests.files), 'file')} below {tests.root}"
    if request.installed:
        yield f"run the tests with {request.installed}, at most {request.run_seconds:g} s"
        return
    try:
        interpreter = _interpreter(request, host)
    except InfraError as exc:
        yield exc
        return
    nothing = Provided(record=RocmProvided(origin="none"))
    planned = _plan_install(request, host, interpreter, host.cache / WORK / "<new>", nothing)
    if place := request.wheels.place:
        yield from (
            f"bring {place.store.locate(place.wheel(*item))}"
            for item in request.wheels.stored.items()
        )
    for path, text in planned.files:
        yield f"write {path}:"
        yield from (f"  {line}" for line in text.splitlines())
    yield from (str(command) for _, command in planned.commands)
    yield f"run the tests with {planned.python}, at most {request.run_seconds:g} s"


def check(request: GateRequest, host: Host) -> None:
    """Look for the tests of a suite, where they are here already. Raises ConfigError."""
    if _checkout(request, host) is None:
        _find(request, None)


def run(request: GateRequest, host: Host, console: Console, watcher: Watcher) -> GateResult:
    """Test a wheel set with a suite. Raises only ConfigError, for a wrong request."""
    started, until = host.now(), host.clock() + request.seconds
    setup = run_record.Setup(provided=RocmProvided(origin="none"))
    with suppress(HostError):  # an image without git
        own = home.tool(request.home, partial(git.identify, runner=host.runner))
        setup.tool = f"{own.commit}{run_record.DIRTY if own.dirty else ''}" or __version__
    error: RocwheelError | None = None
    with ExitStack() as stack:
        try:
            results = _results(
                request, host, setup, stack, console=console, watcher=watcher, until=until
            )
        except ConfigError:
            raise
        except RocwheelError as exc:
            error = exc
            if host.clock() >= until:  # which is likely why
                error = InfraError(
                    f"the deadline of {request.seconds:g} s passed before the first test: {exc}",
                    hint=exc.hint,
                    detail=exc.detail,
                )
        except OSError as exc:
            error = InfraError(str(exc), hint="check disk space and permissions of this machine")
        except KeyboardInterrupt:
            results = run_record.empty(request, State.NOT_RUN, CUT_SHORT)
    if error:
        state = error.state if isinstance(error, SetupError) else State.INFRA
        results = run_record.empty(request, state, str(error))
    results = replace(results, environment=run_record.about(request, host, setup))
    judged = judge(results, request.demand)
    verdict = run_record.verdict(request, host, setup, results, judged, started=started)
    return GateResult(results=results, judged=judged, verdict=verdict, error=error)


def _results(
    request: GateRequest,
    host: Host,
    setup: run_record.Setup,
    stack: ExitStack,
    *,
    console: Console,
    watcher: Watcher,
    until: float,
) -> Results:
    def left() -> float:
        return max(1.0, until - host.clock())

    allotted = devices.choose(request, host)
    for why in allotted.allotment.ill:
        console.warn(f"a GPU is left out: {why}")
    interpreter = None if request.installed else _interpreter(request, host)
    work = stack.enter_context(container.scratch(host.cache / WORK, "run")).resolve()
    with console.step("Tests of the suite", key="tests"):
        tests = _gather(request, host, work)
        setup.tests = _identity(request, host, tests)
    with console.step("ROCm", key="rocm"):
        provided = provisioning.provide(request, host, console)
        setup.provided = provided.record
    taken: Mapping[Accelerator, int] = {}
    if allotted.locked:  # until the gate ends
        taken = stack.enter_context(
            _slots(host).take(
                allotted.allotment.devices,
                least=allotted.per_process,
                most=allotted.per_process * allotted.most,
                patience=min(request.patience, left()),
            )
        )
    with console.step("The environment", key="environment"):
        if request.installed:  # its files cannot be written: an image's root is read-only
            setup.environment = environment.of_image(
                request.installed, env=_folders(request), runner=host.runner
            )
            setup.prepared = f"that of {request.installed}"
        else:
            interpreter = interpreter or _interpreter(request, host)
            started = host.clock()
            planned = _plan_install(request, host, interpreter, work / "environment", provided)
            setup.environment = environment.make(
                planned, request.wheels, runner=host.runner, rocm=provided.root, console=console,
                log=_logs(request) / "install.log", left=left,
            )  # fmt: skip
            seconds, number = host.clock() - started, len(setup.environment.packages)
            setup.prepared = f"made in {seconds:.1f} s: {number} packages"
    env = _env(request, allotted, provided, tests.variables)
    setup.env = {name: env[name] for name in request.suite.environment}
    setup.lanes = tuple(devices.lanes(allotted, tuple(taken) or allotted.allotment.devices, env))
    with console.step("Preflight", key="preflight"):
        setup.lanes, setup.facts = _preflight(request, host, setup.environment, setup.lanes, work)
        backend = f", backend {setup.facts.backend}" if setup.facts.backend else ""
        console.info(f"   CPython {setup.facts.python}{backend}")
        if request.installed and (names := setup.facts.uncompared):
            setup.uncompared = f"not compared with the set's digests: {', '.join(names)}"
            console.warn(setup.uncompared)
    plan = _plan_run(request, tests, setup, left())
    plan = replace(plan, worker=replace(plan.worker, locks=tuple(taken.values())))
    with console.step(
        f"{count(len(tests.files), 'file')} on {count(len(setup.lanes), 'lane')}", key="run"
    ):
        installed = setup.environment.site if request.installed else work / "environment"
        folders_ = {tests.root: "the tests", installed: "the environment"}
        folders_ |= dict.fromkeys(filter(None, (tests.modules, *request.folders)), "its packages")
        before = {folder: environment.states(folder) for folder in folders_}
        began = host.now().timestamp()
        results = _run(plan, request, host, watcher, setup)
    for folder, what in folders_.items():
        # what ran is not what was named; data that tests write beside them is none of these
        if found := environment.altered(folder, before[folder]):
            name, how, when = found
            message = f"a file of {what} {how} while tests ran: {name}{_by(results, when - began)}"
            fault = Fault(state=State.INFRA, message=message)
            results = replace(results, faults=(*results.faults, fault))
    return results


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


# --- before the tests ----------------------------------------------------------------------------


def _checkout(request: GateRequest, host: Host) -> git.Checkout | None:
    """Return the JAX commit whose tests run; None for tests of ours or a checkout of the user's."""
    if request.suite.source.folder or request.jax_tests:
        return None
    return subject.jax_of(request.manifest, cache=host.cache)


def _find(request: GateRequest, fetched: Path | None) -> SuiteFiles:
    source = request.suite.source
    top = request.home.tests / source.folder if source.folder else request.jax_tests or fetched
    if top is None:
        raise ConfigError(f"{request.key}: no tests", hint="add --jax-tests with a JAX checkout")
    return discovery.find(source, top, request.shard)


def _gather(request: GateRequest, host: Host, work: Path) -> SuiteFiles:
    checkout = _checkout(request, host)
    if checkout:
        git.checkout(checkout, runner=host.runner)
    tests = _find(request, checkout.folder if checkout else None)
    if request.suite.source.folder:
        return tests
    own = upstream.variables(tests.root, request.suite.source.variables, request.suite.environment)
    return replace(discovery.lay_out(tests, request.suite.source, work), variables=own)


def _identity(request: GateRequest, host: Host, tests: SuiteFiles) -> str:
    """Identify the tests: SHA-256 of our folder, a commit of JAX, or the user's checkout."""
    if request.suite.source.folder:
        return request.known.tests if request.known else ""
    if request.jax_tests and request.installed:  # an image has no git
        return git.digest(tests.root, iter(tests.suite_files))
    if request.jax_tests:
        theirs = git.identify(request.jax_tests, runner=host.runner)
        return theirs.digest or theirs.commit
    return request.manifest.jax.commit


def _interpreter(request: GateRequest, host: Host) -> machines.Interpreter:
    for known in machines.pythons(host.environ, runner=host.runner, only=request.python):
        if known.version == request.python:
            return known
    every = machines.pythons(host.environ, runner=host.runner)
    here = ", ".join(str(item.version) for item in every) or "none"
    raise InfraError(
        f"this machine has no CPython {request.python}; it has {here}",
        hint=f"install {request.python.executable}, or put it on PATH",
    )


def _plan_install(
    request: GateRequest,
    host: Host,
    interpreter: machines.Interpreter,
    folder: Path,
    rocm: Provided,
) -> environment.InstallPlan:
    return environment.plan(
        request.wheels,
        interpreter=interpreter,
        folder=folder,
        cache=host.cache,
        requirements=(
            *sorted(request.suite.requirements),
            *request.requirements,
            *rocm.requirements,
        ),
        constraints=request.constraints,
        index=rocm.index,
        with_jax=request.suite.with_jax,
    )


def _env(
    request: GateRequest, allotted: Allotted, provided: Provided, own: Mapping[str, str]
) -> dict[str, str]:
    """Return what every test process gets, beside the masks of its lane; `own` are JAX's values."""
    env = {**request.suite.environment, **own} | provisioning.env(provided)
    env["PYTHONDONTWRITEBYTECODE"] = "1"  # the checkout stays as it is
    env |= _folders(request)
    if request.suite.with_jax:
        env["JAX_PLATFORMS"] = preflight.platforms(allotted.allotment.devices[0].maker)
    return env


def _folders(request: GateRequest) -> dict[str, str]:
    """Return the variable that puts packages of the user before those of an image."""
    return {"PYTHONPATH": os.pathsep.join(map(str, request.folders))} if request.folders else {}


def _preflight(
    request: GateRequest, host: Host, environment: Environment, lanes: tuple[Lane, ...], work: Path
) -> tuple[tuple[Lane, ...], EnvironmentFacts]:
    """Check all devices at once; the same check runs again after a crash."""
    with_jax = request.suite.with_jax

    def command(lane: Lane) -> Command:
        output = work / f"preflight-{lane.name}.json"
        return preflight.command(
            environment.python, request.wheels, output, with_jax=with_jax, env=lane.env
        )

    def ask(lane: Lane) -> EnvironmentFacts:
        log = _logs(request) / f"preflight-{lane.name}.log"
        return preflight.ask(
            command(lane), lane, request.wheels, runner=host.runner, log=log, with_jax=with_jax
        )

    first = {lane.devices: lane for lane in reversed(lanes)}
    facts = parallel.each(ask, reversed(first.values()), threads=len(first))
    probed = (
        replace(lane, probe=None if lane.devices[0].maker is Maker.CPU else command(lane))
        for lane in lanes
    )
    return tuple(probed), facts[0]


# --- the tests -----------------------------------------------------------------------------------


def _plan_run(
    request: GateRequest, tests: SuiteFiles, setup: run_record.Setup, seconds: float
) -> RunPlan:
    environment, facts = setup.environment, setup.facts
    if environment is None or facts is None:
        raise ValueError("the environment comes first")
    suite, with_jax = request.suite, request.suite.with_jax
    select = ("-m", suite.select) if suite.select else ()
    history = request.history
    estimates = history.estimates(tests.sizes) if history else Estimates(sizes=tests.sizes)

    def hidden(file: str) -> tuple[str, ...]:
        """Return the tests of a file that skipped itself: of earlier runs, else what it defines."""
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
            arguments=(*tests.arguments, *select),
            env={},
            watch=(*WATCHED, *facts.modules) if with_jax else (),
            libraries=request.libraries,
            modules=tests.modules,
            trace=suite.trace and request.device is DeviceChoice.FAMILY,
            logs=_logs(request),
        ),
        lanes=setup.lanes,
        test_deadline=float(suite.deadlines.test),
        deadline=min(request.run_seconds, seconds),
        retry_limit=suite.retries,
        backend=facts.backend,
        modules=str(environment.python.parents[1]) if with_jax else "",
        alone=tests.alone,
        process_memory=devices.host_memory(len(setup.lanes)),
        device_errors=request.device_errors,
        hidden=hidden,
        estimates=estimates,
    )


def _run(
    plan: RunPlan, request: GateRequest, host: Host, watcher: Watcher, setup: run_record.Setup
) -> Results:
    """Run the plan with the skip list that applies to it."""
    targets = frozenset(device.target for lane in setup.lanes for device in lane.devices)
    of = (request.suite.name, targets, setup.provided.version, request.wheels.jax_version)
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
    machine = System(
        starter=host.runner,
        clock=host.clock,
        oom_kills=lambda: cgroup.oom_kills(host.root),
        quarantine=lambda device, reason: (
            _slots(host).quarantine(device, reason) if device.maker is not Maker.CPU else None
        ),
    )
    results = TestRunner(plan, machine, watcher).run()
    # a keyword of several suites need not be one of each
    due = (e for e in entries if met[e.where] or not e.keyword or len(e.suites) == 1)
    results = replace(results, skips={entry.where: met[entry.where] for entry in due})
    return results if plan.shard or not request.whole else with_unmet_skips(results)


def _slots(host: Host) -> Slots:
    return Slots(folder=host.slots, boot=host.boot, clock=host.clock, sleep=host.sleep)


def _only(plan: RunPlan, names: Iterable[str], wanted: Callable[[str], bool]) -> RunPlan:
    """Select some tests; other files than theirs are not even imported."""
    files = {name.partition("::")[0] for name in names}
    kept = tuple(file for file in plan.files if file in files)
    return replace(plan, files=kept, wanted=wanted)


def _logs(request: GateRequest) -> Path:
    """Make and return the folder of logs."""
    folder = request.output / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
