"""Each role can do its work with exactly its rights, and nothing else.

moto's server enforces IAM policies. Every command is run as each role, with the policy that
`trust rights` prints for it.
"""

from __future__ import annotations

import functools
import json
import os
import re
import sys
from datetime import datetime, timezone
from fnmatch import fnmatch
from pathlib import Path

import boto3
import pytest
from botocore.exceptions import ClientError
from night.test_looking import RECIPE
from support.roles import CELLS, a_night
from support.s3 import enforce, login, moto
from support.wheelset import FAMILY, Shop, make_set, make_verdict, make_wheel, pass_gate

from rocwheel.base.store.opening import open_store
from rocwheel.base.values import replace
from rocwheel.cli import main
from rocwheel.records.places import OURS
from rocwheel.records.verdict import State
from rocwheel.release import rights
from rocwheel.release.index import channels
from rocwheel.release.ledger import log, verdicts
from rocwheel.release.ledger.nights import PROBE, Cell, HostMark, Nights

ROLES = tuple(rights.ROLES)
OTHER = "gfx1151"
pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("rights")]
FORBIDDEN = 7  # the exit status of a store that refuses


class World:
    """A bucket on a server that enforces policies, and a user for each role."""

    def __init__(self, server, folder: Path, monkeypatch, console, capsys) -> None:
        self.server, self.monkeypatch, self.console = server, monkeypatch, console
        self.bucket = server.bucket(f"bucket-{folder.name.replace('_', '-')}"[:60].rstrip("-"))
        self.url = f"s3://{self.bucket}"
        self.folder = folder
        self.logins = {}
        for role in ROLES:
            capsys.readouterr()
            line = ["trust", "rights", "--role", role, "--family", FAMILY.name]
            assert main([*line, "--store", self.url]) == 0
            document = json.loads(capsys.readouterr().out)
            self.logins[role] = login(server, f"{role}-{self.bucket}"[:60], document)
        self.logins["admin"] = login(server, f"admin-{self.bucket}"[:60], None)
        enforce(server)

    def become(self, role: str) -> None:
        for key, value in self.logins[role].items():
            self.monkeypatch.setenv(key, value)

    def shop(self, role: str, **options) -> Shop:
        self.become(role)
        return Shop(self.url, self.console, **options)

    def runner(self):
        """Staging, as the gate opens it on a runner."""
        shop = self.shop("runner")
        store = shop.channel.open(probe_key=shop.staging.runners_probe)
        return replace(shop.staging, store=store)

    def run(self, role: str, *line: str) -> int:
        self.become(role)
        return main([*line, "--store", self.url, "--family", FAMILY.name])

    @functools.cache  # noqa: B019 - of one test
    def client(self, role: str):
        login = self.logins[role]
        session = boto3.session.Session(
            aws_access_key_id=login["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=login["AWS_SECRET_ACCESS_KEY"],
            region_name="us-east-2",
        )
        return session.client("s3", endpoint_url=self.server.endpoint)

    def iam(self):
        """IAM of the server, for its owner."""
        return boto3.session.Session(
            aws_access_key_id="owner", aws_secret_access_key="owner", region_name="us-east-2"
        ).client("iam", endpoint_url=self.server.endpoint)

    def may(self, role: str, operation: str, key: str, **options) -> bool:
        try:
            getattr(self.client(role), operation)(Bucket=self.bucket, Key=key, **options)
        except ClientError as exc:
            if exc.response["ResponseMetadata"]["HTTPStatusCode"] != 403:
                raise
            return False
        return True


@pytest.fixture(scope="module")
def enforcing(tmp_path_factory):
    with moto(tmp_path_factory.mktemp("moto")) as server:
        yield server


@pytest.fixture
def world(enforcing, tmp_path, monkeypatch, console, capsys):
    for name in os.environ:
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    enforce(enforcing, "inf")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield World(enforcing, tmp_path, monkeypatch, console, capsys)
    enforce(enforcing, "inf")


def gate(manifest) -> tuple[str, ...]:
    """A gate that ends at once, for want of a GPU; its verdict is stored all the same."""
    return ("gate", "--manifest", manifest.sha256[:12], "--python", "3.12", "--suite", "smoke")


def test_every_role_does_its_work_and_no_other_roles(world, tmp_path, capsys) -> None:
    manifest = make_set(tmp_path / "wh", pythons=("3.12",))
    tried = {
        "stage": ("stage", str(tmp_path / "wh")),
        "gate": gate(manifest),
        "promote": ("promote", "--manifest", manifest.sha256),
        "rollback": ("rollback", "--manifest", manifest.sha256, "--reason", "x"),
        "restore": ("restore", "--manifest", manifest.sha256, "--reason", "x"),
        "status": ("status",),
    }
    done = {"stage": 0, "gate": State.NO_RUNNER.exit_code, "promote": 0, "rollback": 0,
            "restore": 0, "status": 0}  # fmt: skip
    owner = {"stage": "builder", "gate": "runner", "promote": "promoter", "rollback": "promoter",
             "restore": "promoter"}  # fmt: skip
    for name, line in tried.items():
        for role in sorted(ROLES, key=lambda role: role == owner.get(name)):
            status = world.run(role, *line)
            said = capsys.readouterr()
            expected = done[name] if owner.get(name) in {role, None} else FORBIDDEN
            assert status == expected, f"{role}: {name}: {status}: {said.err}"
        if name == "gate":
            pass_gate(world.runner(), manifest)
    world.become("admin")
    found = verdicts.find(world.shop("admin").staging, manifest.sha256)
    assert State.NO_RUNNER in {item.verdict.state for item in found}, "stored by the runner"


def test_a_runner_writes_verdicts_of_its_family_and_nothing_else(world, tmp_path) -> None:
    manifest = make_set(tmp_path / "wh", pythons=("3.12",))
    world.shop("builder").stage(tmp_path / "wh")
    staging, release, cell = "v2-staging", "v2", f"{'1' * 64}/{FAMILY.name}/3.12/unit"
    mine = verdicts.add(world.runner(), make_verdict(manifest))
    assert world.may("runner", "put_object", f"{staging}/{OURS}/verdicts/{cell}/x", Body=b"x")
    old = f"{staging}/{FAMILY.name}/{OURS}/verdicts/x", f"{staging}/all/{OURS}/verdicts/{cell}/x"
    for key in old:
        assert world.may("runner", "put_object", key, Body=b"x"), "of sets of before 0.3"
    for key in (
        f"{staging}/{OURS}/verdicts/{cell.replace(FAMILY.name, OTHER)}/x",
        f"{staging}/{OTHER}/{OURS}/verdicts/x",
        f"{release}/{OURS}/verdicts/{cell}/x",
        f"{staging}/{OURS}/manifests/{'0' * 64}.json",
        f"{staging}/{OURS}/log/99.json",
        f"{release}/{OURS}/log/1.json",
        f"{staging}/files/{'1' * 16}/{manifest.built[0].filename}",
        f"{staging}/{FAMILY.name}/jaxlib/index.html",
        f"{OURS}/probe",
    ):
        assert not world.may("runner", "put_object", key, Body=b"x"), key
    for role in ROLES:
        assert not world.may(role, "delete_object", mine), role


def test_a_verdict_that_a_runner_overwrites_becomes_a_failure_and_never_a_pass(
    world, tmp_path, capsys
) -> None:
    """Putting is enough to overwrite on a store; the name gives it away."""
    manifest = make_set(tmp_path / "wh", pythons=("3.12",))
    world.shop("builder").stage(tmp_path / "wh")
    place = world.runner()
    pass_gate(place, manifest)
    failed = verdicts.add(place, make_verdict(manifest, state=State.FAIL))
    forged = make_verdict(manifest, host="node9").to_bytes()
    assert world.may("runner", "put_object", failed, Body=forged)
    capsys.readouterr()
    assert world.run("promoter", "promote", "--manifest", manifest.sha256, "--json") == 9
    (cell,) = json.loads(capsys.readouterr().out)["families"][FAMILY.name]["blocked_by"]
    assert (cell["suite"], cell["state"]) == ("smoke", "flaky")
    assert "its contents differ from its name" in cell["why"]


def test_who_stages_puts_approvals_and_no_other_role_does(world) -> None:
    """The promoter neither: it could not sign one, and what lies there is not its word."""
    base = f"v2-staging/{OURS}/attestations/{'1' * 64}/{FAMILY.name}"
    approval = f"{base}/approval/{'2' * 64}.json"
    may = [role for role in ROLES if world.may(role, "put_object", approval, Body=b"x")]
    assert may == ["builder"]
    assert not [role for role in ROLES if world.may(role, "delete_object", approval)]


def test_every_role_that_writes_records_may_have_them_kept(world, console) -> None:
    """In a bucket with Object Lock, with the policy that `trust rights` prints."""
    enforce(world.server, "inf")
    bucket, admin = f"kept-{world.bucket}"[:60], world.client("admin")
    where = {"LocationConstraint": "us-east-2"}
    admin.create_bucket(
        Bucket=bucket, ObjectLockEnabledForBucket=True, CreateBucketConfiguration=where
    )
    writes = ("builder", "runner", "imager", "promoter")
    channel = channels.of_store(f"s3://{bucket}")
    for role in writes:
        document = rights.policy(channel, rights.ROLES[role], family=FAMILY.name)
        world.logins[role] = login(world.server, f"{role}-{bucket}"[:60], document)
    enforce(world.server)
    for role in writes:
        world.become(role)
        shop = Shop(f"s3://{bucket}", console)
        place = shop.release if role == "promoter" else shop.staging
        probe = place.runners_probe if role == "runner" else f"{OURS}/probe"
        store = channel.open(probe_key=probe)
        own = {"runner": place.report("1" * 64, "3.12", "unit", "x"), "imager": place.images("x")}
        key = own.get(role, place.log(1))
        store.create(key, b"{}", headers=place.record_headers)
        head = admin.head_object(Bucket=bucket, Key=key)
        assert head.get("ObjectLockMode") == "GOVERNANCE", role


def test_the_promoter_prunes_what_is_old_and_cannot_stage(world, tmp_path) -> None:
    manifest = make_set(tmp_path / "wh", pythons=("3.12",))
    world.shop("builder").stage(tmp_path / "wh")
    first = manifest.built[0]
    wheel = world.shop("builder").staging.wheel(first.filename, first.sha256)
    assert not world.may("promoter", "put_object", wheel, Body=b"x")
    assert world.may("promoter", "delete_object", wheel)
    assert not world.may("builder", "delete_object", wheel)


def test_every_role_runs_its_cells_of_a_night_and_tells_of_no_others(
    world, tmp_path, monkeypatch, capsys
) -> None:
    root = Path(__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(root / "build"), str(root))))
    program = f"--program={sys.executable} -m rocwheel"

    def nights(role: str) -> Nights:
        return Nights(world.shop(role).channel.open(probe_key=PROBE))

    mine = nights("builder")
    mine.check_clock(datetime.now(tz=timezone.utc))
    assert mine.add(a_night(world.url))
    for role, name in CELLS.items():
        world.become(role)
        status = main(["nightly", "cell", "one", name, program, "--store", world.url])
        assert status == 0, f"{role}: {capsys.readouterr().err}"
    book = nights("runner").book("one")
    assert {name: item[0].ended.state for name, item in book.attempts.items()} == dict.fromkeys(
        CELLS.values(), State.PASS
    )
    nights("runner").mark_host(
        HostMark(host="h", quarantined=True, by="me", reason="x", time="2026-05-01T00:00:00Z")
    )
    nights("promoter").put_summary("one", b"{}")
    assert world.may("promoter", "put_object", "status/index.html", Body=b"x")
    root_key = f"{OURS}/nights/one"
    for role in ROLES:
        others = [f"{root_key}/cells/{name}/1.json" for r, name in CELLS.items() if r != role]
        others += [] if role == "builder" else [f"{root_key}/plan.json"]
        others += [f"{root_key}/orders/1.json", f"{OURS}/elsewhere"]
        others += [] if role == "runner" else [f"{OURS}/hosts/h/2.json"]
        others += (
            []
            if role in {"promoter", "reporter"}
            else [f"{root_key}/summary.json", "status/index.html"]
        )
        for key in others:
            assert not world.may(role, "put_object", key, Body=b"x"), f"{role}: {key}"
        for key in (f"{root_key}/plan.json", f"{root_key}/cells/{CELLS[role]}/1.json",
                    f"{OURS}/hosts/h/1.json"):  # fmt: skip
            if role != "promoter" or "/hosts/" in key:  # who prunes, last of ROLES
                assert not world.may(role, "delete_object", key), f"{role}: {key}"


