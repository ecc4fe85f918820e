"""Pictures of the page, as the README shows them: streaming, during a kill, after it, narrow, dark.

    python -m tests.page [FOLDER]     docs/page if no other is named

A server with the bundled model, two stories at once, engine 0 killed with the page's own button. It
has no warm spares, so that the pause is long enough to be photographed.
"""

import pathlib
import re
import sys
import tempfile

import trio

from ..end_to_end.server import Server, open_server
from .browser import Browser, BrowserPage, open_browser
from .visits import PROBES, Visit

ROOT = pathlib.Path(__file__).parent.parent.parent
STORIES = ("Tell me a story about a fox and a lantern.", "Tell me a story about an owl and a map.")
SECOND = (
    "Tell me a story about a bear who lost a key.",
    "Tell me a story about a duck and a bell.",
)
OPTIONS = ("--demo", "--spare-engines", "0", "--spare-frontends", "0")
WIDE, NARROW = (1040, 650), (390, 780)
PACE = 14


async def take_pictures(browser: Browser, server: Server, folder: pathlib.Path) -> None:
    """All of them, in the order of what happens."""
    found = re.search(r"http\S+#key=\S+", server.log())
    assert found is not None, "the server prints the address of its demo"
    async with browser.page() as page:
        await page.call("Page.addScriptToEvaluateOnNewDocument", source=PROBES)
        await page.resize(*WIDE)
        await page.goto(found[0])
        visit = Visit(page, server.url)
        await visit.wait_connected()
        await visit.set_parameters(seed=7, pace=PACE)
        await page.click("[data-seconds='15']")
        await page.click("#new-lane")
        for lane, story in enumerate(STORIES):
            await visit.ask(story, lane)
        await visit.wait_streaming(45)
        await save(page, folder / "streaming.png")
        await page.click("[aria-label='Kill engine 0']")
        await page.wait_for("document.querySelectorAll('.mark.now').length === 2")
        await save(page, folder / "kill.png")
        for lane in range(len(STORIES)):
            await visit.wait_ended(lane)
            await visit.press_button("Compare with an undisturbed run", lane)
        await page.wait_for(
            "document.querySelector('.lane:nth-child(2) .facts').innerText.includes('identical')"
        )
        await save(page, folder / "after.png")
        await page.prefer(color_scheme="dark")
        for lane, story in enumerate(SECOND):
            await visit.ask(story, lane)
        await visit.wait_streaming(20)
        await page.click("[aria-label='Kill frontend 0']")
        await page.wait_for("document.querySelectorAll('.turn:nth-child(2) .mark').length === 2")
        await visit.wait_streaming(40)
        await save(page, folder / "dark.png")
        await page.prefer(color_scheme="light", reduced_motion="reduce")
        await page.resize(*NARROW)
        await visit.wait_ended()
        await visit.wait_ended(1)
        await page.evaluate("document.querySelector('.current .turns').scrollTop = 1e6")
        await save(page, folder / "narrow.png")


async def save(page: BrowserPage, path: pathlib.Path) -> None:
    """What is seen now."""
    picture = await page.picture()
    await trio.Path(path).write_bytes(picture)
    sys.stdout.write(f"{path} {len(picture) / 1024:.0f} KiB\n")


async def main(browser: Browser, server_folder: pathlib.Path, folder: pathlib.Path) -> None:
    """A server of its own."""
    async with open_server(server_folder, *OPTIONS) as server:
        await take_pictures(browser, server, folder)


if __name__ == "__main__":
    target = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "page"
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        parts = [pathlib.Path(name) / part for part in ("browser", "server")]
        for part in parts:
            part.mkdir()
        with open_browser(parts[0]) as opened:
            trio.run(main, opened, parts[1], target)
