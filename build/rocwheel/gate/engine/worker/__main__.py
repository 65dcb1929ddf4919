"""Start a worker by its path, in the tested environment: `python .../worker SETTINGS`.

SETTINGS is JSON: commands, events, stacks, pytest, watch, libraries, modules.
"""

import json
import sys
from importlib import import_module, util
from pathlib import Path

NAME = "_rocwheel_worker"  # what tests import is never one of ours


def load() -> None:
    """Make the modules beside this file a package of a private name."""
    folder = Path(__file__).resolve().parent
    sys.path[:] = [path for path in sys.path if not path or Path(path).resolve() != folder]
    spec = util.spec_from_file_location(NAME, folder / "__init__.py")
    if spec is None or spec.loader is None:
        raise ImportError(f"{folder} is not a package")
    sys.modules[NAME] = util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[NAME])


if __name__ == "__main__":
    load()
    sys.exit(import_module(f"{NAME}.session").main(json.loads(sys.argv[1])))
