"""Keys of all roles, and a shop whose channel needs them."""

from __future__ import annotations

import pytest
from support.trust import Keyring, SignedShop


@pytest.fixture(scope="session")
def keys(tmp_path_factory) -> Keyring:
    return Keyring(tmp_path_factory.mktemp("keys"))


@pytest.fixture
def shop(tmp_path, console, keys) -> SignedShop:
    return SignedShop(tmp_path, console, keys)
