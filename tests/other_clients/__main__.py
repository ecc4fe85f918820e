"""Runs the clients of others against `triolet serve`, each once: `make clients`.

Each in its newest release, in environments of their own, since they bring hundreds of packages and
versions of the SDK that ours must not be bound to; so `make test` does not run them. The model is
the bundled one, said to be longer than it was trained for: prompts of agents have 10 000 tokens.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from types import MappingProxyType

import attrs
import trio

from triolet.engine.model.bundled import bundled_model_folder

from ..end_to_end.server import CLIENTS, DEADLINE_S, module_server, open_server
from .agent_kills import Agent, AgentRun, claude_record, codex_record
from .agent_tasks import write_scripted_agent

ROOT, HERE = pathlib.Path(__file__).parents[2], pathlib.Path(__file__).parent
NAME = "triolet-bundled"
MODEL_LEN = 65_536
LANES, TOKENS = "4", "32"
QUESTION = "What is the capital of Japan?"
SDK_PROGRAMS = {
    "agents_socket": "openai_agents",
    "anthropic_messages": "anthropic",
    "langchain_both": "langchain_openai",
    "pydantic_ai_run": "pydantic_ai_slim",
    "whole_frames": "",
}
# A name that Codex knows, and for which it has other tools.
KNOWN_NAME = "gpt-5.5"
CODEX_CONFIG = """
model = "%s"
model_provider = "triolet"
[model_providers.triolet]
name = "Triolet"
base_url = "%s/v1"
wire_api = "responses"
supports_websockets = %s
"""
LLM_MODEL = f"- {{model_id: triolet, model_name: {NAME}, api_base: %s/v1, api_key: none}}\n"
LM_TASK = """
task: capitals
dataset_path: json
dataset_kwargs: {data_files: {test: %s}}
test_split: test
output_type: multiple_choice
doc_to_text: "What is the capital of {{country}}? The capital of {{country}} is"
doc_to_choice: cities
doc_to_target: 0
metric_list: [{metric: acc}]
"""


@attrs.frozen
class Client:
    """One program; `package` is whose release counts, `said` what its output must match."""

    name: str
    package: str
    command: list[str]
    said: str = ""
    environ: Mapping[str, str] = MappingProxyType({})
    timeout_s: float = 4 * DEADLINE_S


def long_model(folder: pathlib.Path) -> pathlib.Path:
    """The bundled model in a folder, with another length."""
    shutil.copytree(bundled_model_folder(), folder, ignore=shutil.ignore_patterns("*.py"))
    config = json.loads((folder / "config.json").read_text())
    config["max_position_embeddings"] = MODEL_LEN
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def clients(environments: pathlib.Path, work: pathlib.Path, url: str) -> Iterator[Client]:
    """All of them; `work` is a folder for their files."""
    own_home = {"HOME": str(work), "HF_HOME": str(work), "HF_HUB_OFFLINE": "1"}
    python = str(environments / "sdks" / "bin" / "python")
    for program, package in SDK_PROGRAMS.items():
        yield Client(program, package, [python, str(HERE / f"{program}.py"), url])
    example = [python, str(ROOT / "examples" / "langchain_chat.py")]
    yield Client("example of LangChain", "langchain_openai", example, "Tokyo", {"TRIOLET_URL": url})
    python = str(environments / "litellm" / "bin" / "python")
    yield Client("litellm", "litellm", [python, str(HERE / "litellm_chat.py"), url])
    (work / "extra-openai-models.yaml").write_text(LLM_MODEL % url)
    llm = [str(environments / "sdks" / "bin" / "llm"), "-m", "triolet", "-o", "temperature", "0"]
    yield Client("llm", "llm", [*llm, QUESTION], "Tokyo", {"LLM_USER_PATH": str(work)})
    yield _schemathesis(environments, url)
    yield _guidellm(environments, work, url, own_home)
    yield _lm_eval(environments, work, url, own_home)
    aider = [str(environments / "aider" / "bin" / "aider"), "--model", f"openai/{NAME}"]
    quiet = ["--no-git", "--yes-always", "--no-check-update", "--analytics-disable", "--no-pretty"]
    api = {"OPENAI_API_BASE": f"{url}/v1", "OPENAI_API_KEY": "none", **own_home}
    yield Client(
        "aider", "aider_chat", [*aider, *quiet, "--message", QUESTION], r"\d received", api
    )
    for transport in ("http", "socket"):
        codex, own = _codex(environments, work / f"codex-{transport}", url)
        yield Client(f"codex {transport}", "@openai/codex", [*codex, QUESTION], "tokens used", own)
    yield _claude_code(environments, work, url, own_home)
    # A module's imports are looked for beside it.
    module = shutil.copy(HERE / "vercel.mjs", environments / "node")
    yield Client("vercel", "ai", ["node", str(module), url])
    lanes = ["node", str(CLIENTS / "lanes.cjs"), url, LANES, TOKENS]
    modules = {"NODE_PATH": str(ROOT / ".cache" / "npm" / "node_modules")}
    yield Client("npm openai, lanes", "openai", lanes, environ=modules)


def agents(environments: pathlib.Path, work: pathlib.Path, url: str) -> Iterator[Agent]:
    """Those that do a task under kills."""
    for name, task, model in (
        ("codex task http", "exec", NAME),
        ("codex task socket", "exec", NAME),
        ("codex task patch", "patch", KNOWN_NAME),
    ):
        home = work / name.replace(" ", "-")
        command, environ = _codex(environments, home, url, model)
        command += ["--sandbox", "workspace-write"]
        yield Agent(
            name=name,
            package="@openai/codex",
            task=task,
            command=command,
            environ=environ,
            record=codex_record(home),
            # On a socket it computes the prompt first.
            more_requests=int(name.endswith("socket")),
        )

    home = work / "claude-home"
    home.mkdir()
    claude = str(environments / "node" / "node_modules" / ".bin" / "claude")
    form = ["--output-format", "stream-json", "--verbose"]
    yield Agent(
        name="claude code task",
        package="@anthropic-ai/claude-code",
        task="bash",
        command=[claude, "--print", *form, "--allowedTools", "Bash,Read,Edit", "--"],
        environ={"HOME": str(home), "ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "none"},
        record=claude_record,
    )


def _codex(
    environments: pathlib.Path, home: pathlib.Path, url: str, model: str = NAME
) -> tuple[list[str], dict[str, str]]:
    """Command, but for the question, and environment; a home whose name says so has sockets."""
    home.mkdir()
    has_sockets = "true" if home.name.endswith("socket") else "false"
    (home / "config.toml").write_text(CODEX_CONFIG % (model, url, has_sockets))
    codex = str(environments / "node" / "node_modules" / ".bin" / "codex")
    return [codex, "exec", "--skip-git-repo-check"], {"CODEX_HOME": str(home)}


def _claude_code(
    environments: pathlib.Path, work: pathlib.Path, url: str, environ: dict[str, str]
) -> Client:
    """With its own settings, but for address and key: it asks for a model of Anthropic's."""
    claude = str(environments / "node" / "node_modules" / ".bin" / "claude")
    api = {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "none", **environ}
    command = [claude, "--print", QUESTION]
    return Client("claude code", "@anthropic-ai/claude-code", command, r"\w", api)


