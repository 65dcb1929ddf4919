"""What a requirement for pip may say."""

from __future__ import annotations

import pytest

from rocwheel.base.errors import ConfigError
from rocwheel.rocm import by_pip


def test_an_address_is_refused_without_its_password():
    with pytest.raises(ConfigError, match="an address") as caught:
        by_pip.checked("rocm[libraries,devel] @ https://bob:s3cr3t@host/rocm.whl")
    assert "s3cr3t" not in f"{caught.value}{caught.value.hint}"
