"""What tests start beside the thing they test."""

from __future__ import annotations

# In front of a command line: a test that is killed takes its servers with it.
DIES_WITH_US = ("setpriv", "--pdeathsig", "TERM")