def test_an_imager_puts_what_is_known_of_images_and_changes_no_index(world, tmp_path) -> None:
    manifest = make_set(tmp_path / "wh", pythons=("3.12",))
    world.shop("builder").stage(tmp_path / "wh")
    for prefix in ("v2", "v2-staging"):
        of_images = f"{prefix}/{FAMILY.name}/{OURS}/images/{'1' * 64}/sbom.json"
        assert world.may("imager", "put_object", of_images, Body=b"x")
        assert not world.may("imager", "delete_object", of_images)
        assert not world.may("runner", "put_object", of_images, Body=b"x")
        for key in ("jaxlib/index.html", manifest.built[0].filename, f"{OURS}/log/9.json",
                    f"{OURS}/verdicts/x.json"):  # fmt: skip
            where = f"{prefix}/{FAMILY.name}/{key}"
            assert not world.may("imager", "put_object", where, Body=b"x"), where


def test_only_the_promoter_prunes_nights(world, capsys) -> None:
    store = world.shop("builder").channel.open(probe_key=PROBE)
    Nights(store).check_clock(datetime.now(tz=timezone.utc))
    for name in ("one", "two"):
        assert Nights(store).add(replace(a_night(world.url), night=name))
    line = ("nightly", "prune", "--keep", "1", "--store", world.url)
    for role in sorted(ROLES, key="promoter".__eq__):
        world.become(role)
        status = main([*line])
        said = capsys.readouterr()
        assert status == (0 if role == "promoter" else FORBIDDEN), f"{role}: {said.err}"
    assert Nights(store).names() == ("two",)
    assert not [item.key for item in store.keys(f"{OURS}/nights/one/")]


