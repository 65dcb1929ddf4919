"""Releases: what may change an index, and how.

`operations` is the one transaction; `stage`, `promote`, `withdraw` (yank, rollback, restore),
`retention` (prune, repair), `adopt` are what it carries out; `policy` says what may
be released, `wheelset` what a set must be; `status`, `audit` and `pip_resolution` look;
`rights` says which role may do what.
"""
