"""The command line: `triolet serve | run | tree`; imports what a command needs when it runs.

Words to settings, errors to sentences, and nothing else. Must not know how anything is done.
"""

from typing import Annotated, Any

import trio
from cyclopts import App, Parameter

from . import __version__

app = App(
    name="triolet",
    version=__version__,
    help="Serve a large language model; its token streams come back.",
)

Model = Annotated[
    str | None, Parameter(help="Model folder in Hugging Face format; without it the bundled one.")
]
Engines = Annotated[int, Parameter(help="Engine processes; each has the whole model.")]
Workers = Annotated[int, Parameter(help="Worker processes of each engine.")]
Executor = Annotated[str, Parameter(help="What computes: torch, or null (tokens from nothing).")]
LoadFormat = Annotated[str, Parameter(help="auto, or dummy for random weights from config.json.")]
Device = Annotated[str, Parameter(help="Where torch computes: cpu or cuda.")]
MaxModelLen = Annotated[int, Parameter(help="Longest prompt plus answer, in tokens; 0: model's.")]
KvBlocks = Annotated[int, Parameter(help="KV cache in blocks of 16 tokens; 0: as fits.")]
Threads = Annotated[int, Parameter(help="Threads of each worker; 0: all cores but one.")]


@app.command
def serve(
    model: Model = None,
    *,
    host: Annotated[str, Parameter(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, Parameter(help="Port to listen on; 0 lets the system choose.")] = 8000,
    api_key: Annotated[
        tuple[str, ...],
        Parameter(
            help="Key that clients must send; may be given often.", env_var="TRIOLET_API_KEY"
        ),
    ] = (),
    allowed_host: Annotated[
        tuple[str, ...], Parameter(help="Host header to accept besides loopback names.")
    ] = (),
    allowed_origin: Annotated[
        tuple[str, ...], Parameter(help="Browser origin to accept besides our own.")
    ] = (),
    engines: Engines = 1,
    frontends: Annotated[int, Parameter(help="Frontend processes.")] = 1,
    workers: Workers = 1,
    executor: Executor = "torch",
    load_format: LoadFormat = "auto",
    device: Device = "cpu",
    max_model_len: MaxModelLen = 0,
    kv_blocks: KvBlocks = 0,
    threads: Threads = 0,
    model_name: Annotated[str, Parameter(help="What clients call the model.")] = "",
    grace: Annotated[float, Parameter(help="Seconds to serve out after the first Ctrl-C.")] = 10.0,
) -> None:
    """Serve a model over HTTP and WebSocket (OpenAI's Responses and chat completions)."""
    from .api.commands.exits import errors_as_sentences
    from .api.commands.plan import make_plan
    from .api.commands.report import make_report
    from .api.commands.serve import serve as run_server

    engine = {
        "workers": workers,
        "executor": executor,
        "load_format": load_format,
        "device": device,
        "max_model_len": max_model_len,
        "kv_blocks": kv_blocks,
        "threads": threads,
    }
    with errors_as_sentences():
        plan = make_plan(
            model,
            engine=engine,
            engines=engines,
            frontends=frontends,
            model_name=model_name,
            host=host,
            port=port,
            api_keys=api_key,
            allowed_hosts=allowed_host,
            allowed_origins=allowed_origin,
            grace_s=grace,
        )
        with make_report() as report:
            code = trio.run(run_server, plan, report)
    raise SystemExit(code)


@app.command
def run(
    model: Model = None,
    *,
    system: Annotated[str, Parameter(help="System message of the conversation.")] = "",
    temperature: Annotated[float, Parameter(help="0 is greedy.")] = 0.7,
    max_tokens: Annotated[int, Parameter(help="Longest answer, in tokens.")] = 256,
    seed: Annotated[int | None, Parameter(help="Same seed, same answers.")] = None,
    executor: Executor = "torch",
    load_format: LoadFormat = "auto",
    device: Device = "cpu",
    threads: Threads = 0,
) -> None:
    """Chat with a model in the terminal."""
    from .api.commands.chat import chat
    from .api.commands.exits import errors_as_sentences
    from .api.commands.report import make_report

    options: dict[str, Any] = {
        "executor": executor,
        "load_format": load_format,
        "device": device,
        "threads": threads,
    }
    with errors_as_sentences():
        from .engine.sampling_params import SamplingParams

        params = SamplingParams(temperature=temperature, max_tokens=max_tokens, seed=seed)
        trio.run(chat, model, system, params, options, make_report)


@app.command
def tree(
    run: Annotated[str | None, Parameter(help="Run id, or its beginning.")] = None,
    *,
    json: Annotated[bool, Parameter(help="JSON instead of lines.")] = False,
) -> None:
    """Show the live task tree of a running server, all processes merged."""
    from .api.commands.exits import errors_as_sentences
    from .api.commands.tree import tree_text

    async def ask() -> str:
        return await tree_text(run, as_json=json)

    with errors_as_sentences():
        print(trio.run(ask))


def main() -> None:
    """Entry point of the `triolet` program."""
    app()


if __name__ == "__main__":
    main()