def _schemathesis(environments: pathlib.Path, url: str) -> Client:
    """All that the OpenAPI document allows and forbids, as far as a run of minutes reaches."""
    options = {
        "seed": "1",
        "max-examples": "20",
        "generation-database": "none",
        "request-timeout": "60",
        "warnings": "off",
        "exclude-checks": "positive_data_acceptance",  # `document_checks` has it
    }
    program = str(environments / "schemathesis" / "bin" / "schemathesis")
    command = [program, "--config-file", str(HERE / "schemathesis.toml"), "run"]
    command += [f"{url}/openapi.json", "--no-color", "--continue-on-failure"]
    for name, value in options.items():
        command += [f"--{name}", value]
    hooks = {"PYTHONPATH": str(HERE), "SCHEMATHESIS_HOOKS": "document_checks"}
    return Client("schemathesis", "schemathesis", command, "No issues found", hooks, 1200.0)


def _guidellm(
    environments: pathlib.Path, work: pathlib.Path, url: str, environ: dict[str, str]
) -> Client:
    options = {
        "backend": f"kind=openai_http,target={url},model={NAME}",
        "profile": "kind=concurrent,streams=2",
        "constraint": "kind=max_requests,count=4",
        "tokenizer": f"kind=huggingface_auto,model={work / 'model'}",
        "data": "kind=synthetic_text,prompt_tokens=20,output_tokens=20",
    }
    command = [str(environments / "guidellm" / "bin" / "guidellm"), "run"]
    for name, value in options.items():
        command += [f"--{name}", value]
    return Client("guidellm", "guidellm", command, "successful=4 errored=0", environ)


