"""Options of vLLM and llama.cpp on our command line: taken, or answered in a sentence.

Who comes from another server brings its command line along. An option that means the same here is
taken, one that changes nothing here is left out, both with a warning; any other is refused with
what to do instead, as a guess by the spelling (`--dtype`: did you mean `--demo`?) helps nobody.
`docs/from-vllm.md` has the table for reading.
"""

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import attrs
from cyclopts import CycloptsError


@attrs.frozen
class PeerOption:
    """Treatment of one option: `words` of ours in its place, a `note`, or a refusal.

    `takes_value` is of the peer's command line; `{}` in `words` is that value. `only` are the
    values that mean what this entry says; others are refused with `otherwise`.
    """

    note: str = ""
    words: tuple[str, ...] = ()
    takes_value: bool = True
    refused: bool = False
    only: tuple[str, ...] = ()
    otherwise: str = ""


def _same(ours: str, *, peer: str = "") -> PeerOption:
    return PeerOption(note=f"is --{ours} here{peer}", words=(f"--{ours}", "{}"))


def _flag(note: str, *words: str) -> PeerOption:
    return PeerOption(note=note, words=words, takes_value=False)


def _left_out(note: str, *only: str, otherwise: str = "") -> PeerOption:
    return PeerOption(note=note, only=only, otherwise=otherwise)


def _refused(reason: str) -> PeerOption:
    return PeerOption(reason, refused=True)


# The next option of a command line; `-1` is a value.
_OPTION = re.compile(r"--?[a-zA-Z]")
_NO_QUANTISED = "is not available: quantised weights are not served"
_NO_LORA = "is not available: adapters are not served"
_NO_DRAFT = "is not available: there is no speculative decoding"
_NO_RANKS = "is not available: each engine computes on one device; --engines N serves N of them"
_TEXT_ALONE = "is not available: text is generated, nothing else"
_NO_TLS = "is for a proxy in front, as in deploy/nginx.conf"
_ALWAYS = "is always on"
_OWN_TYPE = "is not needed: weights are computed in the type that they are stored in"
_TEMPLATE_SHOWS = "is not needed: the chat template shows the format"
_NOT_COMPILED = "is not needed: nothing is compiled at the start"
_KV_TYPE = "is not available: keys and values are bfloat16"
_ONE_DEVICE = "is not available: the whole model is on one device"
_PER_REQUEST = "is of each request here"
_GENERATION_CONFIG = (
    "is of each request here; defaults are in generation_config.json of the model's folder"
)
_TOKEN = "is HF_TOKEN in the environment"
_LOADING_FLAGS = ("--mmap", "--no-mmap", "--mlock", "--no-repack", "--no-host")
_NEEDLESS_FLAGS = (
    "--no-context-shift", "--warmup", "--no-warmup", "--no-slots", "--no-mmproj", "-kvu",
    "--kv-unified", "--swa-full", "--no-perf",
)  # fmt: skip
_ROPE = (
    "--rope-scaling", "--rope-scale", "--rope-freq-base", "--rope-freq-scale", "--yarn-orig-ctx",
    "--override-kv",
)  # fmt: skip


def _each(option: PeerOption, *names: str) -> dict[str, PeerOption]:
    return dict.fromkeys(names, option)


