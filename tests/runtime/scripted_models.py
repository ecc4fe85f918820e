"""Model folders whose greedy answers are given, for tests below the real engine and its grammars.

Each piece of an answer is a token of its own, and the weights are chains of them: real kernels
compute real logits, whose maximum is the script. Logits of a piece are high where two things come
together: the last token is the piece before it, which the residual stream has from its embedding,
and the head of its chain, the token that ends the prompt, is in what attention reads from the KV
memory. If attention reads anything else, the model says `LOST` and ends. With a gap of nearly 40
between the highest logit and the next, sampling at a temperature of 1 says the same.

    channels     of an embedding                          read by
    CODE         random signs, which tell tokens apart    the successor's row of the head
    MARK         of heads of chains: which chain          values, into HEARD
    HEARD        nothing                                  the row of every piece of the chain
    LAST         of the last pieces of chains             the row of the end token
    FIRST        of heads of chains                       keys
    CONSTANT     of all                                   queries, and the row of LOST
"""

import itertools
import json
import pathlib
from collections.abc import Mapping, Sequence

import attrs
import numpy
import tokenizers
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import decoders, models, pre_tokenizers

from triolet.engine.model.bundled import bundled_model_folder
from triolet.runtime.text.chat_template import ChatTemplate

HIDDEN, HEADS, HEAD_SIZE, LENGTH_MAX = 256, 2, 64, 4096
CODE, CHAINS_MAX = 128, 62
MARK, HEARD, LAST, FIRST, CONSTANT = CODE, CODE + CHAINS_MAX, 252, 254, 255
BOS, EOS = "<s>", "</s>"
LOST = "[attention has read another context]"
# As strong as 64 signs.
MARK_SIGN = 8.0
# Of a query and of a key: heads of chains weigh e**50 times as much as all other tokens.
ATTENTION = 16.0
# Of what is heard; with the code, a piece has 128 + 146, LOST 238, and all others have less.
HEARD_WEIGHT, LOST_WEIGHT, LAST_WEIGHT = 16.0, 238.0, 64.0
# Waves so long that the head of a chain is read alike at any distance.
ROPE_THETA = 1e8
# Fewest characters of a piece.
PIECE_MIN = 3

Weights = dict[str, NDArray[numpy.float16]]


@attrs.frozen(kw_only=True)
class ScriptedSize:
    """What a scripted model costs: ids behind the vocabulary are computed at each token."""

    vocab_size: int = 0
    length: int = LENGTH_MAX


def scripted_model(
    folder: pathlib.Path,
    template: str,
    script: Sequence[str],
    *,
    specials: Sequence[str] = (),
) -> pathlib.Path:
    """Write a folder with this chat template; what ends its prompts must end no piece.

    `specials` are texts that are special tokens, as marks are in many vocabularies. The pieces of
    the script are all different.
    """
    assert len(set(script)) == len(script)
    tokenizer = _of_bytes()
    _add(tokenizer, [*dict.fromkeys([*specials, *script])], set(specials))
    _write_text(folder, tokenizer, template)
    names = json.loads((folder / "tokenizer_config.json").read_text())
    prompt = ChatTemplate.load(folder, names).render([{"role": "user", "content": "hi"}])
    last = tokenizer.encode(prompt, add_special_tokens=False).ids[-1]
    ids = tokenizer.get_vocab()
    _write_model(folder, tokenizer, [[last, *(ids[piece] for piece in script)]], ScriptedSize())
    return folder


def scripted_turns(
    folder: pathlib.Path, template: str, turns: Mapping[str, str], size: ScriptedSize
) -> pathlib.Path:
    """Write a folder whose answer depends on the mark that the chat template ends a prompt with.

    Its vocabulary is the bundled model's, since prompts of agents are long, and more.
    """
    tokenizer = tokenizers.Tokenizer.from_file(str(bundled_model_folder() / "tokenizer.json"))
    known = set(tokenizer.get_vocab())
    scripts = {mark: cut(text, known) for mark, text in turns.items()}
    _add(tokenizer, [BOS, EOS, *scripts, *itertools.chain(*scripts.values())], {BOS, EOS, *scripts})
    _write_text(folder, tokenizer, template)
    ids = tokenizer.get_vocab()
    chains = [[ids[mark], *(ids[piece] for piece in pieces)] for mark, pieces in scripts.items()]
    _write_model(folder, tokenizer, chains, size)
    return folder


def cut(text: str, known: set[str]) -> list[str]:
    """The text in pieces that are not known yet; they are from now on."""
    pieces: list[str] = []
    while text:
        size = PIECE_MIN
        while text[:size] in known and size < len(text):
            size += 1
        piece, text = text[:size], text[size:]
        while piece in known:  # the end, which some other text has as well
            known.remove(pieces[-1])
            piece = pieces.pop() + piece
        known.add(piece)
        pieces.append(piece)
    return pieces


