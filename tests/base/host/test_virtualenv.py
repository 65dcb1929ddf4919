"""The environment rocwheel makes for itself is filled whatever pip was told elsewhere."""

from __future__ import annotations

from rocwheel.base.host import virtualenv


def test_settings_that_send_packages_elsewhere_do_not_count():
    elsewhere = {"PIP_TARGET": "/x", "PIP_PREFIX": "/x", "PIP_USER": "1", "PIP_ROOT": "/x"}
    kept = virtualenv.plain({**elsewhere, "PIP_INDEX_URL": "https://example.com", "PATH": "/bin"})
    assert kept == {"PIP_INDEX_URL": "https://example.com", "PATH": "/bin"}
