"""A store behind `serve`, in a thread of the test."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from rocwheel.index.serve import Site


@contextlib.contextmanager
def serving(store, **options) -> Iterator[Site]:
    """A site that answers while the block lasts."""
    with Site(store, **options) as site:
        thread = threading.Thread(target=site.serve_forever, daemon=True)
        thread.start()
        try:
            yield site
        finally:
            site.shutdown()
            thread.join()
