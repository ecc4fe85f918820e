"""HTTP routes without an engine: models, health, metrics, docs, tokenizer.

`/live` says that this process makes progress, `/ready` that new work is taken (false first in a
drain), `/health` the same with the state of each engine, and the frontends that are given up.
Sentences, which may hold paths and the first lines of exceptions, are for those with a key.
"""

import importlib.resources

import attrs
import msgspec
import trio

from ... import __version__
from ...engine.errors import EngineError
from ...runtime.frontend.generation import Generator
from ...runtime.frontend.health import Health
from ...runtime.messages import EngineHealth
from ..application import Application, Call
from ..errors import bad_field, to_api_error
from ..http.answers import NO_SNIFFING
from ..metrics import CONTENT_TYPE
from ..openai.fields.responses_fields import model_not_found
from ..openai.tokenizer_request import read_detokenize_request, read_tokenize_request
from ..schema.fields import JsonObject

# A file that shows the OpenAPI document, which it asks for like any client, and tries calls.
PAGE_TYPE = "text/html; charset=utf-8"
PAGE = importlib.resources.files(__package__).joinpath("docs.html").read_bytes()
# Nothing from elsewhere is loaded, framed or sent to, whatever a model may have written.
PAGE_HEADERS = (
    (
        "content-security-policy",
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline';"
        " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    NO_SNIFFING,
    ("cache-control", "no-store"),
)

# Spelled out for one text: some 10 MiB of an answer, whose JSON takes 20 ms to write.
SPELLED_TOKENS_MAX = 2**18
# Looking up so many takes some 5 ms.
TOKENS_AT_ONCE = 16_384


def model_object(application: Application, name: str) -> JsonObject:
    """The model by one of its names, as OpenAI lists it; `max_model_len` is vLLM's addition."""
    return {
        "id": name,
        "object": "model",
        "created": application.generator.model_created_at,
        "owned_by": "triolet",
        "max_model_len": application.generator.max_model_len,
    }


async def list_models(call: Call) -> None:
    """`GET /v1/models`: the one model that is served, by each of its names."""
    application = call.application
    models = [model_object(application, name) for name in application.model_names]
    await call.connection.answer_json(200, {"object": "list", "data": models})


async def get_model(call: Call) -> None:
    """`GET /v1/models/{id}`: the model by this name, which may contain slashes.

    Raises `ApiError` 404.
    """
    name, served = call.resource_id, call.application.model_names
    if name not in served:
        raise model_not_found(name, served, "id")
    await call.connection.answer_json(200, model_object(call.application, name))


async def get_live(call: Call) -> None:
    """`GET /live`: 200 while this process makes progress, in a drain too."""
    is_live = call.application.generator.health().live
    await call.connection.answer_json(200 if is_live else 503, {"live": is_live})


async def get_ready(call: Call) -> None:
    """`GET /ready`: 200 while new work is taken; the reasons otherwise, with a key."""
    reasons = _reasons(call.application, call.application.generator.health())
    body: JsonObject = {"ready": not reasons}
    if call.is_known():
        body["reasons"] = reasons
    await call.connection.answer_json(503 if reasons else 200, body)


async def get_health(call: Call) -> None:
    """`GET /health`: the answer of `/ready`, with every engine; without a key, states alone."""
    health = call.application.generator.health()
    reasons = _reasons(call.application, health)
    failed = sorted(call.application.failed_frontends.items())
    body: JsonObject = {"live": health.live, "ready": not reasons}
    if call.is_known():
        body |= {
            "reasons": reasons,
            "degraded": call.application.degraded,
            "engines": [_shown(engine) for engine in health.engines],
            "refused": health.refused,
            "refused_by_frontends": [
                {"content": content.hex(), "for_s": round(left_s, 1)}
                for content, left_s in call.application.hands.refusals().items()
            ],
            "failed_frontends": [
                {"rank": rank, "reason": f"frontend {rank} is failed: {why}"}
                for rank, why in failed
            ],
        }
    else:
        body["engines"] = [_state_of(engine) for engine in health.engines]
        body["failed_frontends"] = [{"rank": rank} for rank, _ in failed]
    await call.connection.answer_json(503 if reasons or not health.live else 200, body)


def _shown(engine: EngineHealth) -> JsonObject:
    """An engine as who has a key may know it; with its host if that is another machine."""
    body: JsonObject = attrs.asdict(engine)
    return body if engine.host else {name: body[name] for name in body if name != "host"}


def _state_of(engine: EngineHealth) -> JsonObject:
    """An engine as strangers may know it: its numbers, none of its sentences and names."""
    no_sentences = attrs.filters.exclude("reason", "last_death", "host")
    return attrs.asdict(engine, filter=no_sentences)


def _reasons(application: Application, health: Health) -> list[str]:
    """Why no work is taken; empty when it is."""
    if application.is_draining:
        return ["the server is draining"]
    if health.ready:
        return []
    return health.reasons or ["no engine is ready"]


async def get_load(call: Call) -> None:
    """`GET /load`: requests in flight in all frontends, as vLLM reports them."""
    load = call.application.totals.look().runtime.requests_active
    await call.connection.answer_json(200, {"server_load": load})


async def get_version(call: Call) -> None:
    """`GET /version`: the version of this server."""
    await call.connection.answer_json(200, {"version": __version__})


async def get_metrics(call: Call) -> None:
    """`GET /metrics`: metrics in Prometheus's text format."""
    await call.connection.answer(200, call.application.metrics.render(), content_type=CONTENT_TYPE)


async def get_docs(call: Call) -> None:
    """`GET /docs`: a page that shows the document and tries calls; it loads nothing from elsewhere.

    It is open, since it knows nothing: what it shows it asks for with the reader's key.
    """
    await call.connection.answer(200, PAGE, content_type=PAGE_TYPE, headers=PAGE_HEADERS)


async def tokenize(call: Call) -> None:
    """`POST /tokenize`: the token ids of a text or of a conversation."""
    generator = call.application.generator
    body = await call.read_body()
    request = read_tokenize_request(
        body, model=generator.model_name, answer_format=call.application.answer_format
    )
    try:
        tokens = await generator.tokenize(
            request.prompt,
            add_special_tokens=request.add_special_tokens,
            principal=call.principal,
        )
    except EngineError as error:
        raise to_api_error(error) from error
    strings = None
    if request.return_token_strs:
        strings = await _token_strings(generator, tokens)
    answer = {
        "count": len(tokens),
        "max_model_len": generator.max_model_len,
        "tokens": await _tokens_as_json(tokens),
        "token_strs": strings,
    }
    await call.connection.answer_json(200, answer)


async def _tokens_as_json(tokens: list[int]) -> msgspec.Raw:
    """Spell these and take them off the list, some at a time.

    The millions of a large body would hold the loop for 20 ns each, and half as long to be freed.
    """
    parts = list[bytes]()
    while tokens:
        parts.append(msgspec.json.encode(tokens[-TOKENS_AT_ONCE:])[1:-1])
        del tokens[-TOKENS_AT_ONCE:]
        await trio.lowlevel.checkpoint()
    return msgspec.Raw(b"".join((b"[", b",".join(reversed(parts)), b"]")))


async def _token_strings(generator: Generator, tokens: list[int]) -> list[str]:
    """How the vocabulary spells each token. Raises `ApiError` for more than are spelled out."""
    if len(tokens) > SPELLED_TOKENS_MAX:
        reason = f"must be false for more than {SPELLED_TOKENS_MAX} tokens"
        raise bad_field("return_token_strs", reason)
    strings: list[str] = []
    for start in range(0, len(tokens), TOKENS_AT_ONCE):
        strings += generator.token_strings(tokens[start : start + TOKENS_AT_ONCE])
        await trio.lowlevel.checkpoint()
    return strings


async def detokenize(call: Call) -> None:
    """`POST /detokenize`: the text of token ids, special tokens included."""
    generator = call.application.generator
    body = await call.read_body()
    tokens = read_detokenize_request(body, model=generator.model_name)
    try:
        text = await generator.detokenize(tokens, principal=call.principal)
    except EngineError as error:
        raise to_api_error(error, {"prompt": "tokens"}) from error
    await call.connection.answer_json(200, {"prompt": text})


async def get_tokenizer_info(call: Call) -> None:
    """`GET /tokenizer_info`: special tokens, the chat template, sizes."""
    await call.connection.answer_json(200, call.application.generator.tokenizer_info())
