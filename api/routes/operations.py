"""HTTP routes without an engine: models, health, metrics, docs, tokenizer, and what admins ask.

`/live` says that this process makes progress, `/ready` that new work is taken (false first in a
drain), `/health` the same with the state of each engine, and the frontends that are given up.
"""

import importlib.resources

import attrs

from ... import __version__
from ...engine.errors import EngineError
from ...runtime.frontend.health import Health
from ...runtime.messages import ControlCall, Place, Role
from ..application import Application, Call
from ..errors import ApiError, bad_field, to_api_error
from ..http.request import JSON_TYPE
from ..metrics import CONTENT_TYPE
from ..openai.tokenizer_request import read_detokenize_request, read_tokenize_request
from ..schema.fields import IntegerKind, JsonObject
from ..schema.tables import Body, Field

# One file that shows the OpenAPI document, which it asks for like any client, and tries calls.
PAGE_TYPE = "text/html; charset=utf-8"
PAGE = importlib.resources.files(__package__).joinpath("docs.html").read_bytes()
# Nothing from elsewhere is loaded, framed or sent to, whatever a model may have written.
PAGE_HEADERS = (
    (
        "content-security-policy",
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline';"
        " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("cache-control", "no-store"),
)
RESTART = Body(
    {
        "engine": Field(IntegerKind(), "Rank of the engine that is to begin anew."),
        "frontend": Field(IntegerKind(), "The same of a frontend; it serves out first."),
    }
)


def model_object(application: Application) -> JsonObject:
    """The one model, as OpenAI lists it; `max_model_len` is vLLM's addition."""
    return {
        "id": application.generator.model_name,
        "object": "model",
        "created": 0,
        "owned_by": "triolet",
        "max_model_len": application.generator.max_model_len,
    }


async def list_models(call: Call) -> None:
    """`GET /v1/models`: the one model that is served."""
    models = {"object": "list", "data": [model_object(call.application)]}
    await call.connection.answer_json(200, models)


async def get_model(call: Call) -> None:
    """`GET /v1/models/{id}`; model names may contain slashes. Raises `ApiError` 404."""
    if call.resource_id != call.application.generator.model_name:
        name = call.resource_id[:200]
        raise ApiError(404, f"The model {name!r} is not served here", "model_not_found", param="id")
    await call.connection.answer_json(200, model_object(call.application))


async def get_live(call: Call) -> None:
    """`GET /live`: 200 while this process makes progress, in a drain too."""
    is_live = call.application.generator.health().live
    await call.connection.answer_json(200 if is_live else 503, {"live": is_live})


async def get_ready(call: Call) -> None:
    """`GET /ready`: 200 while new work is taken; the reasons otherwise."""
    reasons = _reasons(call.application, call.application.generator.health())
    body = {"ready": not reasons, "reasons": reasons}
    await call.connection.answer_json(503 if reasons else 200, body)


async def get_health(call: Call) -> None:
    """`GET /health`: as `/ready`, with every engine."""
    health = call.application.generator.health()
    reasons = _reasons(call.application, health)
    body = {
        "live": health.live,
        "ready": not reasons,
        "reasons": reasons,
        "engines": [attrs.asdict(engine) for engine in health.engines],
        "refused": health.refused,
        "failed_frontends": [
            {"rank": rank, "reason": f"frontend {rank} is failed: {why}"}
            for rank, why in sorted(call.application.failed_frontends.items())
        ],
    }
    await call.connection.answer_json(503 if reasons or not health.live else 200, body)


def _reasons(application: Application, health: Health) -> list[str]:
    """Why no work is taken; empty when it is."""
    if application.is_draining:
        return ["the server is draining"]
    if health.ready:
        return []
    return health.reasons or ["no engine is ready"]


async def get_load(call: Call) -> None:
    """`GET /load`: requests in flight in all frontends, as vLLM tells them."""
    load = call.application.totals.look().runtime.requests_active
    await call.connection.answer_json(200, {"server_load": load})


async def get_version(call: Call) -> None:
    """`GET /version`: the version of this server."""
    await call.connection.answer_json(200, {"version": __version__})


async def get_metrics(call: Call) -> None:
    """`GET /metrics`, in Prometheus's text format."""
    await call.connection.answer(200, call.application.metrics.render(), content_type=CONTENT_TYPE)


async def get_docs(call: Call) -> None:
    """`GET /docs`: a page that shows the document and tries calls; it loads nothing from elsewhere.

    It is open, since it knows nothing: what it shows it asks for with the reader's key.
    """
    await call.connection.answer(200, PAGE, content_type=PAGE_TYPE, headers=PAGE_HEADERS)


async def get_tree(call: Call) -> None:
    """`GET /admin/tree`: the live task tree of all processes, as `triolet tree --json` shows it."""
    text = await call.application.root.ask(ControlCall.TREE)
    await call.connection.answer(200, text.encode(), content_type=JSON_TYPE)


async def restart(call: Call) -> None:
    """`POST /admin/restart`: an engine or a frontend begins anew; without one, all given up do.

    Raises `ApiError` 404 when there is none.
    """
    ranks = RESTART.read(await call.connection.read_json())
    if len(ranks) > 1:
        raise bad_field("frontend", "send either it or `engine`")
    place = next((Place(Role(role), rank) for role, rank in ranks.items()), None)
    text = await call.application.root.ask(ControlCall.RESTART, place)
    await call.connection.answer(202, text.encode(), content_type=JSON_TYPE)


async def tokenize(call: Call) -> None:
    """`POST /tokenize`: the token ids of a text or of a conversation."""
    generator = call.application.generator
    body = await call.connection.read_json()
    request = read_tokenize_request(
        body, model=generator.model_name, has_tools=call.application.has_tools
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
    await call.connection.answer_json(200, answer)


async def detokenize(call: Call) -> None:
    """`POST /detokenize`: the text of token ids, special tokens included."""
    generator = call.application.generator
    body = await call.connection.read_json()
    tokens = read_detokenize_request(body, model=generator.model_name)
    try:
        text = await generator.detokenize(tokens)
    except EngineError as error:
        raise to_api_error(error, {"prompt": "tokens"}) from error
    await call.connection.answer_json(200, {"prompt": text})


async def get_tokenizer_info(call: Call) -> None:
    """`GET /tokenizer_info`: special tokens, the chat template, sizes."""
    await call.connection.answer_json(200, call.application.generator.tokenizer_info())
