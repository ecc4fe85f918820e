"""HTTP routes to the model's tokenizer, in vLLM's shapes: lm-eval and load generators ask them.

Nothing here reaches an engine. Must not know how texts become tokens.
"""

from ...engine.errors import EngineError
from ..application import Application
from ..errors import to_api_error
from ..http.connection import HttpConnection
from ..openai.tokenizer_request import read_detokenize_request, read_tokenize_request

Parameters = dict[str, str]


async def tokenize(
    connection: HttpConnection, application: Application, _: str, __: Parameters
) -> None:
    """`POST /tokenize`: the token ids of a text or of a conversation."""
    generator = application.generator
    body = await connection.read_json()
    request = read_tokenize_request(
        body, model=generator.model_name, has_tools=application.has_tools
    )
    try:
        tokens = await generator.tokenize(
            request.prompt, add_special_tokens=request.add_special_tokens
        )
    except EngineError as error:
        raise to_api_error(error) from error
    answer = {
        "count": len(tokens),
        "max_model_len": generator.max_model_len,
        "tokens": tokens,
        "token_strs": generator.token_strings(tokens) if request.return_token_strs else None,
    }
    await connection.answer_json(200, answer)


async def detokenize(
    connection: HttpConnection, application: Application, _: str, __: Parameters
) -> None:
    """`POST /detokenize`: the text of token ids, special tokens included."""
    generator = application.generator
    body = await connection.read_json()
    tokens = read_detokenize_request(body, model=generator.model_name)
    try:
        text = await generator.detokenize(tokens)
    except EngineError as error:
        raise to_api_error(error, {"prompt": "tokens"}) from error
    await connection.answer_json(200, {"prompt": text})


async def get_tokenizer_info(
    connection: HttpConnection, application: Application, _: str, __: Parameters
) -> None:
    """`GET /tokenizer_info`: special tokens, the chat template, sizes."""
    await connection.answer_json(200, application.generator.tokenizer_info())
