"""A visitor of the page: asks, stops, reads, kills; by mouse and keyboard, as people do."""

import json
import pathlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import httpx

from .browser import Browser, BrowserPage

USER_KEY, ADMIN_KEY = "a user's key", "the admin's key"
FOX = "Tell me a story about a fox and a lantern."
# So that a stream lasts some seconds, and has the same text each time.
TOKENS = 64
SLOWLY = {"seed": 7, "pace": 36, "max_output_tokens": TOKENS}
PROBES = (pathlib.Path(__file__).parent / "probes.js").read_text()
PARAMETERS, KEY = "triolet.parameters", "triolet.key"


@attrs.define(eq=False)
class Visit:
    """A page that is open, and what is seen in it. Lanes count from 0."""

    page: BrowserPage
    url: str

    async def wait_connected(self) -> None:
        """The socket is open."""
        await self.page.wait_for("document.querySelector('#link').dataset.state === 'open'")

    async def set_parameters(self, **values: Any) -> None:
        """As the form would keep them; the page is loaded again."""
        await self.page.evaluate(_stored("localStorage", PARAMETERS, json.dumps(values)))
        await self.page.reload()
        await self.wait_connected()

    async def ask(self, text: str, lane: int = 0) -> None:
        """Write it and press Enter; it is seen then."""
        turns = await self.page.evaluate(f"probes.turns({lane})")
        await self.page.click(f".lane:nth-child({lane + 1}) textarea")
        await self.page.type(text)
        await self.page.press("Enter")
        await self.page.wait_for(f"probes.turns({lane}) > {turns}")

    async def paste(self, script: str) -> None:
        """Ask what a script gives: texts that no keyboard writes."""
        await self.page.evaluate(f"document.querySelector('textarea').value = {script}")
        await self.page.click("textarea")
        await self.page.press("Enter")
        await self.page.wait_for("probes.turns(0)")

    async def text(self, lane: int = 0) -> str:
        """The last answer of a lane, without the marks in it."""
        found = await self.page.evaluate(f"probes.text({lane})")
        assert isinstance(found, str)
        return found

    async def wait_streaming(self, words: int = 8, lane: int = 0) -> None:
        """So many words have come, and it goes on."""
        await self.page.wait_for(f"probes.streamed({lane}) > {words}")

    async def wait_ended(self, lane: int = 0) -> str:
        """The last answer of a lane, whole."""
        await self.page.wait_for(f"probes.isEnded({lane})")
        return await self.text(lane)

    async def shown(self, selector: str) -> str:
        """What the first such element says."""
        found = await self.page.wait_for(
            f"document.querySelector({json.dumps(selector)})?.innerText"
        )
        assert isinstance(found, str)
        return found

    async def wait_shown(self, selector: str, words: str) -> None:
        """The first such element says this."""
        found = f"document.querySelector({json.dumps(selector)})?.innerText"
        await self.page.wait_for(f"{found}?.includes({json.dumps(words)})")

    async def press_button(self, words: str, lane: int = 0) -> None:
        """The last button of a lane that says this."""
        await self.page.wait_for(f"probes.chooseButton({lane}, {json.dumps(words)})")
        await self.page.click("[data-chosen]")

    async def sent(self, kind: str) -> list[dict[str, Any]]:
        """Messages of this type that the page has sent since it was loaded."""
        found = await self.page.evaluate(f"sent.filter((each) => each.type === {json.dumps(kind)})")
        assert isinstance(found, list)
        return found


def _stored(storage: str, name: str, value: str) -> str:
    return f"{storage}.setItem({json.dumps(name)}, {json.dumps(value)});"


@asynccontextmanager
async def open_visit(
    browser: Browser,
    url: str,
    *,
    key: str = ADMIN_KEY,
    allowed: tuple[str, ...] = (),
    **parameters: Any,
) -> AsyncIterator[Visit]:
    """The page, connected, with this key; in the end it must have complained of nothing else."""
    async with browser.page() as page:
        first = _stored("localStorage", PARAMETERS, json.dumps({**SLOWLY, **parameters}))
        first += _stored("sessionStorage", KEY, key) if key else ""
        once = f"if (!sessionStorage.seen) {{ sessionStorage.seen = 1; {first} }}"
        await page.call("Page.addScriptToEvaluateOnNewDocument", source=PROBES + once)
        await page.goto(url)
        visit = Visit(page, url)
        if key:
            await visit.wait_connected()
        yield visit
        unknown = [each for each in page.problems if not any(word in each for word in allowed)]
        assert not unknown, unknown


async def answer_over_http(url: str, text: str, tokens: int = TOKENS) -> str:
    """What the API says to the same request."""
    body = {"input": text, "runtime": {"seed": SLOWLY["seed"]}, "max_output_tokens": tokens}
    headers = {"authorization": f"Bearer {USER_KEY}"}
    async with httpx.AsyncClient(timeout=None) as client:
        answer = await client.post(f"{url}/v1/responses", json=body, headers=headers)
    found = answer.json()["output"][0]["content"][0]["text"]
    assert isinstance(found, str)
    return found
