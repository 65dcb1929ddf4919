"""The gate: a suite on accelerators, against installed wheels, ending in one verdict.

`run` is the stage. Below it: `accelerators` and `slots` say which devices a run may use, `setup`
makes the environment, `preflight` proves what is in it, `engine` runs the tests in worker
processes, `judge` turns results into a state. `inject/` holds the two scripts that run in the
tested environment; they know only the standard library, pytest and what they test.
"""
