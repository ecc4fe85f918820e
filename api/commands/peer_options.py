"""Options of vLLM and llama.cpp on our command line: taken, or answered in a sentence.

Who comes from another server brings its command line along. An option that means the same here is
taken, one that changes nothing here is left out, both with a warning; any other is refused with
what to do instead, as a guess by the spelling (`--dtype`: did you mean `--demo`?) helps nobody.
`docs/from-vllm.md` has the table for reading.
"""

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


_NO_QUANTISED = "is not available: quantised weights are not served"
_NO_LORA = "is not available: adapters are not served"
_NO_DRAFT = "is not available: there is no speculative decoding"
_NO_RANKS = "is not available: each engine computes on one device; --engines N serves N of them"
_TEXT_ALONE = "is not available: text is generated, nothing else"
_NO_TLS = "is for a proxy in front, as in deploy/nginx.conf"
_ALWAYS = "is always on"
_OWN_TYPE = "is not needed: weights are computed in the type that they are stored in"
_LAYERS = "is not needed: --device says where the whole model is computed"

OPTIONS: Mapping[str, PeerOption] = MappingProxyType(
    {
        # vLLM
        "--data-parallel-size": _same("engines"),
        "-dp": _same("engines"),
        "--api-server-count": _same("frontends"),
        "-asc": _same("frontends"),
        "--num-gpu-blocks-override": _same("kv-blocks", peer=", in blocks of 16 tokens"),
        "--enable-prefix-caching": _flag("is on by default"),
        "--no-enable-prefix-caching": _flag("is --no-prefix-cache here", "--no-prefix-cache"),
        "--enable-chunked-prefill": _flag(_ALWAYS),
        "--enable-auto-tool-choice": _flag("is not needed: the chat template shows the format"),
        "--tool-call-parser": _left_out("is not needed: the chat template shows the format"),
        "--trust-remote-code": _flag("is not needed: no code of a model's folder is ever run"),
        "--enforce-eager": _flag("is not needed: nothing is compiled at the start"),
        "--disable-log-requests": _flag("is --no-access-log here", "--no-access-log"),
        "--disable-uvicorn-access-log": _flag("is --no-access-log here", "--no-access-log"),
        "--disable-log-stats": _flag("is --throughput-log 0 here", "--throughput-log", "0"),
        "--uvicorn-log-level": _same("log-level"),
        "--otlp-traces-endpoint": _same("otlp-endpoint"),
        "--dtype": _left_out(_OWN_TYPE, "auto", "bfloat16", "float32", otherwise=_OWN_TYPE),
        "--kv-cache-dtype": _left_out(
            "is not needed", "auto", otherwise="is not available: keys and values are bfloat16"
        ),
        "--block-size": _left_out("is not needed", "16", otherwise="is not available: it is 16"),
        "--gpu-memory-utilization": _left_out(
            "is not needed: --kv-memory-bytes-max bounds the KV cache, on a GPU as well"
        ),
        "--swap-space": _left_out("is not needed: nothing is swapped"),
        "--tokenizer-mode": _left_out("is not needed", "auto", otherwise="is not available"),
        "--seed": _left_out("is of each request here: its `seed`"),
        "--tensor-parallel-size": _left_out("is not needed", "1", otherwise=_NO_RANKS),
        "-tp": _left_out("is not needed", "1", otherwise=_NO_RANKS),
        "--pipeline-parallel-size": _left_out("is not needed", "1", otherwise=_NO_RANKS),
        "-pp": _left_out("is not needed", "1", otherwise=_NO_RANKS),
        "--quantization": _refused(_NO_QUANTISED),
        "-q": _refused(_NO_QUANTISED),
        "--enable-lora": _refused(_NO_LORA),
        "--lora-modules": _refused(_NO_LORA),
        "--speculative-config": _refused(_NO_DRAFT),
        "--tokenizer": _refused("is not available: the tokenizer is in the model's folder"),
        "--kv-transfer-config": _refused("is not available: KV blocks are not transferred"),
        "--root-path": _refused(_NO_TLS),
        "--ssl-keyfile": _refused(_NO_TLS),
        "--ssl-certfile": _refused(_NO_TLS),
        "--uds": _refused("is not available: the server listens on TCP alone"),
        # llama.cpp
        "-m": _same("model", peer=", a folder in Hugging Face format"),
        "-hf": _same("model", peer=", ORG/NAME of the hub"),
        "--hf-repo": _same("model", peer=", ORG/NAME of the hub"),
        "-c": _same("max-model-len"),
        "--ctx-size": _same("max-model-len"),
        "-np": _same("max-num-seqs"),
        "--parallel": _same("max-num-seqs"),
        "-t": _same("threads"),
        "-a": _same("served-model-name"),
        "--alias": _same("served-model-name"),
        "--chat-template-file": _same("chat-template"),
        "--ssl-key-file": _refused(_NO_TLS),
        "--ssl-cert-file": _refused(_NO_TLS),
        "--jinja": _flag("is not needed: the model's template is always used"),
        "-cb": _flag(_ALWAYS),
        "--cont-batching": _flag(_ALWAYS),
        "--metrics": _flag(_ALWAYS),
        "--no-mmap": _flag("is not needed: weights are packed into shared memory"),
        "--mlock": _flag("is not needed: weights are packed into shared memory"),
        "-fa": _left_out("is not needed"),
        "--flash-attn": _left_out("is not needed"),
        "-ngl": _left_out(_LAYERS),
        "--n-gpu-layers": _left_out(_LAYERS),
        "-b": _left_out("is not needed: --max-num-batched-tokens bounds a step"),
        "--batch-size": _left_out("is not needed: --max-num-batched-tokens bounds a step"),
        "-ub": _left_out("is not needed: --max-num-batched-tokens bounds a step"),
        "--ubatch-size": _left_out("is not needed: --max-num-batched-tokens bounds a step"),
        "-md": _refused(_NO_DRAFT),
        "--model-draft": _refused(_NO_DRAFT),
        "--lora": _refused(_NO_LORA),
        "--mmproj": _refused("is not available: images are not served"),
        "--embedding": _refused(_TEXT_ALONE),
        "--embeddings": _refused(_TEXT_ALONE),
    }
)


def our_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The command line in our options, and a sentence for each of a peer's that was read.

    Raises `CycloptsError` for one that there is no place for here.
    """
    ours: list[str] = []
    notes: list[str] = []
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        option = OPTIONS.get(name)
        if option is None:
            ours.append(word)
            continue
        if option.refused:
            raise CycloptsError(msg=f"{name} {option.note}")
        if option.takes_value and not equals:
            value = next(rest, "")  # the parser refuses nothing where an option is ours
        if option.only and value not in option.only:
            raise CycloptsError(msg=f"{name} {value} {option.otherwise or option.note}")
        ours += [part.format(value) for part in option.words]
        notes.append(f"{name} {option.note}")
    return ours, notes
