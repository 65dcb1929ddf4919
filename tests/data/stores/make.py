"""Write a small store with the code of a released version, whose checkout is the working folder.

    git archive VERSION | tar x -C OLD; cd OLD
    PYTHONPATH=build:tests python3 NEW/tests/data/stores/make.py NEW/tests/data/stores/VERSION.zip

Set A is released and rolled back, B is released and yanked, C is released, D is staged and passed.
What the version knows beyond that (a migration in 0.1.0, a set of two families in 0.2.0) is there, too.
`format-2` is of 2d91f927, the last with a log for each family.
"""

import shutil
import sys
import tempfile
import time
import uuid
import zipfile
from pathlib import Path

import msgspec
from support import wheelset
from support.wheelset import FAMILY, Shop, make_set, pass_gate

import rocwheel
from rocwheel.release import operations, stage

try:
    from rocwheel.base.console import Console
    from rocwheel.release.ledger import log, state
except ImportError:  # before 0.3
    from rocwheel.console import Console
    from rocwheel.ledger import log, state

target, folder = Path(sys.argv[1]), Path(tempfile.mkdtemp())
console = Console(sys.stderr, clock=time.monotonic, verbosity=-1)
store = folder / "store"
store.mkdir()
shop = Shop(store.as_uri(), console)


def migrated() -> None:
    """Let the release begin with an entry of `index migrate`: a rolled back set, a spent name."""
    old = make_set(folder / "old", jax="0.8.0", pythons=("3.12",))
    planned = stage.plan(folder / "old", FAMILY, shop.channel, shop.store, who=wheelset.WHO)
    entries = tuple(item.entry for item in planned.operation.uploads)
    for item in entries:
        shutil.copy(folder / "old" / item.filename, store / "v2" / FAMILY.name / item.filename)
    times = {"first": "2026-01-01T00:00:00Z", "changed": "2026-02-01T00:00:00Z"}
    brings = stage.holding(old, entries)
    brings = msgspec.structs.replace(brings, standing=state.Standing.HELD, **times)
    entry = state.Transition(
        number=1, previous="", id=uuid.uuid4().hex, action=state.Action.MIGRATE,
        family=FAMILY.name, time=wheelset.WHO.time, by="tester", reason="", brings=(brings,),
        names=("jaxlib-0.7.0-cp312-cp312-manylinux_2_27_x86_64.whl",),
    )  # fmt: skip
    assert log.commit(shop.release, entry)
    operations.complete(shop.release, log.read(shop.release))


if rocwheel.__version__ == "0.1.0":
    (store / "v2" / FAMILY.name).mkdir(parents=True)
    migrated()
sets = {
    name: make_set(folder / name, jax=jax, pythons=("3.12",))
    for name, jax in {"A": "0.9.1", "B": "0.9.2", "C": "0.9.3", "D": "0.9.4"}.items()
}
for name, manifest in sets.items():
    shop.stage(folder / name)
    pass_gate(shop.staging, manifest)
    if name != "D":
        shop.promote(manifest)
shop.change(state.Action.ROLLBACK, sets["A"], reason="wrong")
shop.change(state.Action.YANK, sets["B"], reason="slow")
if rocwheel.__version__ != "0.1.0":
    from support.shared import SharedShop, X, Y

    both = SharedShop(store.as_uri(), console)
    for jax, families in {"0.10.1": (X, Y), "0.10.2": (X,)}.items():
        one = both.made(folder / jax, jax=jax, pythons=("3.12",))
        both.gate(one, *families)
        both.release_for(one)
    both.take(state.Action.ROLLBACK, one, X)
if target.stem == "format-2":  # other bytes of a name that X has; what came before rocwheel
    from support.shared import Z

    from rocwheel.release import adopt

    make_set(folder / "Y", jax="0.9.3", pythons=("3.12",), gfx=Y.targets, stamp="Y")
    own, one = shop.channel, stage.plan(folder / "Y", Y, shop.channel, shop.store, who=wheelset.WHO)
    stage.apply(one, console=console)
    foreign = own.release(shop.store, Z.name, 7)
    made = wheelset.make_wheel(
        folder, project="jaxlib", version="0.8.0", tag="cp312-cp312-any", module="jaxlib"
    )
    shop.store.create(foreign.key(made.name), made, headers=foreign.wheel_headers)
    wheelset.applied(adopt.plan(foreign, who=wheelset.WHO))
shutil.rmtree(store / ".rocwheel", ignore_errors=True)
with zipfile.ZipFile(target, "w") as archive:
    for path in sorted(filter(Path.is_file, store.rglob("*"))):
        data = path.read_bytes()
        if path.suffix != ".whl":
            data = data.replace(store.as_uri().encode(), b"file:///STORE")
        name = zipfile.ZipInfo(path.relative_to(store).as_posix(), (2026, 5, 1, 0, 0, 0))
        archive.writestr(name, data, zipfile.ZIP_DEFLATED)
