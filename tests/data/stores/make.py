"""Write a small store with the code of a released version, whose checkout is the working folder.

    git archive VERSION | tar x -C OLD; cd OLD
    PYTHONPATH=build:tests python3 NEW/tests/data/stores/make.py NEW/tests/data/stores/VERSION.zip

Set A is released and rolled back, B is released and yanked, C is released, D is staged and passed.
What the version knows beyond that (a migration in 0.1.0, a set of two families in 0.2.0) is there, too.
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
from rocwheel.console import Console
from rocwheel.ledger import log, state
from rocwheel.release import operations, stage

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
if rocwheel.__version__ == "0.2.0":
    from support.shared import SharedShop, X, Y

    both = SharedShop(store.as_uri(), console)
    for jax, families in {"0.10.1": (X, Y), "0.10.2": (X,)}.items():
        one = both.made(folder / jax, jax=jax, pythons=("3.12",))
        both.gate(one, *families)
        both.release_for(one)
    both.take(state.Action.ROLLBACK, one, X)
shutil.rmtree(store / ".rocwheel", ignore_errors=True)
with zipfile.ZipFile(target, "w") as archive:
    for path in sorted(filter(Path.is_file, store.rglob("*"))):
        data = path.read_bytes()
        if path.suffix != ".whl":
            data = data.replace(store.as_uri().encode(), b"file:///STORE")
        name = zipfile.ZipInfo(path.relative_to(store).as_posix(), (2026, 5, 1, 0, 0, 0))
        archive.writestr(name, data, zipfile.ZIP_DEFLATED)
