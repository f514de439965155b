"""A real Chromium, driven through its DevTools pipe: no driver, no port, no package."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
MAC = Path("/Applications/Google Chrome.app/Contents/MacOS/Google Chrome")
LAUNCH = """
import fcntl, os, sys
to_read, to_write = (fcntl.fcntl(int(pipe), fcntl.F_DUPFD, 10) for pipe in sys.argv[1:3])
os.dup2(to_read, 3)
os.dup2(to_write, 4)
os.execvp(sys.argv[3], sys.argv[3:])
"""
"""Puts the pipes where the browser looks for them: it reads 3 and writes 4."""
PATIENCE = 60.0
"""Seconds until an answer is given up."""


def find() -> str | None:
    """The browser's program: $CHROMIUM, or one on the path."""
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    return found or (str(MAC) if MAC.exists() else None)


class Chromium:
    """A browser with one tab. Everything that the tab asks the network for is noted in `requests`."""

    def __init__(self, program: str, profile: Path) -> None:
        to_read, self.out = os.pipe()
        self.back, to_write = os.pipe()
        command = [
            *(program, "--headless=new", "--remote-debugging-pipe", f"--user-data-dir={profile}"),
            *("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"),
            *("--no-first-run", "--disable-background-networking", "--window-size=1100,900"),
        ]
        self.process = subprocess.Popen(
            [sys.executable, "-c", LAUNCH, str(to_read), str(to_write), *command],
            pass_fds=(to_read, to_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self.count, self.buffer, self.events = 0, b"", list[dict[str, Any]]()
        self.session: str | None = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.out)
        os.close(self.back)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and wait for its answer; events that come in between are kept."""
        self.count += 1
        message = {"id": self.count, "method": method, "params": params}
        message |= {"sessionId": self.session} if self.session else {}
        os.write(self.out, json.dumps(message).encode() + b"\0")
        answer = self._until(lambda m: m.get("id") == self.count)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def _until(self, wanted: Any) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE
        while True:
            while b"\0" in self.buffer:
                line, self.buffer = self.buffer.split(b"\0", 1)
                message: dict[str, Any] = json.loads(line)
                if "method" in message:
                    self.events.append(message)
                if wanted(message):
                    return message
            ready, _, _ = select.select([self.back], [], [], max(0.0, end - time.monotonic()))
            data = os.read(self.back, 1 << 16) if ready else b""
            if not data:
                raise RuntimeError("the browser gives no answer")
            self.buffer += data

    def open(self, page: Path) -> None:
        """Load a file from disk, to the end."""
        self.events.clear()
        self.call("Page.navigate", url=page.resolve().as_uri())
        if not self._happened("Page.loadEventFired"):
            self._until(lambda m: m.get("method") == "Page.loadEventFired")

    def _happened(self, method: str) -> list[dict[str, Any]]:
        return [event["params"] for event in self.events if event["method"] == method]

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    @property
    def requests(self) -> list[str]:
        """What was asked for since the page was opened; images within the page are no requests."""
        asked = [event["request"]["url"] for event in self._happened("Network.requestWillBeSent")]
        return [url for url in asked if not url.startswith("data:")]

    @property
    def complaints(self) -> list[str]:
        """Errors, refusals of the security policy and dialogs since the page was opened."""
        logged = [event["entry"]["text"] for event in self._happened("Log.entryAdded")]
        thrown = [str(event["exceptionDetails"]) for event in self._happened("Runtime.exceptionThrown")]
        dialogs = [f"dialog: {event['message']}" for event in self._happened("Page.javascriptDialogOpening")]
        return logged + thrown + dialogs

    def press(self, key: str) -> None:
        code = {"Enter": 13, "Tab": 9}[key]
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **text)

    def look(
        self, width: int, height: int, *, dark: bool = False, phone: bool = False, paper: bool = False
    ) -> None:
        """The size of the window, and what the system prefers; on `paper`, as it would be printed."""
        size = {"width": width, "height": height, "deviceScaleFactor": 2 if phone else 1, "mobile": phone}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme], media="print" if paper else "")

    def picture(self) -> bytes:
        """A PNG of the window."""
        return base64.b64decode(self.call("Page.captureScreenshot")["data"])

    def pdf(self) -> bytes:
        """The page as it is printed."""
        return base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"])
