"""A headless Chromium, driven over the DevTools protocol by a small WebSocket client. It needs no
package except Debian's `chromium`."""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import struct
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
SKIP = "there is no chromium here: apt-get install -y chromium"
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-default-apps",
    "--disable-extensions",
    "--mute-audio",
    "--hide-scrollbars",
    "--disable-dev-shm-usage",
    "--disable-breakpad",
    "--no-default-browser-check",
    "--remote-debugging-port=0",
    "--remote-allow-origins=*",
)
PATIENCE = 60.0  # seconds for "until": the machines that run the tests are shared


class PageError(AssertionError):
    """Raised for an expression that threw in the page, or that did not become true."""


class _Socket:
    """A WebSocket to the browser: text frames out, messages in."""

    def __init__(self, port: int, path: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), PATIENCE)
        self._file = self._socket.makefile("rb")
        key = base64.b64encode(os.urandom(16)).decode()
        self._socket.sendall(
            f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection:"
            f" Upgrade\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        status = self._file.readline()
        assert b" 101 " in status, status
        while self._file.readline().strip():
            pass

    def send(self, text: str) -> None:
        data = text.encode()
        mask = os.urandom(4)
        size = len(data)
        head = bytes([0x81]) + (
            bytes([0x80 | size])
            if size < 126
            else (
                struct.pack("!BH", 0x80 | 126, size)
                if size < 65536
                else struct.pack("!BQ", 0x80 | 127, size)
            )
        )
        masked = bytes(a ^ b for a, b in zip(data, (mask * (size // 4 + 1))[:size], strict=True))
        self._socket.sendall(head + mask + masked)

    def receive(self) -> str:
        parts: list[bytes] = []
        while True:
            first, second = self._file.read(2)
            size = second & 0x7F
            if size == 126:
                size = struct.unpack("!H", self._file.read(2))[0]
            elif size == 127:
                size = struct.unpack("!Q", self._file.read(8))[0]
            data = self._file.read(size)
            if first & 0x0F in (0, 1):
                parts.append(data)
                if first & 0x80:
                    return b"".join(parts).decode()

    def close(self) -> None:
        self._file.close()
        self._socket.close()


class Browser:
    """A browser process with a temporary profile: `with Browser() as browser: page =
    browser.open(url)`."""

    def __init__(self) -> None:
        assert CHROMIUM is not None, SKIP
        self._profile = tempfile.TemporaryDirectory(
            prefix="holdfast-chromium-", ignore_cleanup_errors=True
        )
        self._process = subprocess.Popen(
            [CHROMIUM, *FLAGS, f"--user-data-dir={self._profile.name}", "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        place = Path(self._profile.name) / "DevToolsActivePort"
        deadline = time.monotonic() + PATIENCE
        while not (place.exists() and place.read_text().count("\n")):
            assert self._process.poll() is None, "chromium ended at once"
            assert time.monotonic() < deadline, "chromium did not start"
            time.sleep(0.02)
        port, path = place.read_text().split("\n")[:2]
        self._socket = _Socket(int(port), path)
        self._number = 0
        self.events: list[dict[str, Any]] = []
        self._contexts: set[str] = set()

    def ask(self, method: str, session: str = "", **parameters: Any) -> Any:
        """Send a command of the protocol, and return its result."""
        self._number += 1
        number = self._number
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        self._socket.send(json.dumps(message))
        deadline = time.monotonic() + 2 * PATIENCE
        while True:
            # A page reports on its network all the time, so no single wait has to time out.
            if time.monotonic() > deadline:
                raise PageError(f"{method} was not answered: {str(parameters)[:300]}")
            message_in = json.loads(self._socket.receive())
            if message_in.get("id") == number:
                if "error" in message_in:
                    raise PageError(f"{method}: {message_in['error']}")
                return message_in["result"]
            if "method" in message_in:
                self.events.append(message_in)

    def open(
        self,
        url: str,
        *,
        width: int = 1280,
        height: int = 800,
        dark: bool = False,
        touch: bool = False,
        shared: str = "",
    ) -> Page:
        """Open a new tab, in a profile of its own unless it is `shared` with another page's."""
        context = shared or self.ask("Target.createBrowserContext")["browserContextId"]
        self._contexts.add(context)
        target = self.ask("Target.createTarget", url="about:blank", browserContextId=context)[
            "targetId"
        ]
        session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session, target, context)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.ask(f"{domain}.enable")
        page.size(width, height, touch)
        page.ask(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}],
        )
        page.go(url)
        return page

    def close_tabs(self) -> None:
        """Close all tabs, with their profiles."""
        for context in self._contexts:
            self.ask("Target.disposeBrowserContext", browserContextId=context)
        self._contexts.clear()
        self.events.clear()

    def close(self) -> None:
        self._socket.close()
        os.killpg(self._process.pid, 9)  # the group that was started here, and no other
        self._process.wait()
        self._profile.cleanup()

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Page:
    """One tab."""

    def __init__(self, browser: Browser, session: str, target: str, context: str) -> None:
        self.browser = browser
        self.session = session
        self.target = target
        self.context = context

    def ask(self, method: str, **parameters: Any) -> Any:
        """Send a command to this tab. See `Browser.ask`."""
        return self.browser.ask(method, self.session, **parameters)

    def go(self, url: str) -> None:
        """Load an address."""
        self.ask("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def size(self, width: int, height: int, touch: bool = False) -> None:
        """Set the size of the window."""
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=touch,
        )
        self.ask("Emulation.setTouchEmulationEnabled", enabled=touch)

    def run(self, expression: str) -> Any:
        """Evaluate an expression, awaited, and return its value. Raises `PageError` if it threw."""
        answer = self.ask(
            "Runtime.evaluate",
            expression=expression,
            awaitPromise=True,
            returnByValue=True,
            userGesture=True,
        )
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise PageError(
                f"{expression[:200]}:"
                f" {details.get('exception', {}).get('description', details['text'])}"
            )
        return answer["result"].get("value")

    def until(self, expression: str, seconds: float = PATIENCE) -> Any:
        """Wait until an expression is true, and return its value. Raises `PageError` with the
        expression and the text of the page."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                value = self.run(expression)
                if value:
                    return value
            except PageError as error:
                if (
                    "Cannot find context" not in str(error)
                    and "Execution context" not in str(error)
                    and time.monotonic() > deadline
                ):
                    raise
            if time.monotonic() > deadline:
                raise PageError(
                    f"not true within {seconds:g} s: {expression}\n--- the page"
                    f" ---\n{self.run('document.body.innerText')[:3000]}"
                )
            time.sleep(0.02)

    def text(self, selector: str = "body") -> str:
        """Return the visible text of an element."""
        return self.run(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''")

    def wait(self, selector: str, text: str = "") -> None:
        """Wait until an element with this text is visible."""
        self.until(
            f"[...document.querySelectorAll({json.dumps(selector)})].some(one =>"
            f" one.checkVisibility() && one.innerText.includes({json.dumps(text)}))"
            if text
            else (
                f"[...document.querySelectorAll({json.dumps(selector)})].some(one =>"
                " one.checkVisibility())"
            )
        )

    def click(self, selector: str, text: str = "") -> None:
        """Click with the mouse, in the middle of an element."""
        place = self.place(selector, text)
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, place)

    def mouse(self, kind: str, place: tuple[float, float]) -> None:
        """Press or release the left button: `mousePressed` or `mouseReleased`."""
        x, y = place
        self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def place(self, selector: str, text: str = "") -> tuple[float, float]:
        """Return the place of an element that is at rest, after scrolling it into view."""
        find = (
            f"[...document.querySelectorAll({json.dumps(selector)})].find(one =>"
            f" one.checkVisibility() && one.innerText.includes({json.dumps(text)}) &&"
            " !one.disabled)"
        )
        place = (
            f"new Promise(done => {{ const one = {find}; if (!one) return done(null);"
            " one.scrollIntoView({block: 'center'}); const at = () => { const box ="
            " one.getBoundingClientRect(); return [box.x + box.width / 2, box.y +"
            " Math.min(box.height / 2, 20)]; }; const first = at(); setTimeout(() => {"
            " const last = at(), still = one.isConnected && `${first}` === `${last}`;"
            " done([...last, still]); }, 40); })"
        )
        tries = 0
        # If the page is drawn anew in the meantime, the click would hit another element.
        while not (spot := self.until(place))[2] and tries < 20:
            tries += 1
        return spot[0], spot[1]

    def type(self, text: str) -> None:
        """Insert a text at the focus."""
        self.ask("Input.insertText", text=text)

    def fill(self, selector: str, text: str) -> None:
        """Set the text of a field."""
        self.until(f"!!document.querySelector({json.dumps(selector)})")
        self.run(
            f"(() => {{ const one = document.querySelector({json.dumps(selector)}); one.focus();"
            " one.select?.(); })()"
        )
        if text:
            self.type(text)
        else:
            self.press("Backspace")

    def press(self, key: str, *modifiers: str) -> None:
        """Press a key, such as `Tab`, `Enter`, `Escape`, `a`, `?`."""
        names = {
            "Tab": 9,
            "Enter": 13,
            "Escape": 27,
            "Backspace": 8,
            "ArrowRight": 39,
            "ArrowLeft": 37,
            "End": 35,
            "Home": 36,
        }
        bits = sum({"Alt": 1, "Control": 2, "Meta": 4, "Shift": 8}[name] for name in modifiers)
        event: dict[str, Any] = {
            "key": key,
            "modifiers": bits,
            "windowsVirtualKeyCode": names.get(key, ord(key[0].upper()) if len(key) == 1 else 0),
        }
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        if key in names:
            event["code"] = key
        self.ask(
            "Input.dispatchKeyEvent",
            type="keyDown" if text else "rawKeyDown",
            **({"text": text} if text else {}),
            **event,
        )
        self.ask("Input.dispatchKeyEvent", type="keyUp", **event)

    def log_in(self, key: str) -> None:
        """Enter the key that the page asks for."""
        self.fill("#key", key)
        self.press("Enter")
        self.until("!document.querySelector('#dialog').open")

    def faults(self) -> list[str]:
        """Return the errors of the page's console: exceptions, and resources that its policy
        refused."""
        self.run("1")
        errors: list[str] = []
        for event in self.browser.events:
            if event.get("sessionId") != self.session:
                continue
            parameters = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                details = parameters["exceptionDetails"]
                errors.append(details.get("exception", {}).get("description", details["text"]))
            elif event["method"] == "Runtime.consoleAPICalled" and parameters["type"] in (
                "error",
                "assert",
            ):
                errors.append(
                    " ".join(
                        str(one.get("value", one.get("description"))) for one in parameters["args"]
                    )
                )
            elif (
                event["method"] == "Log.entryAdded"
                and parameters["entry"]["level"] == "error"
                and parameters["entry"]["source"] != "network"
            ):
                errors.append(parameters["entry"]["text"])
        return errors

    def picture(self, path: Path) -> None:
        """Save a PNG of the visible page."""
        path.write_bytes(base64.b64decode(self.ask("Page.captureScreenshot", format="png")["data"]))

    def close(self) -> None:
        """Close the tab."""
        self.browser.ask("Target.closeTarget", targetId=self.target)
