"""Bodies of `POST /tokenize` and `POST /detokenize`, in vLLM's shapes.

Sans-IO: a JSON object in, a typed request or an `ApiError` that names the field out.
"""

import attrs

from ...runtime.text.answer_format import TEXT_ALONE, AnswerFormat
from ...runtime.text.prompts import ChatPrompt
from ..errors import bad_field
from ..schema.fields import FLAG, TEXT, JsonObject
from ..schema.tables import IS_EMPTY, NEVER, Body, Field, Unserved
from .fields.field_rules import TOKENIZE_ALTERNATIVES
from .fields.message_fields import MESSAGES, TOOLS
from .fields.responses_fields import MODEL, check_model
from .fields.sampling_fields import TokenIdsKind
from .template_arguments import TEMPLATE_ARGUMENTS, template_arguments
from .tool_use import tool_use_of

# More than any model's length; turning so many into text takes some 50 ms.
DETOKENIZE_IDS_MAX = 2**17

TOKENIZE = Body(
    {
        "model": MODEL,
        "prompt": Field(TEXT, "A text; either it or `messages`."),
        "messages": Field(MESSAGES, "A conversation, for the model's chat template."),
        "add_special_tokens": Field(
            FLAG, "Put what the model expects around the text; on for `prompt` by default."
        ),
        "add_generation_prompt": Field(FLAG, "Let the template open the answer; on by default."),
        "return_token_strs": Field(
            FLAG, "Tell how the vocabulary spells each token (262144 at most)."
        ),
        "continue_final_message": Field(Unserved(IS_EMPTY, "an answer begins a new message")),
        "tools": Field(TOOLS, "Functions that the template shows; with `messages`."),
        "chat_template": Field(Unserved(NEVER, "the server has its template (--chat-template)")),
        "chat_template_kwargs": TEMPLATE_ARGUMENTS,
    },
    alternatives=TOKENIZE_ALTERNATIVES,
)
DETOKENIZE = Body(
    {
        "model": MODEL,
        "tokens": Field(TokenIdsKind(items_max=DETOKENIZE_IDS_MAX), "Token ids.", required=True),
    }
)


@attrs.frozen(kw_only=True)
class TokenizeRequest:
    """Tokenize request, validated."""

    prompt: str | ChatPrompt
    add_special_tokens: bool
    return_token_strs: bool = False


def read_tokenize_request(
    body: JsonObject, *, model: str, answer_format: AnswerFormat = TEXT_ALONE
) -> TokenizeRequest:
    """Validate one body; `model` is the served one, which answers in this format.

    Raises `ApiError`.
    """
    values = TOKENIZE.read(body)
    check_model(values.get("model"), model)
    if ("prompt" in values) == ("messages" in values):
        raise bad_field(
            "prompt", "send either `prompt` or `messages`", "missing_required_parameter"
        )
    prompt: str | ChatPrompt
    if "prompt" in values:
        prompt = values["prompt"]
    else:
        tools = tool_use_of(values, answer_format).for_template
        opens = values.get("add_generation_prompt", True)
        arguments = template_arguments(values, answer_format)
        prompt = ChatPrompt(values["messages"], opens, tools, arguments)
    return TokenizeRequest(
        prompt=prompt,
        # A template has put them in already.
        add_special_tokens=values.get("add_special_tokens", isinstance(prompt, str)),
        return_token_strs=values.get("return_token_strs", False),
    )


def read_detokenize_request(body: JsonObject, *, model: str) -> list[int]:
    """The token ids of one body; `model` is the served one. Raises `ApiError`."""
    values = DETOKENIZE.read(body)
    check_model(values.get("model"), model)
    tokens: list[int] = values["tokens"]
    return tokens
