"""Opens a store by its URL: the one place that knows which kinds there are."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from rocwheel.base.errors import ConfigError
from rocwheel.base.store import Options, Store, bucket_of
from rocwheel.base.store.file import FileStore


def open_store(url: str, options: Options | None = None) -> Store:
    """Open a store by its URL; nothing is asked of it yet. Raises ConfigError."""
    options = options or Options()
    parts = urlsplit(url)
    is_here = parts.scheme == "file" and parts.netloc in {"", "localhost"}
    if is_here and parts.path[:1] == "/" and not (parts.query or parts.fragment):
        return FileStore(Path(unquote(parts.path)))
    if address := bucket_of(url):
        from rocwheel.base.store.s3 import S3Store  # for which a command on a folder does not wait

        return S3Store(*address, options)
    raise ConfigError(f"{url}: not a store", hint="write s3://bucket/prefix or file:///folder")


def absolute(url: str, prefix: str) -> tuple[str, ...]:
    """Return a prefix's bucket ("" for a folder) and folders, however its store is spelt."""
    bucket, path = bucket_of(url) or ("", str(Path(unquote(urlsplit(url).path)).resolve()))
    return (bucket, *filter(None, f"{path}/{prefix}".split("/")))
