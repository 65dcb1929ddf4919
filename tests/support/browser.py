"""A browser for tests: Chromium driven through chromedriver's own protocol (W3C WebDriver)."""

from __future__ import annotations

import base64
import re
import subprocess
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import requests
from support.processes import DIES_WITH_US

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the key WebDriver gives an element under


class Browser:
    """One window."""

    def __init__(self, session: str) -> None:
        self._session = session

    def _call(self, method: str, path: str, **body: Any) -> Any:
        data = body if method == "post" else None
        answer = requests.request(method, f"{self._session}/{path}", json=data, timeout=240)
        value = answer.json()["value"]
        assert answer.ok, value
        return value

    def open(self, url: str) -> None:
        self._call("post", "url", url=url)

    def run(self, script: str) -> Any:
        """Evaluate a function body in the page."""
        return self._call("post", "execute/sync", script=script, args=[])

    def _find(self, selector: str) -> str:
        found = self._call("post", "element", using="css selector", value=selector)
        return str(found[ELEMENT])

    def click(self, selector: str) -> None:
        self._call("post", f"element/{self._find(selector)}/click")

    def write(self, selector: str, text: str) -> None:
        self._call("post", f"element/{self._find(selector)}/value", text=text)

    def texts(self, selector: str) -> list[str]:
        script = f"return [...document.querySelectorAll({selector!r})].map(e => e.innerText.trim())"
        return list(self.run(script))

    def wait(self, selector: str, count: int) -> list[str]:
        """Texts of a selector once it finds `count` elements: events come a little later."""
        until = time.monotonic() + 240
        while len(found := self.texts(selector)) != count:
            assert time.monotonic() < until, f"{selector}: {found}"
            time.sleep(0.02)
        return found

    def devtools(self, command: str, **params: Any) -> Any:
        """A command of the DevTools protocol: what a person sets in the browser, not in a page."""
        return self._call("post", "goog/cdp/execute", cmd=command, params=params)

    def size(self, width: int, height: int) -> None:
        """Give the page this size, as a phone's emulation does."""
        self.devtools(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=True,
        )

    def press(self, key: str) -> str:
        """Press a key, such as Tab; what has the focus then, by its text or its name."""
        code = {"Tab": 9, "Enter": 13}[key]
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.devtools(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=code,
                **(text if kind == "keyDown" else {}),
            )
        script = "const e = document.activeElement; return e.id || e.innerText || e.ariaLabel || ''"
        return str(self.run(script))

    def scheme(self, name: str) -> None:
        """Prefer `light` or `dark`, as the person's system does."""
        self._call(
            "post", "goog/cdp/execute", cmd="Emulation.setEmulatedMedia",
            params={"features": [{"name": "prefers-color-scheme", "value": name}]},
        )  # fmt: skip

    def log(self) -> list[str]:
        """What the console said: errors of the script, resources that could not be had."""
        return [entry["message"] for entry in self._call("post", "se/log", type="browser")]

    def screenshot(self, path: Path, **how: Any) -> None:
        picture = self.devtools("Page.captureScreenshot", **how)
        path.write_bytes(base64.b64decode(picture["data"]))


@contextmanager
def browser() -> Iterator[Browser]:
    """Start chromedriver and one headless window; both are gone afterwards."""
    with subprocess.Popen(
        [*DIES_WITH_US, "chromedriver", "--port=0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as driver:
        try:
            assert driver.stdout
            line = next(line for line in driver.stdout if "started successfully" in line)
            match = re.search(r"port (\d+)", line)
            assert match, line
            url = f"http://127.0.0.1:{match[1]}/session"
            arguments = [
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--window-size=1200,900",
            ]
            wanted = {
                "goog:chromeOptions": {"args": arguments},
                "goog:loggingPrefs": {"browser": "ALL"},
            }
            answer = requests.post(
                url, json={"capabilities": {"alwaysMatch": wanted}}, timeout=240
            ).json()["value"]
            session = f"{url}/{answer['sessionId']}"
            try:
                yield Browser(session)
            finally:
                requests.delete(session, timeout=240)
        finally:
            driver.terminate()
