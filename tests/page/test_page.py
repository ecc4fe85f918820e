"""The page in a real browser: chat, lanes, kills, resume, keys, hostile text, small screens.

One server and one browser for all; each test has a context of its own. After each the browser must
have complained of nothing: no console error, no exception, no violation of the page's policy.
"""

import json
import re
from collections.abc import Iterator

import attrs
import pytest

from ..end_to_end.server import Server, module_server
from .browser import CHROMIUM, MISSING, Browser, open_browser
from .visits import ADMIN_KEY, FOX, USER_KEY, Visit, answer_over_http, open_visit

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason=MISSING),
]
OWL = "Tell me a story about an owl and the rain."
# Tokens of a text in whose middle something is killed.
MANY = 113
BEAR = "Tell me a story about a bear who lost a key."
# Characters of a text that is long, and what is far beyond what drawing it takes.
LONG, SLOW_MS = 200_000, 10_000
REFUSED = "the server responded with a status of 401"


@attrs.frozen
class Place:
    """Where the tests are at home."""

    server: Server
    browser: Browser

    @property
    def url(self) -> str:
        return self.server.url


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("page")
    (folder / "server").mkdir()
    (folder / "browser").mkdir()
    # Answers that outlive the page of a test are not waited for.
    keys = ("--api-key", USER_KEY, "--admin-key", ADMIN_KEY, "--demo", "--grace", "0.2")
    with (
        open_browser(folder / "browser") as browser,
        module_server(folder / "server", *keys) as server,
    ):
        yield Place(server, browser)


async def test_an_answer_streams_into_the_page(place: Place) -> None:
    async with open_visit(place.browser, place.url) as visit:
        assert await visit.shown("#model") == "triolet-bundled"
        await visit.ask(FOX)
        await visit.wait_streaming()
        assert await visit.wait_ended() == await answer_over_http(place.url, FOX)
        facts = await visit.shown(".facts")
        assert "tokens ·" in facts
        assert "tokens/s" in facts
        assert "first after" in facts


async def test_lanes_stream_at_the_same_time(place: Place) -> None:
    async with open_visit(place.browser, place.url) as visit:
        asked = [FOX, OWL, BEAR]
        for lane, text in enumerate(asked):
            if lane:
                await visit.page.click("#new-lane")
            await visit.ask(text, lane)
        for lane in range(3):
            await visit.wait_streaming(3, lane)
        assert await visit.page.evaluate("document.querySelectorAll('.streaming').length") == 3
        assert await visit.page.evaluate("sockets.length") == 1
        for lane, text in enumerate(asked):
            assert await visit.wait_ended(lane) == await answer_over_http(place.url, text)


async def test_a_stopped_conversation_goes_on(place: Place) -> None:
    async with open_visit(place.browser, place.url, pace=15) as visit:
        await visit.ask(FOX)
        await visit.wait_streaming(4)
        await visit.press_button("Stop")
        whole = await answer_over_http(place.url, FOX)
        stopped = await visit.wait_ended()
        assert whole.startswith(stopped)
        assert len(stopped) < len(whole)
        assert await visit.shown(".state") == "stopped"
        await visit.ask("And then?")
        await visit.wait_streaming(2)
        second = (await visit.sent("response.create"))[1]
        assert second["previous_response_id"].startswith("resp_")
        await visit.page.press("Escape")  # stops, too
        await visit.wait_ended()


async def test_another_answer_is_kept_beside_the_first(place: Place) -> None:
    async with open_visit(place.browser, place.url, pace=400, temperature=1.5) as visit:
        await visit.ask(FOX)
        first = await visit.wait_ended()
        await visit.set_parameters(seed=8, pace=400, temperature=1.5)
        assert await visit.text() == first
        await visit.press_button("Regenerate")
        await visit.page.wait_for(
            "document.querySelector('.versions')?.innerText.includes('2 of 2')"
        )
        other = await visit.wait_ended()
        assert other != first
        await visit.press_button("‹")
        await visit.page.wait_for(
            "document.querySelector('.versions')?.innerText.includes('1 of 2')"
        )
        assert await visit.text() == first
        await visit.ask("And then?")
        await visit.wait_ended()
        asked = await visit.sent("response.create")
        assert "previous_response_id" not in asked[0]
        stored = await visit.page.evaluate("JSON.parse(localStorage['triolet.conversations'])")
        chosen = stored[0]["turns"][0]["answers"][0]["id"]
        assert asked[1]["previous_response_id"] == chosen