def test_every_change_of_an_index_needs_its_role(world, tmp_path, capsys) -> None:
    """What only the promoter may, tried by all with the command, and with it once more."""
    manifest = make_set(tmp_path / "wh", pythons=("3.12",))
    old = make_set(tmp_path / "old", jax="0.9.0", pythons=("3.12",))
    for name in ("old", "wh"):
        world.shop("builder").stage(tmp_path / name)
    for item in (old, manifest):
        pass_gate(world.runner(), item)
        world.shop("promoter").promote(item)
    reason = ("--manifest", manifest.sha256, "--reason", "x")
    (tmp_path / "channels.yaml").write_text(
        f"channels:\n  own:\n    store: {world.url}\n    retention: {{release_days: 1, "
        'keep_newest: 0}\n    prefixes:\n      "7": {staging: v2-staging, release: v2}\n'
    )
    own = ("--channel", "own", "--channels-file", str(tmp_path / "channels.yaml"))
    for line, where in (
        (("yank", *reason), ()),
        (("unyank", *reason), ()),
        (("index", "repair"), ()),
        (("index", "check"), ()),
        (("prune", "--reason", "old"), own),
    ):
        if line[1] == "repair":  # has something to do
            page = f"v2/{FAMILY.name}/jaxlib/index.html"
            world.client("admin").delete_object(Bucket=world.bucket, Key=page)
        for role in sorted(ROLES, key="promoter".__eq__):
            world.become(role)
            place = where or ("--store", world.url)
            status = main([*line, "--family", FAMILY.name, *place])
            said = capsys.readouterr()
            allowed = role == "promoter" or line[:2] == ("index", "check")
            assert status == (0 if allowed else FORBIDDEN), f"{role}: {line}: {said.err}"
            assert "Traceback" not in said.err
    world.become("admin")
    state = log.read(world.shop("admin").release)
    assert {known.standing.value for known in state.sets.values()} == {"pruned"}


