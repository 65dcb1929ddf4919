"""Files over HTTP: retried within bounds, resumed, checked, never silently insecure.

`Client` asks a server; only `AbsentError` says that it has no such file. `Download` streams one
file and keeps what has come in a `Part`, so that the next run continues it; `save` puts one file
with a known SHA-256 into its place. TLS certificates are always verified; a source on https never
leads to http. Proxies and the CA bundle come from the mapping that is given.
"""

from rocwheel.download.client import (
    BLOCK,
    Client,
    DownloadError,
    Fingerprint,
    Retry,
    session,
)
from rocwheel.download.resume import (
    Download,
    WrongBytesError,
    consumed,
    save,
)
from rocwheel.download.urls import (
    has_password,
    has_secret,
    proxies,
    reason,
    shown,
    shown_setting,
    without_secrets,
)

__all__ = [
    "BLOCK",
    "Client",
    "Download",
    "DownloadError",
    "Fingerprint",
    "Retry",
    "WrongBytesError",
    "consumed",
    "has_password",
    "has_secret",
    "proxies",
    "reason",
    "save",
    "session",
    "shown",
    "shown_setting",
    "without_secrets",
]
