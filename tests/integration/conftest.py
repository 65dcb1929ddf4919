"""Fixtures of tests against real servers."""

from __future__ import annotations

from support.s3 import servers

__all__ = ["servers"]
