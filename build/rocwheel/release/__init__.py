"""Releases: what may change an index, and how.

`operations` is the one transaction; it carries out `stage`, `promote`, `withdraw` (yank, rollback,
restore), `retention` (prune, repair) and `adopt`. `policy` decides what may be released, `wheelset`
checks sets; `status`, `audit` and `pip_resolution` only read; `rights` lists the rights of roles.
"""