async def test_a_cut_connection_is_resumed(place: Place) -> None:
    async with open_visit(place.browser, place.url) as visit:
        await visit.ask(FOX)
        await visit.wait_streaming()
        await visit.page.evaluate("sockets[0].close()")
        await visit.page.wait_for("sockets.length === 2")
        assert await visit.wait_ended() == await answer_over_http(place.url, FOX)
        (resumed,) = await visit.sent("response.resume")
        assert resumed["starting_after"] > 8
        assert len(await visit.sent("response.create")) == 1
        assert "connection lost · " in await visit.shown(".mark")


async def test_a_reload_keeps_conversations_and_resumes(place: Place) -> None:
    async with open_visit(place.browser, place.url) as visit:
        await visit.ask(FOX)
        await visit.wait_streaming()
        await visit.page.reload()
        assert await visit.wait_ended() == await answer_over_http(place.url, FOX)
        assert len(await visit.sent("response.resume")) == 1
        await visit.ask("And then?")
        await visit.wait_ended()
        (asked,) = await visit.sent("response.create")
        assert asked["previous_response_id"].startswith("resp_")


async def test_a_conversation_that_the_server_has_forgotten_is_sent_again(place: Place) -> None:
    async with open_visit(place.browser, place.url, pace=400) as visit:
        await visit.ask(FOX)
        first = await visit.wait_ended()
        await visit.page.evaluate(
            "document.addEventListener('visibilitychange', () => 0);"
            "const stored = JSON.parse(localStorage['triolet.conversations']);"
            "stored[0].turns[0].answers[0].id = 'resp_0_gone';"
            "addEventListener('pagehide', () =>"
            " localStorage['triolet.conversations'] = JSON.stringify(stored))"
        )
        await visit.page.reload()
        await visit.wait_connected()
        await visit.ask("And then?")
        assert await visit.wait_ended()
        asked = await visit.sent("response.create")
        assert asked[0]["previous_response_id"] == "resp_0_gone"
        assert [each["content"] for each in asked[1]["input"]] == [FOX, first, "And then?"]


async def test_a_key_is_asked_for_and_refused(place: Place) -> None:
    async with open_visit(
        place.browser, place.url, key="", allowed=(REFUSED, "403", "404")
    ) as visit:
        await visit.page.wait_for("document.querySelector('#key-dialog').open")
        await visit.page.type("wrong")
        await visit.page.press("Enter")
        refused = "The API key is not one of this server's"
        await visit.wait_shown("#key-refused", refused)
        await visit.page.evaluate("document.querySelector('#key').select()")
        await visit.page.type(USER_KEY)
        await visit.page.press("Enter")
        await visit.wait_connected()
        assert "admin key" in await visit.shown("#tree")
        await visit.ask(FOX)
        await visit.wait_streaming()


async def test_the_address_of_a_demonstration_opens_everything_in_every_tab(place: Place) -> None:
    (address,) = re.findall(r"http\S+#key=\S+", place.server.log())
    async with open_visit(place.browser, address, key="") as visit:
        await visit.wait_connected()
        assert await visit.page.evaluate("location.hash") == ""
        await visit.shown("[aria-label='Kill engine 0']")
        await visit.page.reload()
        await visit.shown("[aria-label='Kill engine 0']")
        assert await visit.page.evaluate("localStorage['triolet.demo']") in address
        await visit.page.evaluate("sessionStorage.clear()")  # as in a new tab
        await visit.page.goto(place.url)
        await visit.shown("[aria-label='Kill engine 0']")
    async with open_visit(place.browser, address, key="", allowed=(REFUSED,)) as visit:
        await visit.shown("[aria-label='Kill engine 0']")
        # That of another server, which had this address before.
        await visit.page.evaluate("localStorage['triolet.demo'] = 'another'")
        await visit.page.reload()
        await visit.wait_shown("#tree", "admin key")
        assert await visit.page.evaluate("localStorage['triolet.demo'] ?? 'none'") == "none"


