"""A real browser: Chromium, driven by its own debugging protocol over a websocket."""

import base64
import json
import os
import shutil
import subprocess
import tempfile
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest
import websocket

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="CONFIDE_BROWSER: no Chromium is installed")
FLAGS = (
    "--headless=new", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--no-sandbox", "--hide-scrollbars", "--remote-debugging-port=0",
    "--remote-allow-origins=*",
)  # fmt: skip


class Page:
    """One tab. `problems` holds console errors, exceptions, and every address that was asked for but the page's own."""

    def __init__(self, address):
        self.socket = websocket.create_connection(address, timeout=60)
        self.count, self.problems, self.requests, self.events = 0, [], [], []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        self.count += 1
        number = self.count
        self.socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self.socket.recv())
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]
            self._noted(message)

    def _noted(self, message):
        method, parameters = message.get("method", ""), message.get("params", {})
        self.events.append(method)
        if method == "Runtime.exceptionThrown":
            self.problems.append(str(parameters))
        if method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.problems.append(parameters["entry"]["text"])
        if method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.problems.append(str(parameters["args"]))
        if method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])

    def open(self, path, width=1200, height=900, dark=False, media="screen"):
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self.events.clear()
        self.call("Page.navigate", url=Path(path).absolute().as_uri())
        while "Page.loadEventFired" not in self.events:
            self._noted(json.loads(self.socket.recv()))

    def value(self, expression):
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def picture(self, path, whole=True):
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=whole, format="png")
        Path(path).write_bytes(base64.b64decode(shot["data"]))

    def printed(self, path):
        paper = self.call("Page.printToPDF", printBackground=True, preferCSSPageSize=True)
        Path(path).write_bytes(base64.b64decode(paper["data"]))


@contextmanager
def browser():
    """A page in a browser of its own, without anybody's settings."""
    assert CHROMIUM is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
            env=os.environ | {"HOME": profile},
        )
        try:
            assert process.stderr is not None
            line = next(line for line in process.stderr if "DevTools listening" in line)
            port = line.split("://")[1].split("/")[0].split(":")[1]
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=30) as answer:
                tabs = json.load(answer)
            page = Page(next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page"))
            yield page
            page.socket.close()
        finally:
            process.kill()
            process.communicate()
