"""A headless Chromium, driven through ChromeDriver's HTTP interface (W3C WebDriver).

The protocol is a dozen JSON requests, so the standard library is the whole client.
"""

import base64
import json
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Self

FLAGS = (
    "--headless",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1400,1000",
)
KEYS = {"Enter": "\ue007", "Left": "\ue012", "Up": "\ue013", "Right": "\ue014", "Down": "\ue015"}
KEYS |= {"PageUp": "\ue00e", "PageDown": "\ue00f", "Tab": "\ue004", "End": "\ue010"}


def missing() -> str | None:
    """Why no browser can be driven here, or None."""
    for program in ("chromium", "chromedriver"):
        if shutil.which(program) is None:
            return f"{program} is not installed (Debian: apt-get install chromium chromium-driver)"
    return None


class Browser:
    """One window. Use as a context manager."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._driver = subprocess.Popen(
            [shutil.which("chromedriver"), f"--port={port}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._base = f"http://127.0.0.1:{port}"
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        options = {
            "binary": shutil.which("chromium"),
            "args": [*FLAGS, *sandbox, f"--user-data-dir={folder}"],
        }
        wanted = {
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        try:
            self._wait_for_driver()
            body = {"capabilities": {"alwaysMatch": wanted}}
            session = self._send("POST", "/session", body)["sessionId"]
        except BaseException:
            self._stop()
            raise
        self._base += f"/session/{session}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._send("DELETE", "")
        finally:
            self._stop()

    def open(self, path: Path) -> int:
        """Load a file and wait until it says that it is ready; milliseconds it says it took."""
        self._send("POST", "/url", {"url": path.as_uri()})
        done = "return document.documentElement.dataset.ready"
        for _ in range(400):
            ready = self.run(done)
            if ready is not None:
                return int(ready)
            if not self.run("return document.getElementById('fault').hidden"):
                raise AssertionError(self.text("fault"))
            time.sleep(0.05)
        raise AssertionError(f"the page is not ready: {self.log()}")

    def run(self, script: str, *arguments: object) -> Any:
        """What a script returns, once two frames have been drawn if it changed anything."""
        return self._send("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def text(self, name: str) -> str:
        """Text of the element with this id."""
        return self.run("return document.getElementById(arguments[0]).textContent", name)

    def log(self) -> list[str]:
        """Errors and warnings of the page."""
        entries = self._send("POST", "/se/log", {"type": "browser"})
        return [entry["message"] for entry in entries]

    def requests(self) -> list[str]:
        """Addresses that the page asked for."""
        events = self._send("POST", "/se/log", {"type": "performance"})
        messages = [json.loads(event["message"])["message"] for event in events]
        return [
            message["params"]["request"]["url"]
            for message in messages
            if message["method"] == "Network.requestWillBeSent"
        ]

    def move(self, name: str, x: float, y: float, *, click: bool = False) -> None:
        """Move the pointer to (x, y) from the corner of an element, and click there."""
        left, top = self.run(
            "const e = document.getElementById(arguments[0]);"
            "e.scrollIntoView({block: 'nearest'}); const b = e.getBoundingClientRect();"
            "return [b.left, b.top]",
            name,
        )
        actions: list[dict[str, Any]] = [
            {"type": "pointerMove", "duration": 0, "x": round(left + x), "y": round(top + y)}
        ]
        if click:
            actions += [{"type": "pointerDown", "button": 0}, {"type": "pointerUp", "button": 0}]
        self._act({"type": "pointer", "id": "mouse", "actions": actions})

    def drag(self, name: str, start: tuple[int, int], stop: tuple[int, int]) -> None:
        """Press at one place of an element, and let go at another."""
        left, top = self.run(
            "const b = document.getElementById(arguments[0]).getBoundingClientRect();"
            "return [b.left, b.top]",
            name,
        )
        places = [
            {"type": "pointerMove", "duration": 0, "x": round(left + x), "y": round(top + y)}
            for x, y in (start, stop)
        ]
        down, up = ({"type": f"pointer{way}", "button": 0} for way in ("Down", "Up"))
        self._act({"type": "pointer", "id": "mouse", "actions": [places[0], down, places[1], up]})

    def wheel(self, name: str, x: float, y: float, delta: int) -> None:
        """Turn the wheel over a place of an element."""
        left, top = self.run(
            "const b = document.getElementById(arguments[0]).getBoundingClientRect();"
            "return [b.left, b.top]",
            name,
        )
        at = {"x": round(left + x), "y": round(top + y), "deltaX": 0, "deltaY": delta}
        self._act({"type": "wheel", "id": "wheel", "actions": [{"type": "scroll", **at}]})

    def press(self, *keys: str) -> None:
        """Press keys one after another, named as in KEYS or as characters."""
        actions = []
        for key in keys:
            value = KEYS.get(key, key)
            actions += [{"type": "keyDown", "value": value}, {"type": "keyUp", "value": value}]
        self._act({"type": "key", "id": "keys", "actions": actions})

    def screenshot(self, path: Path) -> None:
        """Write what the window shows as a PNG file."""
        path.write_bytes(base64.b64decode(self._send("GET", "/screenshot")))

    def _act(self, source: dict[str, Any]) -> None:
        self._send("POST", "/actions", {"actions": [source]})
        wait = "requestAnimationFrame(() => requestAnimationFrame(arguments[0]))"
        self._send("POST", "/execute/async", {"script": wait, "args": []})

    def _send(self, method: str, path: str, body: object = None) -> Any:
        data = json.dumps(body).encode() if method == "POST" else None
        request = urllib.request.Request(  # noqa: S310 - ChromeDriver on loopback
            self._base + path, data=data, method=method
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - as above
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(json.load(error)["value"]["message"]) from error

    def _wait_for_driver(self) -> None:
        for _ in range(200):
            try:
                self._send("GET", "/status")
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.05)
            else:
                return
        raise AssertionError("ChromeDriver does not answer")

    def _stop(self) -> None:
        self._driver.terminate()
        self._driver.wait(timeout=20)