_VLLM = {
    **_each(_same("engines"), "--data-parallel-size", "-dp"),
    **_each(_same("frontends"), "--api-server-count", "-asc"),
    "--num-gpu-blocks-override": _same("kv-blocks", peer=", in blocks of 16 tokens"),
    "--kv-cache-memory-bytes": _same("kv-memory-bytes-max"),
    "--uvicorn-log-level": _same("log-level"),
    "--otlp-traces-endpoint": _same("otlp-endpoint"),
    "--no-enable-prefix-caching": _flag("is --no-prefix-cache here", "--no-prefix-cache"),
    "--no-async-scheduling": _flag("is --steps-in-flight 1 here", "--steps-in-flight", "1"),
    "--disable-log-stats": _flag("is --throughput-log 0 here", "--throughput-log", "0"),
    **_each(
        _flag("is --no-access-log here", "--no-access-log"),
        "--disable-log-requests", "--no-enable-log-requests", "--disable-uvicorn-access-log",
    ),
    **_each(_flag("is on by default"), "--enable-prefix-caching", "--async-scheduling"),
    **_each(
        _flag(_ALWAYS),
        "--enable-chunked-prefill", "--enable-prompt-tokens-details",
        "--enable-request-id-headers", "--enable-server-load-tracking",
    ),
    "--enable-auto-tool-choice": _flag(_TEMPLATE_SHOWS),
    "--tool-call-parser": _left_out(_TEMPLATE_SHOWS),
    "--enable-reasoning": _flag(_TEMPLATE_SHOWS),
    "--chat-template-content-format": _left_out(
        _TEMPLATE_SHOWS, "auto", otherwise="is not available: the chat template shows it"
    ),
    "--logprobs-mode": _left_out(
        "is not needed",
        "raw_logprobs",
        otherwise="is not available: logprobs are those of the model, before penalties",
    ),
    "--trust-remote-code": _flag("is not needed: no code of a model's folder is ever run"),
    "--enforce-eager": _flag(_NOT_COMPILED),
    **_each(
        _left_out(_NOT_COMPILED),
        "--compilation-config", "-O", "--cuda-graph-sizes", "--max-seq-len-to-capture",
    ),
    **_each(
        _flag("is not needed: each engine computes on one device"),
        "--disable-custom-all-reduce", "--disable-frontend-multiprocessing",
    ),
    "--guided-decoding-backend": _left_out("is not needed: there is one, llguidance"),
    "--dtype": _left_out(_OWN_TYPE, "auto", "bfloat16", "float32", otherwise=_OWN_TYPE),
    "--kv-cache-dtype": _left_out("is not needed", "auto", "bfloat16", otherwise=_KV_TYPE),
    "--block-size": _left_out("is not needed", "16", otherwise="is not available: it is 16"),
    "--gpu-memory-utilization": _left_out(
        "is not needed: --kv-memory-bytes-max bounds the KV cache, on a GPU as well"
    ),
    "--swap-space": _left_out("is not needed: nothing is swapped"),
    "--cpu-offload-gb": _left_out("is not needed", "0", otherwise=_ONE_DEVICE),
    "--tokenizer-mode": _left_out("is not needed", "auto", otherwise="is not available"),
    "--max-log-len": _left_out("is not needed: prompts are never logged"),
    "--limit-mm-per-prompt": _left_out("is not needed: a prompt is text alone"),
    "--response-role": _left_out("is not needed", "assistant", otherwise="is not available"),
    **_each(
        _left_out("is not needed", "auto", "generate", otherwise=_TEXT_ALONE), "--task", "--runner"
    ),
    "--seed": _left_out(f"{_PER_REQUEST}: its `seed`"),
    **_each(
        _left_out("is not needed", "1", otherwise=_NO_RANKS),
        "--tensor-parallel-size", "-tp", "--pipeline-parallel-size", "-pp",
    ),
    "--distributed-executor-backend": _left_out("is not needed", "mp", "uni", otherwise=_NO_RANKS),
    "--enable-expert-parallel": _refused(_NO_RANKS),
    **_each(
        _refused("is not available: all engines are on this machine"),
        "--headless", "--data-parallel-address", "--nnodes", "--node-rank",
    ),
    **_each(_refused(_NO_QUANTISED), "--quantization", "-q"),
    **_each(
        _refused(_NO_LORA), "--enable-lora", "--lora-modules", "--max-loras", "--max-lora-rank"
    ),
    **_each(
        _refused(_NO_DRAFT),
        "--speculative-config", "-sc", "--speculative-model", "--num-speculative-tokens",
    ),
    "--tokenizer": _refused("is not available: the tokenizer is in the model's folder"),
    **_each(
        _refused("is not available: --revision is of all that a model's folder has"),
        "--tokenizer-revision", "--code-revision",
    ),
    "--hf-overrides": _refused("is not available: change config.json in the model's folder"),
    "--override-generation-config": _refused(_GENERATION_CONFIG),
    "--download-dir": _refused("is HF_HUB_CACHE in the environment"),
    "--hf-token": _refused(_TOKEN),
    "--enable-force-include-usage": _refused(f"{_PER_REQUEST}: its `stream_options`"),
    "--allowed-origins": _refused("is --allowed-origin ORIGIN here, once for each"),
    "--kv-events-config": _refused("is --kv-events-endpoint tcp://127.0.0.1:5557 here"),
    "--kv-transfer-config": _refused("is not available: KV blocks are not transferred"),
    **_each(
        _refused("is not available: a server runs no code of others"),
        "--middleware", "--logits-processors", "--tool-parser-plugin",
    ),
    **_each(_refused(_NO_TLS), "--root-path", "--ssl-keyfile", "--ssl-certfile"),
    "--uds": _refused("is not available: the server listens on TCP alone"),
}  # fmt: skip