SILENT_HOST = """import(new URL('page/tree.js', document.baseURI)).then(({ Tree }) => {
  const box = document.body.appendChild(document.createElement('div'));
  const now = Date.now(), since = now - 2100;
  const facts = { ranks: '4', 'round trip': '0.4 ms', 'lease left': '1.1 s' };
  const rows = [
    { place: 'root', parent: null, role: 'root', pid: 1, state: 'ready' },
    { place: 'host b', parent: 'root', role: 'host', pid: 7, state: 'silent', since, facts,
      can: ['kill'] },
    { place: 'engine 4', parent: 'host b', role: 'engine', pid: 8, state: 'ready' },
  ];
  const tree = new Tree(box, null, () => {});
  tree.update({ processes: new Map(rows.map((row) => [row.place, row])), now });
  const lineOf = (place) =>
    getComputedStyle(box.querySelector(`[aria-label="${place}"] > .row .name`)).textDecorationLine;
  const words = box.querySelector('[aria-label="host b"] > .row .what').textContent;
  const kills = [...box.querySelectorAll('button.kill')].map((button) => button.ariaLabel);
  return [rows.map((row) => lineOf(row.place)), words, kills];
})"""


async def test_a_silent_host_is_struck_with_its_engines(place: Place) -> None:
    async with open_visit(place.browser, place.url) as visit:
        lines, words, kills = await visit.page.evaluate(SILENT_HOST)
    assert lines == ["none", "line-through", "line-through"]
    assert words == "silent for 2.1 s · engines 4 · round trip 0.4 ms · lease 1.1 s left"
    assert kills == ["Kill host b"]


async def test_a_page_from_elsewhere_is_refused(place: Place) -> None:
    allowed = ("403", "WebSocket connection", "CORS", "ERR_FAILED")
    async with place.browser.page() as page:
        address = place.url.replace("http", "ws") + "/v1/responses"
        ended = await page.evaluate(
            f"new Promise((done) => {{ const socket = new WebSocket({json.dumps(address)});"
            " socket.onopen = () => done('open'); socket.onerror = () => done('refused') })"
        )
        assert ended == "refused"
        asked = (
            f"fetch({json.dumps(place.url + '/page/chat.js')}).then(() => 'read', () => 'refused')"
        )
        assert await page.evaluate(asked) == "refused"
        assert all(any(word in each for word in allowed) for each in page.problems)


async def kill(visit: Visit, victim: str) -> None:
    """Click its button."""
    await visit.page.click(f"[aria-label='Kill {victim}']")


@pytest.mark.chaos
@pytest.mark.parametrize("victim", ["engine 0", "engine 0 worker 0"])
async def test_the_text_goes_on_when_its_engine_is_killed(place: Place, victim: str) -> None:
    async with open_visit(place.browser, place.url, pace=36, max_output_tokens=MANY) as visit:
        row = f"[aria-label='{victim}']"
        pid = await visit.shown(f"{row} .pid")
        await visit.ask(FOX)
        await visit.wait_streaming()
        await kill(visit, victim)
        # It is seen in the tree: the old pid is crossed out, another is there.
        await visit.wait_shown(f"{row} .pids s", pid)
        assert await visit.shown(f"{row} .pid") != pid
        # And in the text: a mark, and the text of the undisturbed run.
        assert await visit.wait_ended() == await answer_over_http(place.url, FOX, MANY)
        if victim == "engine 0":
            await visit.wait_shown(".mark", "engine 0 killed · ")
            assert await visit.page.evaluate("document.querySelectorAll('.mark').length") == 1
            await visit.press_button("Compare with an undisturbed run")
            await visit.wait_shown(".facts", "identical to an undisturbed run")


@pytest.mark.chaos
async def test_the_text_goes_on_when_its_frontend_is_killed(place: Place) -> None:
    # Its next life says that the process of the request is another by now.
    async with open_visit(
        place.browser, place.url, pace=36, max_output_tokens=MANY, allowed=("status of 409",)
    ) as visit:
        pid = await visit.shown("[aria-label='frontend 0'] .pid")
        await visit.ask(FOX)
        await visit.wait_streaming()
        await kill(visit, "frontend 0")
        assert await visit.wait_ended() == await answer_over_http(place.url, FOX, MANY)
        await visit.wait_shown("[aria-label='frontend 0'] .pids s", pid)
        assert len(await visit.sent("response.create")) == 1
        assert not await visit.page.evaluate("document.querySelector('#notice').innerText")


