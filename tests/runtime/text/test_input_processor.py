"""Prompts of every form become ids, short ones at once, long ones in threads, wrong ones not."""

import json
import pathlib
import threading
from collections.abc import Iterator
from typing import Any

import attrs
import pytest
import tokenizers
import trio
import trio.testing

from triolet.engine.config import EngineSettings
from triolet.engine.errors import InvalidParameter, PromptTooLong
from triolet.engine.sampling_params import SamplingParams
from triolet.runtime.config import InputLimits, RuntimeSettings
from triolet.runtime.errors import (
    ChatTemplateMissing,
    ChatTemplateRefused,
    ChatTemplateTooCostly,
    Overloaded,
    RequestQuarantined,
)
from triolet.runtime.hands import TABLE_BYTES, ContentKind, content_of, read_hands
from triolet.runtime.messages import Doubted
from triolet.runtime.text.chat_template import ChatTemplate
from triolet.runtime.text.input_processor import InputProcessor, spell_bad_words
from triolet.runtime.text.prompts import ChatPrompt, Prompt
from triolet.runtime.text.template_sandbox import INLINE
from triolet.runtime.text.tokenizer import Tokenizer

from ..model_folders import byte_level_tokenizer, write_folder

GREEDY = SamplingParams(temperature=0)
HELLO = ChatPrompt([{"role": "user", "content": "hello"}])


@pytest.fixture
def inputs(tokenizer: Tokenizer, model_folder: pathlib.Path) -> InputProcessor:
    return InputProcessor(
        tokenizer,
        ChatTemplate.load(model_folder, tokenizer.special_tokens),
        vocab_size=330,
        max_model_len=1000,
        limits=InputLimits(inline_characters_max=50, prompt_characters_max=100_000),
    )


async def test_text_gets_what_the_model_expects_around_it(inputs: InputProcessor) -> None:
    prepared = await inputs.prepare("the cat", GREEDY)
    assert prepared.prompt_token_ids == inputs.tokenizer.encode("the cat")
    assert inputs.tokenizer.token_strings(prepared.prompt_token_ids[:1]) == ["<|begin|>"]
    room = 1000 - len(prepared.prompt_token_ids)
    assert prepared.params == attrs.evolve(GREEDY, max_tokens=room)
    asked = attrs.evolve(GREEDY, max_tokens=room + 1)  # more than fit: as many as do
    assert (await inputs.prepare("the cat", asked)).params == prepared.params


async def test_a_conversation_is_rendered_and_gets_nothing_more(inputs: InputProcessor) -> None:
    prepared = await inputs.prepare(HELLO, GREEDY)
    text = inputs.tokenizer.decode(prepared.prompt_token_ids, skip_special_tokens=False)
    assert text == "<|begin|><|turn|>user\nhello<|end|>\n<|turn|>assistant\n"


async def test_a_long_conversation_is_rendered_in_a_thread(inputs: InputProcessor) -> None:
    prompt = ChatPrompt([{"role": "user", "content": "a b c " * 3_000}] * 5)
    text = await inputs.render(prompt)
    assert inputs.chat_template is not None
    assert text == inputs.chat_template.render(prompt.messages)
    with pytest.raises(ChatTemplateTooCostly):
        inputs.chat_template.render(prompt.messages, limits=INLINE)


@pytest.mark.parametrize("repeats", [1, 9_000], ids=["at once", "in a thread"])
async def test_a_conversation_is_in_hand_while_it_is_rendered(
    inputs: InputProcessor, repeats: int
) -> None:
    prompt = ChatPrompt([{"role": "user", "content": "a b c " * repeats, "id": 2**70}])
    content = content_of(ContentKind.CHAT, "p", prompt.known_by())
    table = bytearray(TABLE_BYTES)
    inputs.hands.memory = memoryview(table)
    named = list[bytes]()
    now = inputs.chat_template
    assert now is not None

    class Watched(ChatTemplate):
        def render(self, *args: Any, **options: Any) -> str:
            named.extend(read_hands(bytes(table)))
            return super().render(*args, **options)

    inputs.chat_template = Watched(now._templates, now._special_tokens, now.source)
    await inputs.render(prompt, "p")
    assert set(named) == {content}
    assert read_hands(bytes(table)) == []
    inputs.hands.handle_doubted(Doubted([], {content: float("inf")}))
    await inputs.render(prompt, "q")
    with pytest.raises(RequestQuarantined):
        await inputs.render(prompt, "p")


