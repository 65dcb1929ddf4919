"""What docker/install.sh does to a base, in a real container."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import engines

pytestmark = [
    pytest.mark.integration,
    pytest.mark.needs("dockerd", "mmdebstrap"),
    pytest.mark.xdist_group("containers"),
]

SCRIPT = Path(__file__).parents[2] / "docker" / "install.sh"


@pytest.mark.timeout(300)
def test_compiler_wrappers_find_a_python3_that_is_new_enough(tmp_path):
    """A manylinux_2_28 base has 3.6 as `python3`; nothing else of it is touched."""
    old, taken = tmp_path / "python3", []
    old.touch(0o755)
    script = (
        "PATH=/usr/local/bin:/old:/usr/bin:/bin; sh /install.sh python3 /usr/bin/python3.11"
        " && readlink -f $(command -v python3)"
    )
    with engines.docker() as engine:
        engines.with_image(engine)
        for version in ("3, 6, 8", "3, 11, 2"):
            old.write_text(
                "#!/bin/sh\nexec /usr/bin/python3.11 -c 'import sys; "
                f'sys.version_info = ({version}); exec(sys.argv[1])\' "$2"\n'
            )
            taken += engine(
                *("run", "--rm", "--network=none", f"--volume={SCRIPT}:/install.sh:ro"),
                *(f"--volume={tmp_path}:/old:ro", engines.BASE, "sh", "-c", script),
            ).split()
    assert taken == ["/usr/bin/python3.11", "/old/python3"]
