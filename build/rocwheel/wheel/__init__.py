"""Wheels: read, judged, renamed, repaired and compared without unpacking them.

`inspect` reads a wheel once and flat in memory, `verify` judges it by `ci/wheel_policy.yaml`,
`rename` changes its names and `repair` makes it fit to ship by splicing new texts between the
compressed members of the old archive. No step holds more than a few MiB of a wheel in memory.
"""