_LLAMA_CPP = {
    "-m": _same("model", peer=", a folder in Hugging Face format"),
    **_each(_same("model", peer=", ORG/NAME of the hub"), "-hf", "-hfr", "--hf-repo"),
    **_each(_same("max-model-len"), "-c", "--ctx-size"),
    **_each(_same("max-num-seqs"), "-np", "--parallel"),
    "-t": _same("threads"),
    **_each(_same("served-model-name"), "-a", "--alias"),
    "--chat-template-file": _same("chat-template"),
    "--sse-ping-interval": _same("sse-keep-alive"),
    "--no-cache-prompt": _flag("is --no-prefix-cache here", "--no-prefix-cache"),
    **_each(_flag("is --log-level debug here", "--log-level", "debug"), "-v", "--verbose"),
    **_each(_flag(_ALWAYS), "-cb", "--cont-batching", "--cache-prompt", "--metrics"),
    "--jinja": _flag("is not needed: the model's template is always used"),
    **_each(_flag("is not needed: weights are packed into shared memory"), *_LOADING_FLAGS),
    **_each(_flag("is not needed"), *_NEEDLESS_FLAGS),
    "--slots": _flag("is GET /load here, and triolet tree"),
    **_each(_flag("is not needed: the page may do what its key may"), "--no-webui", "--no-ui"),
    **_each(_left_out("is not needed"), "-fa", "--flash-attn", "-fit", "--fit", "--cache-reuse"),
    **_each(_left_out("is not needed: --threads is of prompts as well"), "-tb", "--threads-batch"),
    "--threads-http": _left_out("is not needed: --frontends is the number of processes"),
    **_each(
        _left_out("is not needed: --device says where the whole model is computed"),
        "-ngl", "--gpu-layers", "--n-gpu-layers", "-sm", "--split-mode", "-mg", "--main-gpu",
    ),
    **_each(
        _left_out("is not needed: --max-num-batched-tokens bounds a step"),
        "-b", "--batch-size", "-ub", "--ubatch-size",
    ),
    **_each(
        _left_out("is not needed: --kv-memory-bytes-max bounds the KV cache"),
        "-cram", "--cache-ram",
    ),
    **_each(
        _left_out("is not needed", "auto", "deepseek", otherwise="is --reasoning-parser here"),
        "--reasoning-format",
    ),
    **_each(
        _left_out("is not needed", "bf16", otherwise=_KV_TYPE),
        "-ctk", "--cache-type-k", "-ctv", "--cache-type-v",
    ),
    **_each(_left_out(f"{_PER_REQUEST}: its `seed`"), "-s"),
    **_each(
        _left_out(_PER_REQUEST, "-1", otherwise=f"{_PER_REQUEST}: its `max_tokens`"),
        "-n", "--predict", "--n-predict",
    ),
    **_each(
        _refused(_GENERATION_CONFIG),
        "--temp", "--temperature", "--top-k", "--top-p", "--min-p", "--repeat-penalty",
        "--presence-penalty", "--frequency-penalty",
    ),
    **_each(_refused(f"{_PER_REQUEST}: its `response_format`"), "-j", "--json-schema", "--grammar"),
    "--chat-template-kwargs": _refused(f"{_PER_REQUEST}: its `chat_template_kwargs`"),
    **_each(_refused("is --device cpu or --device cuda here"), "-dev"),
    **_each(_refused(_ONE_DEVICE), "-ts", "--tensor-split", "-ot", "-cmoe", "--cpu-moe", "-ncmoe"),
    **_each(_refused("is in config.json of the model's folder"), *_ROPE),
    "--context-shift": _refused("is not available: an answer ends where the context does"),
    **_each(
        _refused("is --limits.http.write-s here, and its neighbours: triolet serve --help-all"),
        "-to", "--timeout",
    ),
    "--log-file": _refused("is not available: the log is on stderr"),
    **_each(_refused("is not available: the whole repository is used"), "-hff", "--hf-file"),
    "-hft": _refused(_TOKEN),
    "--offline": _refused("is HF_HUB_OFFLINE=1 in the environment"),
    **_each(
        _refused("is not available: give a folder, or ORG/NAME of the hub"), "-mu", "--model-url"
    ),
    **_each(
        _refused("is not available: a server has one model"),
        "--models-dir", "--models-preset", "--models-max",
    ),
    **_each(_refused(_NO_TLS), "--api-prefix", "--ssl-key-file", "--ssl-cert-file"),
    **_each(_refused(_NO_DRAFT), "-md", "--model-draft", "--draft-max", "--spec-type"),
    **_each(_refused(_NO_LORA), "--lora", "--lora-scaled"),
    **_each(_refused("is not available: images are not served"), "-mm", "--mmproj"),
    **_each(
        _refused(_TEXT_ALONE), "--embedding", "--embeddings", "--pooling", "--rerank", "--reranking"
    ),
}  # fmt: skip

