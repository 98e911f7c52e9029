"""A headless Chromium, driven through the DevTools protocol over two pipes; no package is needed for that.

Every answer has a deadline. Imports nothing of the package.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser")  # the first needs a third less of a processor
CHROMIUM = next(filter(None, map(shutil.which, _NAMES)), None)
_DEADLINE_S = 120
_FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe"),
)
# What moves on the page without an act of the reader, from its first picture on.
_SHIFTS = """
var shifts = [];
new PerformanceObserver((list) => {
  for (const each of list.getEntries()) {
    if (!each.hadRecentInput) shifts.push(each.sources.map(({ node }) => node?.id || node?.textContent).join(", "));
  }
}).observe({ type: "layout-shift", buffered: true });
"""


class Page:
    """A tab. `problems` are exceptions, errors on the console and refusals of the content security policy."""

    def __init__(self, commands_fd: int, answers_fd: int) -> None:
        self._commands_fd, self._answers_fd = commands_fd, answers_fd
        self._received = b""
        self._last_id = 0
        self._session: str | None = None
        self.problems: list[str] = []
        self._saving = ""  # name of the file
        self._saved: list[str] = []
        target = self.do("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.do("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.do(f"{domain}.enable")
        self.do("Page.addScriptToEvaluateOnNewDocument", source=_SHIFTS)

    def do(self, method: str, **parameters: Any) -> Any:
        """Call a method of the protocol and return its result."""
        self._last_id += 1
        message = {"id": self._last_id, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands_fd, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._last_id:
                assert "error" not in answer, answer["error"]
                return answer["result"]
            self._note(answer)

    def open(
        self,
        address: str,
        *,
        width: int = 1280,
        height: int = 860,
        dark: bool = False,
        zone: str = "",
        until: str = "document.body.dataset.shown",
    ) -> None:
        """Show a page anew, to a reader in a time zone, and wait until an expression of JavaScript is true."""
        self.do("Emulation.setTimezoneOverride", timezoneId=zone)
        self.do("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.do("Emulation.setEmulatedMedia", features=[scheme])
        self.do("Page.navigate", url="about:blank")
        self.do("Page.navigate", url=address)
        self.wait(f"document.readyState === 'complete' && document.body && {until}")

    def value(self, expression: str) -> Any:
        """Return the value of an expression of JavaScript; of a promise, what it is resolved with."""
        result = self.do("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait(self, condition: str) -> None:
        """Wait until an expression of JavaScript is true."""
        look = f"const look = () => ({condition}) ? resolve(true) : requestAnimationFrame(look)"
        while not self.value(f"document.body ? new Promise((resolve) => {{ {look}; look(); }}) : false"):
            pass

    def shifts(self) -> list[str]:
        """Return what has moved on the page without an act of the reader."""
        pictures = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done))))"
        self.value(pictures)  # observers are called after one
        found: list[str] = self.value("shifts")
        return found

    def click(self, x: float, y: float) -> None:
        """Click at a place of the window."""
        self.drag((x, y), (x, y))

    def drag(
        self, start: tuple[float, float], end: tuple[float, float], *, release: bool = True, button: str = "left"
    ) -> None:
        """Press, move and release."""
        steps = [("mouseMoved", start), ("mousePressed", start), ("mouseMoved", end), ("mouseReleased", end)]
        pressed = {"button": button, "buttons": {"left": 1, "right": 2}[button], "clickCount": 1}
        for kind, (x, y) in steps if release else steps[:-1]:
            self.do("Input.dispatchMouseEvent", type=kind, x=x, y=y, **pressed)

    def move(self, place: tuple[float, float]) -> None:
        """Move without a button."""
        self.do("Input.dispatchMouseEvent", type="mouseMoved", x=place[0], y=place[1], button="none", buttons=0)

    def release(self, place: tuple[float, float]) -> None:
        """End a drag."""
        x, y = place
        self.do("Input.dispatchMouseEvent", type="mouseReleased", x=x, y=y, button="left", buttons=0, clickCount=1)

    def touch(self, start: tuple[float, float], end: tuple[float, float] | None = None) -> None:
        """Tap with a finger, or move it on the screen."""
        self.do("Emulation.setTouchEmulationEnabled", enabled=True)
        steps = [("touchStart", [start]), *([("touchMove", [end])] if end else []), ("touchEnd", [])]
        for kind, places in steps:
            self.do("Input.dispatchTouchEvent", type=kind, touchPoints=[{"x": x, "y": y} for x, y in places])
        self.do("Emulation.setTouchEmulationEnabled", enabled=False)

    def click_on(self, element: str) -> None:
        """Click the middle of an element, which is a selector or an expression of JavaScript in brackets."""
        found = element if element.startswith("(") else f"document.querySelector({json.dumps(element)})"
        left, top, width, height = self.value(
            f"(() => {{ const at = {found}; at.scrollIntoView({{ block: 'nearest' }});"
            " const b = at.getBoundingClientRect(); return [b.left, b.top, b.width, b.height]; })()"
        )
        assert width, f"{element} cannot be seen"
        self.click(left + width / 2, top + height / 2)

    def save(self, link: str, directory: Path) -> Path:
        """Click a link and return the file that it saves."""
        saving = {"behavior": "allow", "downloadPath": str(directory), "eventsEnabled": True}
        self.do("Browser.setDownloadBehavior", **saving)
        self._saved.clear()
        self.click_on(link)
        while not self._saved:
            self._note(self._receive())
        return directory / self._saved[0]

    def press(self, key: str) -> None:
        """Press a key that writes nothing."""
        self.do("Input.dispatchKeyEvent", type="keyDown", key=key)
        self.do("Input.dispatchKeyEvent", type="keyUp", key=key)

    def write(self, text: str) -> None:
        """Type text where the focus is."""
        self.do("Input.insertText", text=text)

    def box(self, selector: str) -> tuple[float, float, float, float]:
        """Return left, top, width and height of an element."""
        found = self.value(
            f"(() => {{ const b = document.querySelector({json.dumps(selector)}).getBoundingClientRect();"
            " return [b.left, b.top, b.width, b.height]; })()"
        )
        left, top, width, height = found
        return left, top, width, height

    def keep_picture(self, path: Path) -> None:
        """Save a picture of the window."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(self.do("Page.captureScreenshot", format="png")["data"]))

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._received:
            assert select.select([self._answers_fd], [], [], _DEADLINE_S)[0], "the browser does not answer"
            data = os.read(self._answers_fd, 1 << 20)
            assert data, "the browser has ended"
            self._received += data
        message, _, self._received = self._received.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer

    def _note(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        if event["method"] == "Browser.downloadWillBegin":
            self._saving = parameters["suggestedFilename"]
        elif event["method"] == "Browser.downloadProgress" and parameters["state"] == "completed":
            self._saved.append(self._saving)
        is_error = (
            event["method"] == "Runtime.exceptionThrown"
            or (event["method"] == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"))
            or (event["method"] == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"))
        )
        if is_error:
            self.problems.append(json.dumps(parameters))


@contextmanager
def run_browser(profile: Path) -> Iterator[Page]:
    """Run a browser that keeps its files in `profile`; end it with the block."""
    assert CHROMIUM is not None
    commands_from, commands_to = os.pipe()
    answers_from, answers_to = os.pipe()
    script = f'exec "$@" 3<&{commands_from} 4>&{answers_to}'
    command = ["bash", "-c", script, "browser", CHROMIUM, *_FLAGS, f"--user-data-dir={profile}", "about:blank"]
    try:
        with subprocess.Popen(
            command,
            pass_fds=(commands_from, answers_to),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as process:
            os.close(commands_from)
            os.close(answers_to)
            try:
                yield Page(commands_to, answers_from)
            finally:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate(timeout=_DEADLINE_S)  # until none of its processes is left to write a file
    finally:
        os.close(commands_to)
        os.close(answers_from)