async def test_the_loop_goes_on_while_a_template_takes_for_ever(
    inputs: InputProcessor, tmp_path: pathlib.Path
) -> None:
    silent = "{% for a in range(10**5) %}{% for b in range(10**5) %}{% endfor %}{% endfor %}"
    (tmp_path / "chat_template.jinja").write_text(silent)
    inputs.chat_template = ChatTemplate.load(tmp_path, {})
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count_turns)
        with pytest.raises(ChatTemplateRefused, match="more time or memory"):
            await inputs.prepare(HELLO, SamplingParams())
        nursery.cancel_scope.cancel("the template has been ended")
    assert turns > 10


async def test_ids_are_copied(inputs: InputProcessor) -> None:
    ids = [5, 329]
    prepared = await inputs.prepare(ids, GREEDY)
    assert prepared.prompt_token_ids == ids
    assert prepared.prompt_token_ids is not ids


class RecordingTokenizer(Tokenizer):
    """Remembers in which thread each slice was encoded; cuts often; cancels at the third slice."""

    threads: list[int]
    scope: trio.CancelScope | None

    def slices(self, text: str) -> Iterator[str]:
        return self.slicer.slices(text, 20)

    def encode_slice(self, text: str) -> tokenizers.Encoding:
        self.threads.append(threading.get_ident())
        if self.scope is not None and len(self.threads) == 3:
            trio.from_thread.run_sync(self.scope.cancel, "the client left")
        return super().encode_slice(text)


@pytest.fixture
def recording(model_folder: pathlib.Path, inputs: InputProcessor) -> RecordingTokenizer:
    tokenizer = RecordingTokenizer.load(model_folder)
    tokenizer.threads, tokenizer.scope = [], None
    inputs.tokenizer = tokenizer
    return tokenizer


async def test_long_texts_are_encoded_in_slices_off_the_loop(
    inputs: InputProcessor, recording: RecordingTokenizer
) -> None:
    text = "the cat sat on the mat " * 10
    prepared = await inputs.prepare(text, GREEDY)
    assert prepared.prompt_token_ids == recording.encode(text)
    assert len(recording.threads) > 5
    assert threading.get_ident() not in recording.threads


async def test_cancelling_ends_with_the_slice(
    inputs: InputProcessor, recording: RecordingTokenizer
) -> None:
    with trio.CancelScope() as recording.scope:
        await inputs.prepare("the cat sat on the mat " * 10, GREEDY)
    assert recording.scope is not None
    assert recording.scope.cancelled_caught
    assert len(recording.threads) == 3


async def test_short_texts_do_not_wait(inputs: InputProcessor) -> None:
    with trio.testing.assert_no_checkpoints():
        await inputs.prepare("the cat", GREEDY)


@pytest.mark.parametrize(
    ("prompt", "reason"),
    [
        ([], "at least one token"),
        ([1, 330], "token ids from 0 to 329"),
        ([-1], "token ids from 0 to 329"),
        ([True], "whole numbers"),
        ([1.0], "whole numbers"),
        ("a\ud800", "is not Unicode"),
        ("x" * 100_001, "at most 100000 characters"),
        (ChatPrompt([{"role": "user", "content": "x" * 100_009}]), "at most 100000 characters"),
        (ChatPrompt([{"role": "user", "content": "\udfff"}]), "is not Unicode"),
    ],
    ids=lambda value: str(value)[:25].encode("ascii", "replace").decode(),
)
async def test_wrong_prompts_are_refused(inputs: InputProcessor, prompt: Any, reason: str) -> None:
    with pytest.raises(InvalidParameter, match=reason) as caught:
        await inputs.prepare(prompt, GREEDY)
    assert caught.value.parameter == "prompt"


