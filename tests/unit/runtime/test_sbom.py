"""The bill of materials of an image: what CycloneDX's schema asks for, the same every time."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from types import SimpleNamespace

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from rocwheel.runtime import sbom
from rocwheel.runtime.packages import PackagePin

NOW = datetime(2026, 1, 2, tzinfo=timezone.utc)
DEBIAN = ("libc6 2.36-9+deb12u13 amd64", "python3.11 3.11.2-6 amd64", "distribution debian 12")
RED_HAT = ("glibc 2.28-251.el8 x86_64", "distribution almalinux 8.10")


@pytest.fixture
def plan(tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libx.so.1.0").write_bytes(b"x")
    (tmp_path / "lib" / "libx.so.1").symlink_to("libx.so.1.0")
    (tmp_path / "lib" / "data.bin").write_bytes(b"y")
    return SimpleNamespace(
        subject=SimpleNamespace(repository="rocm/jax"),
        rocm=SimpleNamespace(root=tmp_path, version="7.2.0"),
        closure=SimpleNamespace(paths=("lib/data.bin", "lib/libx.so.1", "lib/libx.so.1.0")),
        pins=(
            PackagePin(project="jax", version="0.9.1", filename="jax-0.9.1.whl", sha256="a" * 64),
        ),
    )


@pytest.mark.parametrize(("system", "kind"), [(DEBIAN, "deb"), (RED_HAT, "rpm")])
def test_it_is_what_the_schema_asks_for(plan, system, kind):
    data = sbom.write(plan, f"sha256:{'b' * 64}", system, now=NOW)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(data.decode()) is None
    refs = [item["bom-ref"] for item in json.loads(data)["components"]]
    assert f"{kind}:{system[0].split()[0]}:{system[0].split()[2]}" in refs
    assert "pypi:jax-0.9.1.whl" in refs
    assert [ref for ref in refs if ref.startswith("rocm:")] == ["rocm:lib/libx.so.1.0"]


def test_the_same_image_at_the_same_time_has_the_same_bill(plan):
    first, second = (sbom.write(plan, "sha256:" + "b" * 64, DEBIAN, now=NOW) for _ in range(2))
    assert first == second