def _lm_eval(
    environments: pathlib.Path, work: pathlib.Path, url: str, environ: dict[str, str]
) -> Client:
    (work / "capitals.yaml").write_text(LM_TASK % (HERE / "capitals.jsonl"))
    model = f"model={NAME},base_url={url}/v1/completions,tokenizer_backend=remote,num_concurrent=1"
    command = [str(environments / "lm-eval" / "bin" / "lm_eval"), "--model", "local-completions"]
    command += ["--model_args", model, "--tasks", "capitals", "--include_path", str(work)]
    return Client("lm-eval", "lm_eval", command, r"\|acc +\|.* 1\|", environ)


def release_of(client: Client | Agent, environments: pathlib.Path) -> str:
    """Of its package, where its program is."""
    program = pathlib.Path(client.command[0])
    installed = f"lib/python*/site-packages/{client.package}-*.dist-info"
    if client.package and program.is_relative_to(environments) and "node" not in program.parts:
        (found,) = program.parents[1].glob(installed)
        return found.name.removesuffix(".dist-info").rpartition("-")[2]
    roots = [environments / "node", ROOT / ".cache" / "npm"]
    for root in roots:
        manifest = root / "node_modules" / client.package / "package.json"
        if client.package and manifest.exists():
            return str(json.loads(manifest.read_text())["version"])
    return ""


def run(client: Client, environments: pathlib.Path, work: pathlib.Path) -> bool:
    """Whether it went well; prints what it said."""
    try:
        done = subprocess.run(
            client.command,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=client.timeout_s,
            check=False,
            cwd=work,
            env={**os.environ, **client.environ},
        )
    except subprocess.TimeoutExpired as error:
        print_row(client, environments, False, str(error)[-200:])
        return False
    said = done.stdout + done.stderr
    is_well = done.returncode == 0 and re.search(client.said, said) is not None
    shown = " ".join(done.stdout.split())[-120:] if is_well else said[-3000:]
    print_row(client, environments, is_well, shown)
    return is_well


def print_row(
    client: Client | Agent, environments: pathlib.Path, is_well: bool, shown: str
) -> None:
    """One line of the table, and more of one that failed."""
    release, verdict = release_of(client, environments), "ok" if is_well else "FAILED"
    print(f"{client.name:18} {release:10} {verdict}  {shown}", flush=True)


async def run_agents(environments: pathlib.Path, work: pathlib.Path) -> list[bool]:
    """Each in turn, on one server of their own; whether they went well."""
    model = write_scripted_agent(work / "scripted")
    served = work / "agents"
    served.mkdir()
    names = ["--served-model-name", NAME, "--served-model-name", KNOWN_NAME]
    results = []
    async with open_server(served, str(model), *names) as server:
        for agent in agents(environments, work, server.url):
            folder = work / f"{agent.name} folder"
            folder.mkdir()
            is_well, shown = await AgentRun(agent, server, folder).run()
            print_row(agent, environments, is_well, shown)
            results.append(is_well)
    return results


def main() -> None:
    """Exit 1 when one fails. `argv[1]` is the folder of the clients' environments."""
    environments = pathlib.Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        model = str(long_model(work / "model"))
        served = work / "served"
        served.mkdir()
        with module_server(served, model, "--served-model-name", NAME) as server:
            results = [
                run(each, environments, work) for each in clients(environments, work, server.url)
            ]
        results += trio.run(run_agents, environments, work)
    sys.exit(not all(results))


if __name__ == "__main__":
    main()
