"""What is wrong with `gate --rocm` is said without options that a gate does not have."""

from __future__ import annotations

import pytest

from rocwheel.base.errors import ConfigError
from rocwheel.gate import subject


@pytest.mark.parametrize("named", ["nope", "ftp://example.com/x", "/dev/null", "https://"])
def test_a_hint_names_no_option_of_another_command(named, tmp_path):
    with pytest.raises(ConfigError) as caught:
        subject.rocm_of(None, named, exact=False, cache=tmp_path / "cache", cwd=tmp_path)
    assert caught.value.hint
    assert "--therock" not in f"{caught.value} {caught.value.hint}"
