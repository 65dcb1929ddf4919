"""What every start of rocwheel runs: `build/ci_build`, `python -m rocwheel`, an installed one."""

import atexit
import gc
import sys

gc.set_threshold(50_000)  # collecting while modules are imported is a twentieth of a short command
atexit.register(gc.freeze)  # or Python looks for garbage when it ends: a tenth of `--help`

from rocwheel.cli import main  # noqa: E402 - that comes first

if __name__ == "__main__":
    sys.exit(main())
