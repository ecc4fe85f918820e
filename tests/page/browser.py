"""A browser for tests: Chromium without a window, driven over its DevTools protocol.

One process serves all tests of a module; each page of a test has a context of its own, so that none
finds another's storage. What a page complains of (console, exceptions, its content security policy)
is collected in `BrowserPage.problems`.
"""

import base64
import contextlib
import json
import os
import pathlib
import secrets
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import attrs
import trio
from trio_websocket import ConnectionClosed, WebSocketConnection, open_websocket_url

from triolet.fuzz import observers

from ..end_to_end.server import DEADLINE_S, MARK, living, marked_processes

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
MISSING = "there is no chromium on this machine (Debian's package chromium)"
# No network but what a page asks for: there is none, and each attempt takes time.
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-breakpad", "--disable-crash-reporter", "--disable-dev-shm-usage",
    "--disable-extensions", "--disable-lcd-text", "--no-default-browser-check",
    "--hide-scrollbars", "--mute-audio",
    "--disable-features=DialMediaRouteProvider,OptimizationHints",
    "--remote-debugging-port=0", "--remote-allow-origins=*",
)  # fmt: skip
POLL_S = 0.03
MESSAGE_BYTES_MAX = 64 * 2**20
WIDE, HIGH = 1360, 860
# What a key is called, and its code where that differs.
KEYS = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowRight": 39, "ArrowLeft": 37}

wait_until = partial(observers.wait_until, seconds=DEADLINE_S)


