"""The ledger: what happened at one place of a store.

`log` reads and commits entries, `state` is their fold, `manifests` and `verdicts` are what entries
refer to.
"""
