"""The nightly: one plan, and engines that run it here, on a Slurm cluster or on GitHub Actions.

`settings` is `ci/nightly.yaml`; `planning` turns it into a plan, once, with nothing in it that
moves; `standing` derives each cell's state from its attempts; `cell` runs one cell on any machine;
`local` and `slurm` decide when and where cells run. What may be released is decided in `release`
alone.
"""
