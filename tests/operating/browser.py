"""A headless Chromium, driven over its debugging protocol: what a person does with a page."""

from __future__ import annotations

import base64
import itertools
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

from tests.standin.processes import HTTP, wait_until

ANSWER_SECONDS = 60.0
KEYS = {"Tab": 9, "Enter": 13, "Escape": 27}


class Browser:
    """One page of one browser. What the page logs, and what it asks for, is kept."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self.complaints: list[str] = []
        self.requested: list[str] = []
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.command(f"{domain}.enable")

    def command(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and wait for its answer; events that come first are noted."""
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        end = time.monotonic() + ANSWER_SECONDS
        while time.monotonic() < end:
            message = json.loads(self._socket.recv(timeout=ANSWER_SECONDS))
            if message.get("id") == number:
                assert "error" not in message, (method, message["error"])
                return dict(message["result"])
            self._note(message)
        raise AssertionError(f"{method} was not answered within {ANSWER_SECONDS} s")

    def _note(self, message: dict[str, Any]) -> None:
        parameters = message.get("params", {})
        if message["method"] == "Network.requestWillBeSent":
            self.requested.append(parameters["request"]["url"])
        elif message["method"] == "Runtime.exceptionThrown":
            self.complaints.append(str(parameters["exceptionDetails"]))
        elif message["method"] == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.complaints.append(f"{parameters['entry']['text']} {parameters['entry'].get('url', '')}")

    def open(self, url: str) -> None:
        """Go to a page and wait until it is there."""
        self.command("Page.navigate", url=url)
        wait_until(
            lambda: self.value("location.href !== 'about:blank' && document.readyState === 'complete'"),
            60,
            url,
        )

    def value(self, expression: str) -> Any:
        """What a JavaScript expression in the page gives; the page's policy doesn't bind the debugger."""
        answer = self.command(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def text(self, selector: str = "body") -> str:
        """The visible text of an element."""
        return str(self.value(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def press(self, key: str, shift: bool = False) -> None:
        """Press a key, as on a keyboard."""
        common = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key], "modifiers": 8 if shift else 0}
        if key == "Enter":
            common["text"] = "\r"
        self.command("Input.dispatchKeyEvent", type="keyDown", **common)
        self.command("Input.dispatchKeyEvent", type="keyUp", **common)

    def type(self, text: str) -> None:
        """Type into what has the focus."""
        self.command("Input.insertText", text=text)

    def focused(self) -> str:
        """The id of what has the focus."""
        return str(self.value("document.activeElement?.id ?? ''"))

    def tab_to(self, identity: str, limit: int = 60) -> None:
        """Press Tab until an element has the focus."""
        for _ in range(limit):
            if self.focused() == identity:
                return
            self.press("Tab")
        raise AssertionError(f"#{identity} can't be reached with the Tab key")

    def click(self, selector: str) -> None:
        """Click in the middle of an element, with the mouse."""
        place = self.value(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'center'});"
            "const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.command(
                "Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1
            )

    def resize(self, width: int, height: int = 800) -> None:
        """Give the page a size in CSS pixels."""
        self.command(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def prefer(self, scheme: str) -> None:
        """Prefer `dark` or `light`."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.command("Emulation.setEmulatedMedia", features=features)

    def without_scripts(self) -> None:
        """As a person who allows none."""
        self.command("Emulation.setScriptExecutionDisabled", value=True)

    def picture(self, path: Path) -> None:
        """Keep what is seen, as PNG."""
        path.write_bytes(base64.b64decode(self.command("Page.captureScreenshot", format="png")["data"]))


@contextmanager
def started_browser(folder: Path) -> Iterator[Browser]:
    """A fresh headless Chromium with one empty page."""
    program = shutil.which("chromium")
    assert program, "chromium is needed: apt-get install chromium"
    process = subprocess.Popen(
        [
            *(program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
            *("--remote-debugging-port=0", f"--user-data-dir={folder}", "--no-first-run", "about:blank"),
            *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
        ],
        stdout=subprocess.DEVNULL,
        stderr=(folder / "stderr").open("wb"),
    )
    try:
        announced = folder / "DevToolsActivePort"
        wait_until(lambda: announced.exists() and announced.read_text().count("\n"), 60, "Chromium")
        port = int(announced.read_text().splitlines()[0])
        pages = wait_until(lambda: _pages(port), 60, "a page")
        with connect(pages[0]["webSocketDebuggerUrl"], max_size=None, proxy=None) as socket:
            yield Browser(socket)
    finally:
        process.terminate()
        process.wait(timeout=60)


def _pages(port: int) -> list[dict[str, Any]]:
    listed = HTTP.get(f"http://127.0.0.1:{port}/json/list", timeout=30).json()
    return [page for page in listed if page["type"] == "page"]
