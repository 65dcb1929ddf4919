"""A file over HTTP as a stream of blocks that survives cuts, in this run and in the next.

A cut download continues where it was cut (RFC 9110, ranges and If-Range) when the server says
that the file is still the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rocwheel.console import size
from rocwheel.download import Answer, ChangedError, Client, LostError, Remote, without_secrets
from rocwheel.errors import FetchError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rocwheel.rocm.spool import Spool

PROGRESS: Final = 1 << 20  # bytes after which a cut is the first one again


class Download:
    """One file: the part an earlier run left, then the rest from the network."""

    def __init__(self, client: Client, url: str, spool: Spool) -> None:
        self._client = client
        self._url = url
        self._spool = spool
        self._answer: Answer | None = None
        self._stopped = False

    def begin(self) -> Remote:
        """Ask for the file; what the server says it is. Raises FetchError."""
        answer = self._resume() or self._client.get(self._url)
        if answer.start == 0:
            if answer.status != 200:  # noqa: PLR2004
                answer.close()
                raise FetchError(
                    f"{without_secrets(self._url)}: {answer.status} where a file should come",
                    hint="the server is broken; try another mirror",
                )
            self._spool.begin(answer.remote)
        self._answer = answer
        return answer.remote

    def _resume(self) -> Answer | None:
        """Continue an earlier run's download; None when that is not possible."""
        known = self._spool.remote
        if known is None or not known.validator or not self._spool.size:
            return None
        # The last byte is fetched again even if all are there: the server must say what it has.
        start = min(self._spool.size, (known.size or self._spool.size + 1) - 1)
        answer = self._client.get(self._url, start=start, only_if=known)
        if start and answer.status == 206 and answer.start == start:  # noqa: PLR2004
            if answer.remote.same(known):
                self._spool.truncate(start)
                return answer
        elif answer.status == 200:  # noqa: PLR2004
            return answer
        answer.close()
        return None

    def blocks(self) -> Iterator[bytes]:
        """The whole file from its first byte, once.

        Raises FetchError when patience ends, ChangedError when the source changed meanwhile.
        """
        yield from self._spool.replay()
        answer, skip = self._answer, 0
        while answer and not self._stopped:
            before = self._spool.size
            try:
                for block in answer.blocks():
                    part = block[skip:] if skip else block
                    skip -= min(skip, len(block))
                    if part:
                        self._spool.write(part)
                        yield part
                self._complete(answer.remote)
            except LostError as exc:
                if self._spool.size - before >= PROGRESS:
                    self._client.progressed()
                self._client.failed(self._url, exc, kept=self._spool.size)
            else:
                return
            finally:
                answer.close()
            answer, skip = self._again()

    def _complete(self, remote: Remote) -> None:
        """Raises LostError when the body ended before the file did."""
        if remote.size is not None and self._spool.size < remote.size:
            raise LostError(f"cut after {size(self._spool.size)} of {size(remote.size)}")
        if remote.size is not None and self._spool.size > remote.size:
            raise ChangedError

    def _again(self) -> tuple[Answer, int]:
        """Reconnect after a cut; also how many bytes of the answer are here already."""
        known = self._spool.remote
        if known is None or not known.validator:
            raise ChangedError  # nothing says that it is still the same file
        done = self._spool.size
        answer = self._answer = self._client.get(self._url, start=done, only_if=known)
        if not answer.remote.same(known) or answer.start not in (0, done):
            answer.close()
            raise ChangedError
        return answer, 0 if answer.start else done

    def close(self) -> None:
        """Give the connection back."""
        if self._answer:
            self._answer.close()

    def cancel(self) -> None:
        """Stop `blocks`, which runs in another thread."""
        self._stopped = True
        self._client.cancel()
        if self._answer:
            self._answer.interrupt()
