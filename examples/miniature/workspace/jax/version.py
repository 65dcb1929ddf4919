"""The version: read by the build from the `_version` line, copied into every wheel."""

from __future__ import annotations

_version = "0.11.99"

# Filled in by the wheel builder, except in the pjrt wheel, which carries this file as it is.
_release_version: str | None = None
_git_hash: str | None = None

__version__ = _release_version or _version