def test_what_is_no_prompt_is_refused_before_it_is_charged(inputs: InputProcessor) -> None:
    messages: Any = ["hello"]
    wrong: list[Any] = [None, 5, ChatPrompt(messages)]
    for prompt in wrong:
        with pytest.raises(InvalidParameter):
            inputs.estimate_tokens(prompt)


async def test_the_answer_needs_one_token(inputs: InputProcessor) -> None:
    assert len((await inputs.prepare([1] * 999, GREEDY)).prompt_token_ids) == 999
    with pytest.raises(PromptTooLong) as caught:
        await inputs.prepare([1] * 1000, GREEDY)
    assert caught.value.prompt_tokens == 1000
    with pytest.raises(PromptTooLong):
        await inputs.prepare([1] * 10, GREEDY, max_model_len=10)
    with pytest.raises(PromptTooLong):
        await inputs.prepare([1] * 1000, GREEDY, max_model_len=2000)


async def test_a_text_that_cannot_fit_is_refused_before_it_is_tokenised(
    inputs: InputProcessor, recording: RecordingTokenizer
) -> None:
    """No token has over nine characters, and the model has room for 1000 tokens."""
    text = "the cat " * 1125
    with pytest.raises(PromptTooLong, match="resulted in at least 1000 tokens") as caught:
        await inputs.prepare(text, GREEDY)
    assert recording.threads == []
    assert caught.value.at_least
    with pytest.raises(PromptTooLong, match="at least"):
        await inputs.prepare(ChatPrompt([{"role": "user", "content": text}]), GREEDY)
    cut = attrs.evolve(GREEDY, truncate_prompt_tokens=5)
    whole = await inputs.tokenize(text, add_special_tokens=True)
    assert (await inputs.prepare(text, cut)).prompt_token_ids == whole[-5:]


async def test_tokenising_ends_when_a_text_is_known_not_to_fit(
    inputs: InputProcessor, recording: RecordingTokenizer
) -> None:
    with pytest.raises(PromptTooLong, match="at least") as caught:
        await inputs.prepare("q z " * 1100, GREEDY)
    assert 1000 <= caught.value.prompt_tokens < 1100
    assert 0 < len(recording.threads) < 4 * 1100 / 20


async def test_ids_are_counted_before_they_are_looked_at(inputs: InputProcessor) -> None:
    wrong: Any = [1.5] * 1000
    with pytest.raises(PromptTooLong):
        await inputs.prepare(wrong, GREEDY)


async def test_one_principals_texts_do_not_hold_up_anothers(
    inputs: InputProcessor, recording: RecordingTokenizer
) -> None:
    order: list[str] = []

    async def prepare(principal: str, text: str) -> None:
        await inputs.prepare(text, GREEDY, principal=principal)
        order.append(principal)

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(prepare, "flood", "the cat sat on the mat " * 20)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(prepare, "other", "the cat sat on the mat " * 3)
    assert order[0] == "other"


async def test_too_many_texts_of_one_principal_are_refused(
    inputs: InputProcessor, recording: RecordingTokenizer
) -> None:
    limits = attrs.evolve(inputs.limits, waiting_max=1)
    bounded = attrs.evolve(inputs, limits=limits)
    refused = 0

    async def prepare() -> None:
        nonlocal refused
        try:
            await bounded.prepare("the cat sat on the mat " * 5, GREEDY, principal="flood")
        except Overloaded:
            refused += 1

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(prepare)
    assert refused == 2
    await bounded.prepare("the cat sat on the mat " * 5, GREEDY, principal="flood")


async def test_stop_tokens_are_of_the_vocabulary(inputs: InputProcessor) -> None:
    with pytest.raises(InvalidParameter) as caught:
        await inputs.prepare([1], SamplingParams(stop_token_ids=[330]))
    assert caught.value.parameter == "stop_token_ids"


async def test_without_a_template_conversations_are_refused(inputs: InputProcessor) -> None:
    inputs.chat_template = None
    with pytest.raises(ChatTemplateMissing):
        await inputs.prepare(HELLO, GREEDY)


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [("", 1), ("x" * 8, 3), ([1, 2, 3], 3), ([], 1), (HELLO, 2), (ChatPrompt([{"role": "x"}]), 1)],
)
def test_estimates(inputs: InputProcessor, prompt: Prompt, tokens: int) -> None:
    assert inputs.estimate_tokens(prompt) == tokens