def _of_bytes() -> tokenizers.Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: place for place, character in enumerate(alphabet)}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([BOS, EOS])
    return tokenizer


def _add(tokenizer: tokenizers.Tokenizer, pieces: Sequence[str], specials: set[str]) -> None:
    for piece in [*pieces, LOST]:
        if piece in specials:
            tokenizer.add_special_tokens([piece])
        else:
            tokenizer.add_tokens([tokenizers.AddedToken(piece, normalized=False)])


def _write_text(folder: pathlib.Path, tokenizer: tokenizers.Tokenizer, template: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(template)
    names = {"bos_token": BOS, "eos_token": EOS}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))


def _write_model(
    folder: pathlib.Path,
    tokenizer: tokenizers.Tokenizer,
    chains: Sequence[Sequence[int]],
    size: ScriptedSize,
) -> None:
    tokens = list(itertools.chain(*chains))
    assert len(set(tokens)) == len(tokens), "a token has one successor"
    ids = tokenizer.get_vocab()
    vocab_size = max(size.vocab_size, tokenizer.get_vocab_size())
    weights = {
        **_ends(vocab_size, chains, lost=ids[LOST], eos=ids[EOS]),
        **_layer("model.layers.0."),
    }
    save_file(weights, folder / "model.safetensors")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "float16",
        "vocab_size": vocab_size,
        "hidden_size": HIDDEN,
        "intermediate_size": HEAD_SIZE,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": 1,
        "head_dim": HEAD_SIZE,
        "max_position_embeddings": size.length,
        "rms_norm_eps": 1e-5,
        "rope_theta": ROPE_THETA,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": ids[BOS],
        "eos_token_id": ids[EOS],
    }
    (folder / "config.json").write_text(json.dumps(config))


def _ends(vocab_size: int, chains: Sequence[Sequence[int]], *, lost: int, eos: int) -> Weights:
    """Embeddings and head; ids that only fill the vocabulary have nothing in either."""
    assert len(chains) <= CHAINS_MAX
    known = max(lost, eos, *itertools.chain(*chains)) + 1
    embeddings = numpy.zeros((vocab_size, HIDDEN), numpy.float16)
    embeddings[:known, :CODE] = numpy.random.default_rng(1).choice([-1.0, 1.0], (known, CODE))
    embeddings[:known, CONSTANT] = 1.0
    embeddings[[lost, *(chain[-1] for chain in chains)], LAST] = MARK_SIGN
    head = numpy.zeros_like(embeddings)
    head[lost, CONSTANT] = LOST_WEIGHT
    head[eos, LAST] = LAST_WEIGHT
    for number, chain in enumerate(chains):
        embeddings[chain[0], MARK + number] = MARK_SIGN
        embeddings[chain[0], FIRST] = 1.0
        for before, token in itertools.pairwise(chain):
            head[token] = embeddings[before]
            head[token, CODE:] = 0.0
            head[token, HEARD + number] = HEARD_WEIGHT
    return {
        "model.embed_tokens.weight": embeddings,
        "model.norm.weight": numpy.ones(HIDDEN, numpy.float16),
        "lm_head.weight": head,
    }


def _layer(prefix: str) -> Weights:
    """One head that looks for the head of a chain, and says into HEARD which it is."""
    query, key, value, output = (
        numpy.zeros(shape, numpy.float16)
        for shape in (
            (HEADS * HEAD_SIZE, HIDDEN),
            (HEAD_SIZE, HIDDEN),
            (HEAD_SIZE, HIDDEN),
            (HIDDEN, HEADS * HEAD_SIZE),
        )
    )
    slowest = HEAD_SIZE // 2 - 1
    query[slowest, CONSTANT] = key[slowest, FIRST] = ATTENTION
    for number in range(CHAINS_MAX):
        value[number, MARK + number] = output[HEARD + number, number] = 1.0
    weights = {
        "self_attn.q_proj": query,
        "self_attn.k_proj": key,
        "self_attn.v_proj": value,
        "self_attn.o_proj": output,
        "mlp.gate_proj": numpy.zeros((HEAD_SIZE, HIDDEN), numpy.float16),
        "mlp.up_proj": numpy.zeros((HEAD_SIZE, HIDDEN), numpy.float16),
        "mlp.down_proj": numpy.zeros((HIDDEN, HEAD_SIZE), numpy.float16),
        "input_layernorm": numpy.ones(HIDDEN, numpy.float16),
        "post_attention_layernorm": numpy.ones(HIDDEN, numpy.float16),
    }
    return {f"{prefix}{name}.weight": tensor for name, tensor in weights.items()}
