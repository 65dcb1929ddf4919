"""The ledger: logs, manifests, verdicts and nights, as they are stored.

`log` reads and commits entries, `state` is their fold, `manifests` and `verdicts` are what entries
refer to.
"""
