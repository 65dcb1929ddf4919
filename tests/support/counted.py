"""As if the tests of every suite had been counted on every family: no GPU is here to do it."""

from __future__ import annotations

import json

import amdgpu_family_matrix as matrix

SERIES = ("0.8.0", "0.9.0", "0.10.0", "0.11.0")
# suite -> family -> release: nothing but what the suite itself demands
COUNTED = {
    suite: {family: {version: {} for version in SERIES} for family in (*matrix.FAMILIES, "gfx942")}
    for suite in ("unit", "multi_gpu")
}
CALIBRATION = "counted: " + json.dumps(COUNTED)  # a file of it, for another process