def test_what_was_here_before_is_taken_over_by_the_promoter_alone(world, tmp_path, capsys) -> None:
    made = make_wheel(
        tmp_path, project="jaxlib", version="0.6.0", tag="py3-none-any", module="jaxlib"
    )
    world.client("admin").put_object(
        Bucket=world.bucket, Key=f"v2/{FAMILY.name}/{made.name}", Body=made.read_bytes()
    )
    for role in sorted(ROLES, key="promoter".__eq__):
        status = world.run(role, "index", "adopt")
        said = capsys.readouterr()
        assert status == (0 if role == "promoter" else FORBIDDEN), f"{role}: {said.err}"
        assert "Traceback" not in said.err
    state = log.read(world.shop("admin").release, files=True)
    assert made.name in {item.filename for item in state.shown("jaxlib")}


def test_a_bisect_is_asked_by_the_builder_and_its_tests_run_by_the_runner(
    world, monkeypatch, tmp_path
) -> None:
    monkeypatch.setenv("GITHUB_OUTPUT", str(tmp_path / "outputs"))  # as in a job of bisect.yml
    world.become("admin")
    nights = Nights(open_store(world.url))
    for night, digit in (("one", "1"), ("two", "2")):
        of = {"wheels": "jax", "family": FAMILY.name, "suite": "smoke", "python": "3.12"}
        gate = Cell(name="gate", kind="gate", argv=("gate",), kept="passed", **of)
        build = Cell(name="build", kind="build", argv=("dist_wheels",), kept="built", wheels="jax")
        recipe = replace(RECIPE, rocm="", manifest=digit * 64)
        nights.add(replace(a_night(world.url), night=night, recipes=(recipe,), cells=(build, gate)))
    line = ["nightly", "bisect", "--test=t", "--good=one", "--bad=two", "--engine=github"]
    for role in sorted(ROLES, key="builder".__eq__):
        world.become(role)
        assert main([*line, "--store", world.url]) == (0 if role == "builder" else FORBIDDEN), role
    url = f"{world.url}/bisect"
    (probe,) = Nights(open_store(url)).names()
    line = ["nightly", "cell", probe, "gate.probe", "--engine=github", "--keep-going"]
    world.become("runner")
    assert main([*line, "--program=sh -c 'echo {}'", "--store", url]) == 0
    (attempt,) = Nights(open_store(url)).book(probe).attempts["gate.probe"]
    assert attempt.ended.state is State.PASS


