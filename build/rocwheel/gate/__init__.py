"""The gate: runs a suite of tests on accelerators against installed wheels, ending in a verdict.

`run` is the stage. `machine/` finds the devices a run may use and checks its environment; `suite/`
finds the tests and knows their past; `engine/` runs them in worker processes; `verdict/` turns
results into a state and stores it. `machine/facts.py` and `engine/worker/` are scripts that run in
the tested environment: they know only the standard library, pytest and what they test.
"""
