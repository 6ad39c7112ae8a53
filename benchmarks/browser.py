"""A headless Chromium that a test or a benchmark drives through its debugging pipe; nothing else is needed."""

import json
import os
import shutil
import subprocess
import time
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-sync"
    " --disable-component-update --hide-scrollbars --remote-debugging-pipe --window-size=1280,800"
)


@contextmanager
def chromium(folder: Path) -> Iterator["Tab"]:
    """A browser's one tab; `folder`: for its profile and what it downloads."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    assert program, f"none of {', '.join(NAMES)} is installed: nothing can show that the page works"
    (read, to_browser), (from_browser, write) = os.pipe(), os.pipe()

    def as_three_and_four() -> None:
        high = [os.dup2(end, number) for end, number in ((read, 50), (write, 51))]
        for end, number in zip(high, (3, 4), strict=True):
            os.dup2(end, number)

    browser = subprocess.Popen(
        [program, *FLAGS.split(), f"--user-data-dir={folder / 'profile'}", "about:blank"],
        stderr=subprocess.DEVNULL,
        close_fds=False,
        preexec_fn=as_three_and_four,
    )
    os.close(read), os.close(write)
    try:
        yield Tab(os.fdopen(from_browser, "rb"), os.fdopen(to_browser, "wb"), folder)
    finally:
        browser.kill()
        browser.wait()


class Tab:
    """What a page does, and what it logs to `complaints`."""

    def __init__(self, incoming: Any, outgoing: Any, downloads: Path) -> None:
        self._in, self._out = incoming, outgoing
        self._session: str | None = None
        self._last = 0
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(downloads), eventsEnabled=True)

    def call(self, method: str, **settings: Any) -> dict[str, Any]:
        """Sends a command of the DevTools protocol and returns its result."""
        self._last += 1
        session = {"sessionId": self._session} if self._session else {}
        command = {"id": self._last, "method": method, "params": settings, **session}
        self._out.write(json.dumps(command).encode() + b"\0")
        self._out.flush()
        while (message := self._next()).get("id") != self._last:
            self.events.append(message)
        assert "error" not in message, message
        return message["result"]

    def _next(self) -> dict[str, Any]:
        text = bytearray()
        while (byte := self._in.read(1)) != b"\0":
            assert byte, "the browser has ended"
            text += byte
        return json.loads(text)

    def event(self, method: str, **settings: Any) -> dict[str, Any]:
        """The next event of this name whose parameters have these values; takes it out of the list."""
        while True:
            for message in self.events:
                params = message.get("params", {})
                if message.get("method") == method and settings.items() <= params.items():
                    self.events.remove(message)
                    return params
            self.events.append(self._next())

    @property
    def complaints(self) -> list[Any]:
        self.run("0")  # all that came before is here
        kinds = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        return [message["params"] for message in self.events if message.get("method") in kinds]

    @property
    def requests(self) -> list[str]:
        asked = (message for message in self.events if message.get("method") == "Network.requestWillBeSent")
        return [message["params"]["request"]["url"] for message in asked]

    def open(self, address: str) -> None:
        """Another page, or the same one anew."""
        self.call("Page.navigate", url="about:blank")
        self.event("Page.loadEventFired")
        self.call("Page.navigate", url=address)
        self.event("Page.loadEventFired")

    def run(self, script: str) -> Any:
        """The value of an expression; waits for a promise."""
        found = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, condition: str) -> Any:
        """Until an expression is true, looked at in every frame; gives up after 20 s."""
        found = self.run(
            "new Promise((done) => { const end = Date.now() + 20000; const look = () => { const found = ("
            + condition
            + "); found || Date.now() > end ? done(found) : setTimeout(look, 10); }; look(); })"
        )
        assert found, f"never true: {condition}"
        return found

    def click(self, x: float, y: float) -> None:
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            button = {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **button)

    def click_on(self, selector: str) -> None:
        """The middle of an element."""
        box = f"document.querySelector({json.dumps(selector)}).getBoundingClientRect()"
        self.click(*self.run(f"(({{x, y, width, height}}) => [x + width / 2, y + height / 2])({box})"))

    def press(self, key: str, text: str = "") -> None:
        typed = {"text": text} if text else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **typed)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def look(self, width: int, height: int, dark: bool = False, scale: float = 1, phone: bool = False) -> None:
        """The size of the window, and the theme."""
        size = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": phone}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[theme])

    def save_picture(self, file: Path) -> None:
        file.write_bytes(b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def pause(self, seconds: float) -> None:
        """For a person's look at what moves; tests wait for conditions."""
        time.sleep(seconds)
