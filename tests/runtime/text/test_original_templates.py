"""Original chat templates: what an assistant's turn is rendered to is read back, however it is cut.

The templates come out of packages (`originals`); `test_answer_format` has the same for templates of
our own words, and everything that models write beside their template.
"""

import functools
from typing import Any

import attrs
import pytest
from hypothesis import assume, given, settings

from triolet.runtime.text.answer_format import AnswerFormat
from triolet.runtime.text.chat_template import ChatTemplate
from triolet.runtime.text.template_sandbox import RenderLimits
from triolet.runtime.text.tool_formats import tool_format_of

from .originals import MISTRAL, PACKAGES, needs_originals, original
from .turns import ASKED, CALLS, CUTS, TOOLS, WORDS, Turn, bytes_of, cut, loaded, read

pytestmark = needs_originals
CODERS = ["qwen3_5_think", "qwen3_5_nothink", "qwen3_6", "qwen3_8"]
NEMOTRONS = [f"nemotron_3_{name}" for name in ("nano", "super", "ultra", "5_lightning")]
# Templates that show tools, by the format that is known from them.
FORMATS = {
    "gpt-oss": ["gptoss"],
    "Hermes": ["qwen2_5", "qwen3", "qwen3_instruct_2507", "qwen3_vl"],
    "Llama 3": ["llama3_1", "llama3_2"],
    "Mistral": [*MISTRAL],
    "Qwen3-Coder": [*CODERS, *NEMOTRONS],
}
KNOWN = [name for names in FORMATS.values() for name in names]
# In a format that is not supported.
UNKNOWN = [
    *("diffusion_gemma", "gemma4", "gemma4_v2", "gemma4_v3", "gemma4_v4", "gemma4_v5"),
    *("glm4moe", "lfm2", "lfm2_v2", "lfm2_2_5", "lfm2_2_5_v2", "lfm2_2_5_vl", "muse_glimmer"),
]
# Turns of which have reasoning; in the prompt of `qwen3_5_nothink` it has ended.
REASONING = [
    *("gptoss", "qwen3", "qwen3_5_think", "qwen3_6", "qwen3_8", *NEMOTRONS),
    *("mistral_v11", "mistral_v13", "glm4moe", "lfm2_2_5", "lfm2_2_5_v2"),
]
WITHOUT_TEXT_BESIDE_CALLS = ("gptoss", "llama3_1", "llama3_2", "mistral_v3")
SINGLE = ("gptoss", "llama3_1", "llama3_2")
ENDS = ("<|im_end|>", "<|eot_id|>", "</s>", "<|call|>", "<|return|>")
# Untraced, which is three times as fast.
LIMITS = RenderLimits(seconds=60.0, characters=2**26, traced=False)
EXAMPLES = settings(max_examples=25)
SHOWN = [tool.for_template() for tool in TOOLS]


def rendered(name: str, messages: list[dict[str, Any]], **options: Any) -> str:
    return template_of(name).render(messages, limits=LIMITS, **options)


@functools.cache
def template_of(name: str) -> ChatTemplate:
    return loaded(original(name))


@functools.cache
def format_of(name: str) -> AnswerFormat:
    return AnswerFormat.of({"chat_template": original(name)})


def test_every_template_is_known_for_what_it_is() -> None:
    folder = PACKAGES / "trl" / "chat_templates"
    names = [path.stem for path in folder.glob("*.jinja") if "_training" not in path.stem]
    found: dict[str, list[str]] = {}
    for name in sorted([*names, *MISTRAL]):
        tools = tool_format_of(original(name))
        shows = "get_weather" in rendered(name, [ASKED], tools=SHOWN)
        assert shows or tools is None
        kind = tools.name if tools is not None else "unknown" if shows else "none"
        found.setdefault(kind, []).append(name)
        if kind == "unknown":
            assert "; supported are those of gpt-oss," in format_of(name).no_tools_reason
        if kind == "none":
            assert format_of(name).no_tools_reason.endswith("shows no tools")
    del found["none"]
    expected = {**{kind: sorted(of) for kind, of in FORMATS.items()}, "unknown": sorted(UNKNOWN)}
    assert found == expected


def written(name: str, turn: Turn, tools: list[dict[str, Any]] | None) -> tuple[str, bool]:
    """What the model is shown to have written, and whether its prompt had opened the reasoning.

    A prompt may open it where the finished turn, which has none, does not.
    """
    prompt = rendered(name, [ASKED], tools=tools)
    whole = rendered(name, [ASKED, turn.message], tools=tools, add_generation_prompt=False)
    before = prompt if whole.startswith(prompt) else prompt.rstrip("\n")
    assert whole.startswith(before)
    text = whole.removeprefix(before).rstrip("\n")
    end = next((end for end in ENDS if text.endswith(end)), "")
    return text.removesuffix(end), format_of(name).is_opened([*before.encode()], bytes_of)


@pytest.mark.parametrize("name", KNOWN)
@EXAMPLES
@given(reasoning=WORDS, text=WORDS, calls=CALLS, cuts=CUTS)
def test_a_rendered_turn_is_read_back_however_it_is_cut(
    name: str, reasoning: str, text: str, calls: list[Any], cuts: list[int]
) -> None:
    turn = Turn(reasoning if name in REASONING else "", text, tuple(calls))
    if name in SINGLE:
        turn = attrs.evolve(turn, calls=turn.calls[:1])
    if turn.calls and name in WITHOUT_TEXT_BESIDE_CALLS:
        turn = attrs.evolve(turn, text="")
    assume(turn.text or turn.calls)
    shown, is_open = written(name, turn, SHOWN)
    parser = format_of(name).parser(TOOLS, None, is_open=is_open)
    assert read(parser, cut(shown, cuts)) == turn


@pytest.mark.parametrize("name", [name for name in REASONING if name not in KNOWN])
@EXAMPLES
@given(reasoning=WORDS, text=WORDS.filter(bool), cuts=CUTS)
def test_reasoning_is_read_back_where_calls_are_not(
    name: str, reasoning: str, text: str, cuts: list[int]
) -> None:
    turn = Turn(reasoning, text)
    shown, is_open = written(name, turn, None)
    assert read(format_of(name).parser((), None, is_open=is_open), cut(shown, cuts)) == turn


def test_a_prompt_that_opens_the_reasoning_is_known_by_its_end() -> None:
    for name in ("deepseek_r1_distill", "qwen3_5_think", "nemotron_3_nano"):
        prompt = rendered(name, [ASKED])
        assert format_of(name).is_opened([*prompt.encode()], bytes_of)
    prompt = rendered("qwen3_5_nothink", [ASKED])
    assert not format_of("qwen3_5_nothink").is_opened([*prompt.encode()], bytes_of)


@pytest.mark.parametrize("name", KNOWN)
def test_results_of_calls_are_shown_whatever_the_ids_are(name: str) -> None:
    """Ids as this server gives them are not as Mistral's templates want them."""
    call = Turn(calls=(("get_weather", {"city": "Oslo"}),)).message
    for call_id in ("call_0_0_0d9f4b7c", "call00000"):
        call["tool_calls"][0]["id"] = call_id
        result = {"role": "tool", "tool_call_id": call_id, "content": "It rains."}
        text = rendered(name, [ASKED, call, result], tools=SHOWN)
        assert "It rains." in text.partition("Oslo")[2]
        assert "call_0_0" not in text
