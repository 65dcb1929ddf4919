"""Which CA bundle Bazel's JVM trusts, and the mistakes in naming one."""

from __future__ import annotations

import pytest
from support import certificates

from rocwheel.base.errors import ConfigError
from rocwheel.base.process import GuestPath
from rocwheel.bazel.remote import in_use


def test_a_machine_without_such_a_variable_changes_nothing():
    assert in_use({"PATH": "/bin"}) is None


@pytest.mark.needs("openssl")
def test_the_variables_of_other_programs_count(tmp_path):
    issued = certificates.make(tmp_path)
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        found = in_use({name: str(issued.authority)})
        assert found is not None
        store, *others = found.startup(GuestPath("/out"))
        assert store == f"--host_jvm_args=-Djavax.net.ssl.trustStore=/out/{found.name}"
        assert len(others) == 2


def test_a_trust_store_among_the_users_options_wins(tmp_path):
    own = ("--host_jvm_args=-Djavax.net.ssl.trustStore=/mine",)
    assert in_use({"SSL_CERT_FILE": str(tmp_path / "none")}, options=own) is None


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "No such file"),
        (b"", "holds no certificates"),
        (b"-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n", "holds no certificates"),
        (b"\xff\xfe", "holds no certificates"),
    ],
)
def test_a_bundle_that_is_none_is_refused_before_the_build(tmp_path, content, problem):
    bundle = tmp_path / "ca.pem"
    if content is not None:
        bundle.write_bytes(content)
    with pytest.raises(ConfigError, match=problem):
        in_use({"SSL_CERT_FILE": str(bundle)})