def test_the_table_in_the_documentation_is_the_data() -> None:
    names = {"staging": "<staging>", "release": "<release>", "family": "<family>"}
    rows = ["| role | does | reads | writes | deletes | never |", "| --- " * 6 + "|"]
    for role in rights.ROLES.values():
        may = [role.may.get(action, ()) for action in (rights.READ, rights.PUT, rights.DELETE)]
        cells = (
            ", ".join(f"`{key.format(**names)}`" for key in keys) or "-"
            for keys in (*may, role.may_not.get(rights.PUT, ()))
        )
        rows.append(f"| {role.name} | {role.about} | {' | '.join(cells)} |")
    page = (Path(__file__).parents[2] / "docs/how-to/buckets.md").read_text()
    assert "\n".join(rows) in page


def test_every_key_of_nights_is_written_by_a_role_or_by_people() -> None:
    page = (Path(__file__).parents[2] / "docs/layout.md").read_text()
    rows = re.findall(r"^\| `(_rocwheel/(?:nights|hosts)/[^`]+)`", page, re.MULTILINE)
    assert len(rows) > 7
    written = [key for role in rights.ROLES.values() for key in role.may.get(rights.PUT, ())]
    unwritten = [
        row
        for row in rows
        if not any(fnmatch(re.sub("<[a-z0-9]+>|…", "build.x", row), key) for key in written)
    ]
    assert unwritten == ["_rocwheel/nights/<night>/orders/<n>.json"], "by people"


def test_all_prefixes_of_a_channel_are_in_its_policies() -> None:
    nightly = channels.channel(Path(__file__).parents[2] / "ci/channels.yaml", "nightly")
    text = json.dumps(rights.policy(nightly, rights.ROLES["runner"], family="gfx942"))
    for prefix in ("v2-staging", "v2-rocm10-staging"):
        assert f"arn:aws:s3:::therock-nightly-python/{prefix}/{OURS}/verdicts/*/gfx942/*" in text


def test_a_role_of_one_family_changes_nothing_of_another(world) -> None:
    """A builder of X put passes of Y, and a promoter of X deleted verdicts of Y."""
    shared = channels.of_store(world.url)
    logins = {}
    for role in ("builder", "runner", "promoter"):
        document = rights.policy(shared, rights.ROLES[role], family=FAMILY.name)
        name = f"both-{role}-{world.bucket}"[:60]
        enforce(world.server, "inf")
        logins[f"both {role}"] = login(world.server, name, document)
        enforce(world.server)
    world.logins |= logins
    below, name = f"v2-staging/{OURS}", "1" * 64
    for family, own in ((OTHER, False), (FAMILY.name, True)):
        verdict = f"{below}/verdicts/{name}/{family}/3.12/unit/{name}.json"
        assert world.may("both runner", "put_object", verdict, Body=b"x") is own
        for role in ("builder", "promoter"):
            assert not world.may(f"both {role}", "put_object", verdict, Body=b"x"), role
            assert not world.may(f"both {role}", "delete_object", verdict), role
    odd = f"{below}/verdicts/{name}/{OTHER}/3.12/unit/{FAMILY.name}.json"
    assert not world.may("both runner", "put_object", odd, Body=b"x"), "its name has the family"
