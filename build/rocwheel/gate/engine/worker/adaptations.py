"""What pytest and the import system are given in place of, or beside, their own parts."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest


class QuietReporter:
    """Stands where pytest's terminal reporter was, and prints nothing.

    pytest asks the plugin of that name for its terminal writer when it explains a comparison
    (`Config.get_terminal_writer`); without one every failing `==` is an error inside pytest 8.
    """

    def __init__(self, config: pytest.Config) -> None:
        from _pytest.config import create_terminal_writer

        self._tw = create_terminal_writer(config, Path(os.devnull).open("w"))  # noqa: SIM115
        self._tw.fullwidth = 100
        self.verbosity = 0
        self.stats: dict[str, list[Any]] = {}

    def __getattr__(self, name: str) -> Any:
        """Drop whatever a conftest writes to the reporter."""
        if name.startswith(("pytest_", "__")):
            raise AttributeError(name)
        return lambda *_args, **_options: None


class Extra:
    """An import finder, asked last: modules that the installed wheels lack, from a folder.

    JAX's tests import a few modules of JAX's tree that its wheel leaves out.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self.used: list[str] = []

    def find_spec(self, name: str, path: Sequence[str] | None, _target: Any = None) -> Any:
        """Find a module below the folder; only packages of what is installed are added to."""
        if path is None:
            return None
        *parents, _ = name.split(".")
        spec = PathFinder.find_spec(name, [str(self._folder.joinpath(*parents))])
        if spec is not None and spec.origin is not None:
            self.used.append(name)
            return spec
        return None


def have_flags_parsed() -> None:
    """Let tests read absl's flags, whichever file their process began with.

    A file that is run by itself parses them in `absltest.main`. Under pytest the first file does
    that asks JAX to (`jax.config.parse_flags_with_absl`), for all files that come after it.
    """
    flags: Any = getattr(sys.modules.get("absl.flags"), "FLAGS", None)
    with suppress(AttributeError):  # there is none, or what has that name is another's
        if not flags.is_parsed():
            flags.mark_as_parsed()


def support_subtests() -> None:
    """Let `TestCase.subTest` go on after a subtest that fails or skips, as pytest 9 does.

    Without `addSubTest` in the result unittest runs no subtests at all: the first that skips ends
    its whole test as skipped (https://docs.python.org/3/library/unittest.html#subtests).
    """
    from _pytest.unittest import TestCaseFunction

    if hasattr(TestCaseFunction, "addSubTest"):
        return
    add_skip = TestCaseFunction.addSkip

    def sub_test(self: Any, _case: Any, _test: Any, error: Any) -> None:
        if error:
            self._addexcinfo(error)

    def skip(self: Any, case: Any, reason: str) -> None:
        if not hasattr(case, "test_case"):  # a subtest that skips does not skip its test
            add_skip(self, case, reason)

    for name, method in {"addSubTest": sub_test, "addSkip": skip}.items():
        setattr(TestCaseFunction, name, method)