@pytest.mark.chaos
async def test_a_process_is_stopped_and_continued(place: Place) -> None:
    """What is stopped is killed after half a second: the order to go on may come between lives."""
    async with open_visit(place.browser, place.url, pace=20, allowed=("status of 409",)) as visit:
        engine = "[aria-label='engine 0']"
        await visit.ask(FOX)
        await visit.wait_streaming(4)
        await visit.page.click("[aria-label='Stop engine 0']")
        await visit.page.wait_for(f"document.querySelector(\"{engine}\").dataset.state !== 'ready'")
        await visit.page.click("[aria-label='Continue engine 0']")
        await visit.page.wait_for(f"document.querySelector(\"{engine}\").dataset.state === 'ready'")
        assert await visit.wait_ended() == await answer_over_http(place.url, FOX)


async def test_the_tree_lists_tasks_and_what_they_wait_for(place: Place) -> None:
    async with open_visit(place.browser, place.url, pace=25) as visit:
        await visit.ask(FOX)
        await visit.wait_streaming(2)
        await visit.wait_shown("[aria-label='engine 0'] .what", "1 running")
        await visit.wait_shown("[aria-label='engine 0'] .blocks", "KV blocks")
        await visit.wait_shown("[aria-label='engine 0'] .memory", "MiB")
        await visit.page.click("[aria-label='frontend 0'] summary")
        await visit.wait_shown("[aria-label='frontend 0'] .tasks", "waits")


async def test_tokens_show_what_else_was_likely(place: Place) -> None:
    async with open_visit(place.browser, place.url, pace=400, logprobs=True) as visit:
        await visit.ask(FOX)
        text = await visit.wait_ended()
        box = await visit.page.evaluate("probes.firstCharacter()")
        await visit.page.move_to(*box)
        first = await visit.shown(".token .own code")
        assert text.startswith(first)
        assert await visit.page.evaluate("document.querySelectorAll('.token p').length") == 5
        # The same by the keyboard: tokens in order are the text.
        await visit.page.move_to(1, 1)
        await visit.page.evaluate("document.querySelector('.text').focus()")
        seen = ""
        for _ in range(6):
            await visit.page.press("ArrowRight")
            shown = await visit.shown(".token .own code")
            seen += shown.replace("␣", " ")
        assert text.startswith(seen)
        assert len(seen.split()) > 3


HOSTILE = """\
<img src=x onerror=alert(1)><script>alert(2)</script> **<b>bold</b>** [a](javascript:alert(3))
[b](data:text/html,x) ![c](http://example.com/x.png) `<i>` \x00\x07\x1b[31m \u202e\ud7ff

<style>*{display:none}</style>

| <td> | b |
|---|---|
| <script> | x |

```html
<svg onload=alert(4)>
```

"""
PARTS = {
    "p", "strong", "em", "del", "code", "span", "a", "div", "pre", "button", "blockquote",
    "table", "thead", "tbody", "tr", "th", "td",
}  # fmt: skip


async def test_hostile_text_stays_text(place: Place) -> None:
    async with open_visit(place.browser, place.url, max_output_tokens=4) as visit:
        await visit.paste(json.dumps(HOSTILE))
        await visit.wait_ended()
        question = await visit.page.evaluate("document.querySelector('.question').textContent")
        assert question == HOSTILE
        # As a model's.
        found = await visit.page.evaluate(f"probes.draw({json.dumps(HOSTILE)})")
        assert set(found["tags"]) <= PARTS
        assert found["links"] == ["http://example.com/x.png"]
        for each in ("<img src=x onerror=alert(1)>", "<b>bold</b>", "<svg onload=alert(4)>"):
            assert each in found["text"]
        assert await visit.page.evaluate("document.images.length") == 0


async def test_ten_megabytes_are_refused_in_one_sentence(place: Place) -> None:
    async with open_visit(place.browser, place.url) as visit:
        await visit.page.evaluate(
            "document.querySelector('textarea').value = 'fox '.repeat(2_600_000)"
        )
        await visit.page.click("textarea")
        await visit.page.press("Enter")
        await visit.wait_ended()
        state = await visit.shown(".state")
        assert state.startswith("refused: ")
        assert "MiB)" in await visit.shown(".question")
        # Nothing else is disturbed: not the socket, not the storage, not the conversation.
        await visit.press_button("Regenerate")
        await visit.page.wait_for(
            "document.querySelector('.versions')?.innerText.includes('2 of 2')"
        )
        await visit.page.click("#new-lane")
        await visit.ask(FOX, 1)
        await visit.wait_streaming(2, 1)
        assert await visit.page.evaluate("sockets.length") == 1
        assert await visit.page.evaluate("localStorage['triolet.conversations'].length") < 10**6


