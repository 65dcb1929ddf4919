"""Releases: what may change an index, and how.

`operations` is the one transaction; it carries out `stage`, `promote`, `withdraw` (yank, rollback,
restore), `retention` (prune) and `audit` (check, repair, adopt). `policy` decides what may be
released, `proof` what signatures prove of it, `wheelset` checks sets. `status` only reads.
"""
