"""`python -m rocwheel`."""

import sys

from rocwheel.cli import main

if __name__ == "__main__":
    sys.exit(main())