_REASONING_PARSERS = (
    "deepseek_r1", "deepseek_v3", "ernie45", "glm45", "granite", "holo2", "hunyuan_a13b", "kimi_k2",
    "minimax_m2", "olmo3", "openai_gptoss", "qwen3", "seed_oss", "step3",
)  # fmt: skip
# Values of options that have one name here and there.
VALUES: Mapping[str, tuple[str, ...]] = MappingProxyType({"--reasoning-parser": _REASONING_PARSERS})

OPTIONS: Mapping[str, PeerOption] = MappingProxyType(_VLLM | _LLAMA_CPP)


def our_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The command line in our options, and a sentence for each of a peer's that was read.

    Raises `CycloptsError` for one that there is no place for here.
    """
    ours: list[str] = []
    notes: list[str] = []
    rest = list(reversed(words))
    while rest:
        word = rest.pop()
        name, equals, value = word.partition("=")
        option = OPTIONS.get(name)
        if option is None and (value or "".join(rest[-1:])) in VALUES.get(name, ()):
            option = _left_out(_TEMPLATE_SHOWS)
        if option is None:
            ours.append(word)
            continue
        if option.refused:
            raise CycloptsError(msg=f"{name} {option.note}")
        if option.takes_value and not equals and rest and not _OPTION.match(rest[-1]):
            value = rest.pop()  # where it is missing, the parser misses it for an option of ours
        if option.only and value not in option.only:
            raise CycloptsError(msg=f"{name} {value} {option.otherwise or option.note}")
        ours += [part.format(value) for part in option.words]
        notes.append(f"{name} {option.note}")
    return ours, notes
