"""The worker: a pytest session that runs what the engine sends and reports every step of it.

It runs in the tested environment, so it knows only the standard library and pytest, and no module
of it may answer an import of the tests: `__main__` loads it under a private name.

Commands and events are JSON lines on two pipes; everything tests print stays on stdout and stderr,
which are the worker's log. Commands: `begin` with the key that every event carries, `collect` a
file, `run` tests in order (after a failure the rest of those already sent is dropped: `batch` says
which they are), `end`. Events: `ready`, `collecting`, `collected`, `start`, `finish`, `late` (a
fixture failed after its test was reported), `stray` (something that an earlier test left running
failed) and `bye`.
"""
