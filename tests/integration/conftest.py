"""Fixtures of tests against real servers."""

from __future__ import annotations

from support.faults import front
from support.s3 import servers

__all__ = ["front", "servers"]