async def test_much_markdown_is_drawn_in_time(place: Place) -> None:
    # Each of them can be read in the square of its length.
    pieces = ["a\n\n", "**a ", "[", "[](", "`", "` `` ``` ", "> ", "- a\n", "_a ", "a|\n-|\n"]
    async with open_visit(place.browser, place.url) as visit:
        for piece in pieces:
            text = f"{json.dumps(piece)}.repeat({LONG // len(piece)})"
            drawn = await visit.page.evaluate(f"probes.draw({text})")
            assert drawn["ms"] < SLOW_MS, piece


async def test_a_phone_scrolls_down_only(place: Place) -> None:
    async with open_visit(place.browser, place.url, pace=400) as visit:
        await visit.page.resize(340, 640)
        await visit.ask("Tell me a story about a " + "very " * 30 + "w" * 200 + ".")
        await visit.wait_ended()
        await visit.page.click("#new-lane")
        for view in ("chat", "server"):
            await visit.page.click(f".views [data-view={view}]")
            outside = await visit.page.evaluate("probes.outside()")
            assert outside == []
            assert await visit.page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")


async def test_dark_and_light_can_be_read_and_chosen(place: Place) -> None:
    async with open_visit(place.browser, place.url) as visit:
        for preferred in ("light", "dark"):
            await visit.page.prefer(color_scheme=preferred)
            paper, ratios = await visit.page.evaluate("probes.contrast()")
            assert (paper < 0.1) == (preferred == "dark")
            assert {name: ratio for name, ratio in ratios.items() if ratio < 4.5} == {}
        await visit.page.click("#theme")
        assert (await visit.page.evaluate("probes.contrast()"))[0] > 0.5
        await visit.page.reload()
        assert (await visit.page.evaluate("probes.contrast()"))[0] > 0.5


async def test_a_fork_server_says_that_it_makes_spares(place: Place) -> None:
    names = "[...document.querySelectorAll('.name')].filter((e) => /^fork/.test(e.innerText))"
    async with open_visit(place.browser, place.url) as visit:
        await visit.wait_shown(".head", "12 processes")
        titles = await visit.page.evaluate(f"{names}.map((e) => e.title.slice(0, 12))")
    assert titles == ["makes spares"] * 3


async def test_the_keyboard_reaches_everything(place: Place) -> None:
    async with open_visit(place.browser, place.url) as visit:
        # All that there will be: with its spares, and what makes them.
        await visit.wait_shown(".head", "12 processes")
        await visit.page.wait_for("document.querySelectorAll('.kill').length >= 5")
        await visit.page.evaluate("probes.watchFocus()")
        # Twice around: rows come and go meanwhile.
        for _ in range(2 * await visit.page.evaluate("probes.stops()")):
            await visit.page.press("Tab")
        assert await visit.page.evaluate("probes.unreached()") == []
        assert await visit.page.evaluate("probes.unmarked") == []
        await visit.page.evaluate("document.activeElement.blur()")
        for key, dialog in (("?", "shortcuts"), ("p", "parameters")):
            await visit.page.press(key)
            await visit.page.wait_for(f"document.querySelector('#{dialog}').open")
            await visit.page.press("Escape")
            await visit.page.wait_for(f"!document.querySelector('#{dialog}').open")
        await visit.page.press("n")
        await visit.page.wait_for("document.querySelectorAll('.lane').length === 2")


async def test_motion_is_left_out_where_it_is_unwelcome(place: Place) -> None:
    async with open_visit(place.browser, place.url, pace=15) as visit:
        await visit.page.prefer(reduced_motion="reduce")
        await visit.ask(FOX)
        await visit.wait_streaming(2)
        assert await visit.page.evaluate("document.getAnimations().length") == 0


async def test_no_words_of_two_crosses_are_drawn_over_each_other(place: Place) -> None:
    crosses = [{"at": at, "wide": 90} for at in (130, 150, 240, 330, 335, 380)]
    async with open_visit(place.browser, place.url) as visit:
        places = await visit.page.evaluate(
            "import('/page/timeline.js')"
            f".then((timeline) => timeline.labelPlaces({json.dumps(crosses)}, 100, 390))"
        )
    assert places == [138, None, 248, None, None, None]