@attrs.define(eq=False)
class BrowserPage:
    """One page in a context of its own."""

    socket: WebSocketConnection
    session: str = ""
    problems: list[str] = attrs.field(factory=list)
    _answers: dict[int, dict[str, Any]] = attrs.field(factory=dict)
    _waiting: dict[int, trio.Event] = attrs.field(factory=dict)
    _count: int = 0

    async def read(self) -> None:
        """Take what the browser says, until the connection is closed."""
        with contextlib.suppress(ConnectionClosed):
            while True:
                message = json.loads(await self.socket.get_message())
                if "id" in message:
                    self._answers[message["id"]] = message
                    self._waiting[message["id"]].set()
                else:
                    self.problems += _problems_in(message["method"], message["params"])

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the protocol. Raises `AssertionError` if it fails."""
        self._count += 1
        number, done = self._count, trio.Event()
        self._waiting[number] = done
        message = {"id": number, "method": method, "params": parameters}
        await self.socket.send_message(
            json.dumps({**message, "sessionId": self.session} if self.session else message)
        )
        with trio.fail_after(DEADLINE_S):
            await done.wait()
        answer = self._answers.pop(number)
        assert "error" not in answer, (method, answer["error"])
        result = answer["result"]
        assert isinstance(result, dict)
        return result

    async def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page; of a promise, what it becomes."""
        found = await self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    async def wait_for(self, expression: str) -> Any:
        """The value of an expression, once it is true."""
        found: list[Any] = []

        async def is_true() -> bool:
            found[:] = [await self.evaluate(expression)]
            return bool(found[0])

        try:
            await wait_until(is_true, expression)
        except Exception:
            shown = await self.evaluate("document.body.innerText")
            raise AssertionError(f"{expression}\n{self.problems}\n{shown}") from None
        return found[0]

    async def goto(self, url: str) -> None:
        """Load an address, also the one that is shown."""
        await self.evaluate("window.isBefore = true")
        await self.call("Page.navigate", url=url)
        await self.wait_for("!window.isBefore && document.readyState === 'complete'")

    async def reload(self) -> None:
        """Load it again."""
        await self.evaluate("window.isBefore = true")
        await self.call("Page.reload")
        await self.wait_for("!window.isBefore && document.readyState === 'complete'")

    async def click(self, selector: str) -> None:
        """With the mouse, in the middle of the first such element.

        Again if it has moved meanwhile: what the server reports changes how the page is laid out.
        """
        place = f"document.querySelector({json.dumps(selector)})"

        async def is_hit() -> bool:
            await self.wait_for(f"{place} && !{place}.disabled")
            # Where it is once the page was laid out as it is now.
            frame = "await new Promise((done) => requestAnimationFrame(done));"
            box = await self.evaluate(
                f"(async () => {{ const e = {place}; e.scrollIntoView({{block: 'nearest'}});"
                " window.isHit = false; const note = () => (window.isHit = true);"
                " e.addEventListener('mousedown', note, {capture: true, once: true});"
                f" {frame} {frame} const b = e.getBoundingClientRect();"
                " return [b.x + b.width / 2, b.y + b.height / 2] })()"
            )
            at = {"x": box[0], "y": box[1], "button": "left", "clickCount": 1}
            await self.call("Input.dispatchMouseEvent", type="mousePressed", **at)
            await self.call("Input.dispatchMouseEvent", type="mouseReleased", **at)
            found = await self.evaluate("window.isHit !== false")  # the click may load another page
            return bool(found)

        await wait_until(is_hit, f"{selector} is hit")

    async def move_to(self, x: float, y: float) -> None:
        """The mouse."""
        await self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    async def type(self, text: str) -> None:
        """Into what has the focus."""
        await self.call("Input.insertText", text=text)

    async def press(self, key: str) -> None:
        """One key, as of a keyboard."""
        code = KEYS.get(key) or ord(key.upper())
        named = {"key": key, "windowsVirtualKeyCode": code}
        text = "\r" if key == "Enter" else key if len(key) == 1 else ""
        await self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **named)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **named)

    async def resize(self, width: int, height: int, scale: float = 1.0) -> None:
        """As if the screen were so large, in CSS pixels."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=scale, mobile=width < 600,
        )  # fmt: skip

    async def prefer(self, **features: str) -> None:
        """What the visitor prefers: `color_scheme="dark"`, `reduced_motion="reduce"`."""
        listed = [
            {"name": f"prefers-{name.replace('_', '-')}", "value": value}
            for name, value in features.items()
        ]
        await self.call("Emulation.setEmulatedMedia", features=listed)

    async def picture(self) -> bytes:
        """A PNG of what is seen."""
        found = await self.call("Page.captureScreenshot", format="png", optimizeForSpeed=False)
        return base64.b64decode(found["data"])


def _problems_in(method: str, parameters: dict[str, Any]) -> list[str]:
    match method:
        case "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            return [details.get("exception", {}).get("description", details["text"])]
        case "Runtime.consoleAPICalled" if parameters["type"] in ("error", "warning", "assert"):
            return [json.dumps(parameters["args"])]
        case "Log.entryAdded" if parameters["entry"]["level"] in ("error", "warning"):
            entry = parameters["entry"]
            return [f"{entry['text']} {entry.get('url', '')}"]
        case "Audits.issueAdded" if "ContentSecurity" in parameters["issue"]["code"]:
            return [json.dumps(parameters["issue"])]
    return []


@attrs.define(eq=False)
class Browser:
    """The process. Made by `open_browser`."""

    popen: subprocess.Popen[bytes]
    folder: pathlib.Path
    mark: str

    async def wait_url(self) -> str:
        """Where it takes commands."""
        port_file = self.folder / "DevToolsActivePort"

        def is_there() -> bool:
            assert self.popen.poll() is None, "the browser has ended"
            return port_file.exists() and len(port_file.read_text().split()) == 2

        await wait_until(is_there, "the browser takes commands")
        port, path = port_file.read_text().split()
        return f"ws://127.0.0.1:{port}{path}"

    @asynccontextmanager
    async def page(self, url: str = "about:blank") -> AsyncIterator[BrowserPage]:
        """A page of its own context, gone afterwards."""
        async with (
            open_websocket_url(await self.wait_url(), max_message_size=MESSAGE_BYTES_MAX) as socket,
            trio.open_nursery() as nursery,
        ):
            browser = BrowserPage(socket)
            nursery.start_soon(browser.read)
            context = (await browser.call("Target.createBrowserContext"))["browserContextId"]
            target = await browser.call(
                "Target.createTarget", url="about:blank", browserContextId=context
            )
            attached = await browser.call(
                "Target.attachToTarget", targetId=target["targetId"], flatten=True
            )
            browser.session = attached["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Audits"):
                await browser.call(f"{domain}.enable")
            await browser.resize(WIDE, HIGH)
            if url != "about:blank":
                await browser.goto(url)
            yield browser
            browser.session = ""
            await browser.call("Target.disposeBrowserContext", browserContextId=context)
            await socket.aclose()

    def end(self) -> None:
        """End it with all of its processes, and read its exit."""
        with contextlib.suppress(ProcessLookupError):
            self.popen.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(DEADLINE_S / 4)
        trio.run(self._end_rest)
        self.popen.wait(DEADLINE_S)

    async def _end_rest(self) -> None:
        def all_are_gone() -> bool:
            left = living(marked_processes(self.mark))
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not left

        await wait_until(all_are_gone, "no process of the browser is left")


@contextmanager
def open_browser(folder: pathlib.Path) -> Iterator[Browser]:
    """A browser whose profile is in this empty folder."""
    assert CHROMIUM is not None, MISSING
    mark = secrets.token_hex(8)
    home = {"HOME": str(folder), "XDG_RUNTIME_DIR": str(folder), "TMPDIR": str(folder)}
    popen = subprocess.Popen(
        [CHROMIUM, *FLAGS, f"--user-data-dir={folder}", f"--window-size={WIDE},{HIGH}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **home, MARK: mark},
        start_new_session=True,
    )
    browser = Browser(popen, folder, mark)
    try:
        yield browser
    finally:
        browser.end()
