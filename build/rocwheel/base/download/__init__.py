"""Files over HTTP: retried within bounds, resumed, checked, never silently insecure.

`Client` asks a server; only `AbsentError` says that it has no such file. `Download` streams one
file and keeps what has come in a `Part`, so that the next run continues it; `save` puts one file
with a known SHA-256 into its place. TLS certificates are always verified; a source on https never
leads to http. Proxies and the CA bundle come from the mapping that is given.
"""

from rocwheel.base.download.client import AbsentError as AbsentError
from rocwheel.base.download.client import Client as Client
from rocwheel.base.download.client import DownloadError as DownloadError
from rocwheel.base.download.client import Fingerprint as Fingerprint
from rocwheel.base.download.client import Retry as Retry
from rocwheel.base.download.client import session as session
from rocwheel.base.download.resume import Download as Download
from rocwheel.base.download.resume import WrongBytesError as WrongBytesError
from rocwheel.base.download.resume import consumed as consumed
from rocwheel.base.download.resume import save as save
from rocwheel.base.download.urls import has_password as has_password
from rocwheel.base.download.urls import has_secret as has_secret
from rocwheel.base.download.urls import is_loopback as is_loopback
from rocwheel.base.download.urls import proxies as proxies
from rocwheel.base.download.urls import reason as reason
from rocwheel.base.download.urls import shown_setting as shown_setting
from rocwheel.base.download.urls import without_secrets as without_secrets
