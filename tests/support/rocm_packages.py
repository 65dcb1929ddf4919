"""Stand-ins for TheRock's pip packages: no registry here has the real ones.

They have the shape of its templates (build_tools/packaging/python/templates): a meta package `rocm`
with extras and the program `rocm-sdk`, whose `init` expands `_devel.tar` of `rocm-sdk-devel` beside
it, and whose `path --root` says where. Unlike the real one, `rocm` is a wheel: TheRock has an sdist,
which would be built with a setuptools from the index.
"""

from __future__ import annotations

import base64
import hashlib
import zipfile
from typing import TYPE_CHECKING

from support import tarballs

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

ROOT = "_rocm_sdk_devel"
SDK = f"""
import sys, tarfile
from pathlib import Path

def main():
    try:
        import rocm_sdk_devel
    except ModuleNotFoundError as e:
        sys.exit("ERROR: Could not load the `rocm[devel]` package")
    folder = Path(rocm_sdk_devel.__file__).parent
    archive = folder / "_devel.tar"
    if archive.exists():
        with tarfile.open(archive) as tar:
            tar.extraction_filter = getattr(tarfile, "data_filter", None)  # since 3.11.4
            tar.extractall(folder.parent)
        archive.unlink()
    if sys.argv[1] == "path":
        print(folder.parent / "{ROOT}")
"""


def wheel(
    folder: Path,
    name: str,
    version: str,
    files: Mapping[str, bytes],
    *,
    metadata: str = "",
    scripts: str = "",
) -> Path:
    """Write a wheel with these files below `folder`, in an index that pip reads."""
    base = name.replace("-", "_")
    info = f"{base}-{version}.dist-info"
    entries = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{metadata}".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        **({f"{info}/entry_points.txt": scripts.encode()} if scripts else {}),
    }
    rows = [
        f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}"
        for path, data in entries.items()
    ]
    entries[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""]).encode()
    place = folder / name
    place.mkdir(parents=True, exist_ok=True)
    path = place / f"{base}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for entry, data in entries.items():
            archive.writestr(entry, data)
    links = "".join(
        f'<a href="{item.name}">{item.name}</a>' for item in sorted(place.glob("*.whl"))
    )
    (place / "index.html").write_text(f"<html><body>{links}</body></html>")
    return path


def index(
    folder: Path, version: str, *, tree: str = "7.10.0", devel: bool = True, device: str = "gfx942"
) -> str:
    """Write an index with one release of ROCm; return its URL."""
    requires = {
        "libraries": f"rocm-sdk-libraries=={version}",
        "devel": f"rocm-sdk-devel=={version}",
        f"device-{device}": f"rocm-sdk-device-{device}=={version}",
        "device-all": f"rocm-sdk-device-{device}=={version}",
    }
    metadata = f"Requires-Dist: rocm-sdk-core=={version}\n" + "".join(
        f"Provides-Extra: {extra}\nRequires-Dist: {what}; extra == '{extra}'\n"
        for extra, what in requires.items()
    )
    wheel(
        folder, "rocm", version, {"rocm_sdk/__init__.py": b"", "rocm_sdk/__main__.py": SDK.encode()},
        metadata=metadata, scripts="[console_scripts]\nrocm-sdk = rocm_sdk.__main__:main\n",
    )  # fmt: skip
    for name in ("rocm-sdk-core", "rocm-sdk-libraries", f"rocm-sdk-device-{device}"):
        wheel(folder, name, version, {f"_{name.replace('-', '_')}/__init__.py": b""})
    if devel:
        tar = tarballs.tar(tarballs.rocm_files(tree), prefix=f"{ROOT}/")
        wheel(
            folder, "rocm-sdk-devel", version,
            {"rocm_sdk_devel/__init__.py": b"", "rocm_sdk_devel/_devel.tar": tar},
        )  # fmt: skip
    return folder.as_uri() + "/"