async def test_loading_reads_the_models_limits(tmp_path: pathlib.Path) -> None:
    write_folder(tmp_path, byte_level_tokenizer())
    config = {"vocab_size": 400, "max_position_embeddings": 64, "eos_token_id": 1}
    (tmp_path / "config.json").write_text(json.dumps(config))
    for asked, expected in ((0, 64), (32, 32), (64, 64)):
        engine = EngineSettings(model=str(tmp_path), max_model_len=asked)
        inputs = InputProcessor.load(RuntimeSettings(engine=engine))
        assert (inputs.max_model_len, inputs.vocab_size) == (expected, 400)
        assert inputs.chat_template is None


async def test_texts_of_any_length_are_tokenised_and_put_back(inputs: InputProcessor) -> None:
    text = "the cat sat. " * 1000
    token_ids = await inputs.tokenize(text, add_special_tokens=False)
    assert len(token_ids) > inputs.max_model_len
    assert await inputs.detokenize(token_ids) == text
    assert await inputs.detokenize([]) == ""
    assert "".join(inputs.tokenizer.token_strings(token_ids))[:3] == "the"
    assert inputs.tokenizer.token_strings([2**31 - 1]) == [""]
    rendered = await inputs.tokenize(HELLO, add_special_tokens=False)
    assert await inputs.detokenize(rendered) == await inputs.render(HELLO)
    for wrong in (-1, inputs.vocab_size):
        with pytest.raises(InvalidParameter):
            await inputs.detokenize([wrong])


def load_folder(folder: pathlib.Path, **settings: Any) -> InputProcessor:
    write_folder(folder, byte_level_tokenizer())  # its end token has the id 1
    config = {"vocab_size": 400, "max_position_embeddings": 64, "eos_token_id": [7, 9]}
    (folder / "config.json").write_text(json.dumps(config))
    engine = EngineSettings(model=str(folder))
    return InputProcessor.load(RuntimeSettings(engine=engine, **settings))


def test_ends_are_the_models_and_the_tokenizers(tmp_path: pathlib.Path) -> None:
    assert load_folder(tmp_path).eos_token_ids == (7, 9, 1)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 1]}')
    assert load_folder(tmp_path).eos_token_ids == (2, 1)


async def test_what_a_client_leaves_out_is_as_the_models_makers_advise(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    advice = {"temperature": 0.6, "top_k": 20, "typical_p": 0.2}
    (tmp_path / "generation_config.json").write_text(json.dumps(advice))
    inputs = load_folder(tmp_path)
    assert "not served and therefore not done: typical_p 0.2" in caplog.text
    prepared = await inputs.prepare([5], SamplingParams(top_k=3))
    assert (prepared.params.temperature, prepared.params.top_k) == (0.6, 3)
    assert prepared.params.top_p is None
    without = await load_folder(tmp_path, generation_config="none").prepare([5], SamplingParams())
    assert attrs.evolve(without.params, max_tokens=None) == SamplingParams()


VOCABULARY = {
    "fox": [5],
    " fox": [6],
    "a": [1],
    " a": [2, 1],
    "xy": [7, 8, 8],
    " xy": [9, 8],
    "": [],
}


def encode(text: str) -> list[int]:
    return VOCABULARY.get(text, [3])


def test_both_spellings_are_forbidden() -> None:
    assert spell_bad_words(["fox"], encode) == [[5], [6]]
    assert spell_bad_words([" fox", "xy"], encode) == [[5], [6], [7, 8, 8], [9, 8]]


def test_a_space_of_its_own_is_not_forbidden_again() -> None:
    assert spell_bad_words(["a"], encode) == [[1]]
    assert spell_bad_words([], encode) == []


def test_a_word_of_white_space_is_itself() -> None:
    assert spell_bad_words(["  "], lambda text: [4] if text == "  " else [4, 4]) == [[4]]


def test_with_a_real_tokenizer(tokenizer: Tokenizer) -> None:
    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False)

    for token_ids in spell_bad_words(["the", "cat"], encode):
        assert tokenizer.decode(token_ids).strip() in ("the", "cat")
