"""A night with nothing to do in a real bucket: what it asks of the store, counted."""

from __future__ import annotations

import pytest
from support.night import World

import amdgpu_family_matrix as matrix
from rocwheel.base.store.opening import open_store
from rocwheel.release.ledger.nights import Nights

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)]
# Requests of a night of all families, of which there are 658, and one for each further night that
# the page shows (30 at most); benchmarks/nightly.py holds all of them against it.
MOST = 900


@pytest.mark.soak
def test_a_night_with_nothing_to_do_asks_little_of_each_family(tmp_path, front, servers):
    world = World(tmp_path, servers.fresh_url("seaweedfs"))
    world.plan("one", check=True)
    world.local("one", check=True)
    front.faults.arm(None)
    said = world.plan("two", check=True)
    assert "2 cells to run" in said.out, said.out
    world.local("two", check=True)
    seen = list(front.faults.seen)
    of_family = [name for name in seen if "/v2" in name]
    whole = len(seen) - len(of_family) + len(matrix.FAMILIES) * len(of_family)
    assert whole <= MOST, (whole, seen)
    assert world.states("two")["page"] == "pass"
    families = Nights(open_store(world.store)).summary("two")
    assert b'"green":"' in families.replace(b" ", b"")
    assert b'"green":""' not in families.replace(b" ", b"")
