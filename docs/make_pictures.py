#!/usr/bin/env python3
"""Take the pictures of docs/images: pages that rocwheel makes, by day and by night.

    python docs/make_pictures.py [FOLDER]

Needs chromium, chromedriver and what the tests need. What stands on the pages is made up by the
tests' own helpers; the pages are made by the code that makes them for users.
"""

from __future__ import annotations

import sys
import tempfile
from datetime import timedelta
from io import StringIO
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / part) for part in ("build", "", "tests")]

from support.browser import browser  # noqa: E402
from support.report import FOUND, rich  # noqa: E402
from support.states import FIRST, red_morning  # noqa: E402
from support.wheelset import FAMILY, Shop  # noqa: E402

from rocwheel.base.console import Console  # noqa: E402
from rocwheel.gate.report import gate_page  # noqa: E402
from rocwheel.night import page as night_page  # noqa: E402

SCHEMES = ("light", "dark")
SIZE = (1000, 640)
MORNING = FIRST + timedelta(days=30, hours=5)  # when pages are made, and looked at
CLOCK = f"""
const now = {MORNING.timestamp() * 1000:.0f}
Date = class extends Date {{
  constructor(...given) {{ super(...(given.length ? given : [now])) }}
  static now() {{ return now }}
}}
"""
QUALITY = 40  # of WebP: text stays readable, and the pictures are a quarter as large as PNGs


def pages(folder: Path) -> dict[str, Path]:
    """Make each page that is shown; return where it lies, by the name of its picture."""
    store = folder / "store"
    shop = Shop(store.as_uri(), Console(StringIO(), clock=float))
    shop.released(folder / "set", jax="0.11.0", pythons=("3.12", "3.13"))
    gate, night = folder / "gate.html", folder / "night.html"
    found = rich(passing=500, output="hipErrorIllegalAddress: an illegal memory access")
    gate.write_bytes(gate_page.render(found, FOUND, {"rocThrust": "header-only"}))
    night.write_bytes(
        night_page.render(
            red_morning(),
            now=MORNING,
            title="nightly wheels",
            root="../",
            where="--channel nightly",
        )
    )
    index = store / "v2" / FAMILY.name / "jax-rocm7-plugin" / "index.html"
    index.write_text(index.read_text().replace(store.as_uri(), "https://example.com/wheels"))
    return {"index": index, "gate": gate, "night": night}


def take(folder: Path) -> list[Path]:
    """Write one picture of each page and scheme into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    taken = []
    with tempfile.TemporaryDirectory() as scratch, browser() as window:
        window.size(*SIZE)
        window.devtools("Page.addScriptToEvaluateOnNewDocument", source=CLOCK)
        for name, page in pages(Path(scratch)).items():
            for scheme in SCHEMES:
                window.scheme(scheme)
                window.open(page.as_uri())
                taken.append(folder / f"{name}-{scheme}.webp")
                window.screenshot(taken[-1], format="webp", quality=QUALITY)
    return taken


if __name__ == "__main__":
    for path in take(Path(sys.argv[1]) if sys.argv[1:] else ROOT / "docs" / "images"):
        print(path, path.stat().st_size)
