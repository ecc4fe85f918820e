"""The runtime embedded: opens, serves with real processes, leaves nothing, however it ends."""

import pathlib

import pytest
import trio

from triolet.engine.config import EngineSettings
from triolet.engine.errors import BootRefused, InvalidParameter, ModelFolderError
from triolet.engine.sampling_params import SamplingParams
from triolet.runtime.config import RuntimeSettings
from triolet.runtime.errors import RuntimeClosed
from triolet.runtime.events import ChildFailed, ChildProgress, ChildReady
from triolet.runtime.runtime import Runtime, make_settings, open_frontend_hub, open_runtime
from triolet.transports.endpoint import check_endpoint
from triolet.transports.links.channel import Peer

from ..checkpoints import cancel_at_nth_checkpoint
from ..leaks import check_no_leaks
from .acting import DEADLINE_S, Diary
from .model_folders import write_folder

PARAMS = SamplingParams(max_tokens=8, seed=7)


async def tokens_of(runtime: Runtime, prompt: str) -> list[int]:
    async with runtime.generate(prompt, PARAMS) as stream:
        return (await stream.collect()).token_ids


# ---- settings


def test_words_go_to_the_engine_or_to_the_runtime() -> None:
    settings = make_settings("m", executor="null", workers=2, engines=3, model_name="name")
    assert settings.engine == EngineSettings(model="m", executor="null", workers=2)
    assert (settings.engines, settings.model_name) == (3, "name")
    assert "bundled" in make_settings().engine.model
    assert make_settings().model_name == "triolet-bundled"  # as `serve` calls it
    assert make_settings(model_name="mine").model_name == "mine"
    assert make_settings("/m").model_name == ""  # then it is the folder's
    whole = RuntimeSettings(engine=EngineSettings(model="m"))
    assert make_settings(settings=whole) is whole


def test_words_that_do_not_fit_are_refused() -> None:
    with pytest.raises(TypeError, match="no_such"):
        make_settings("m", no_such=1)
    with pytest.raises(TypeError, match=r"option max_model_length; did you mean max_model_len"):
        make_settings("m", max_model_length=1)
    with pytest.raises(TypeError, match="alone"):
        make_settings("m", settings=RuntimeSettings(engine=EngineSettings(model="m")))
    with pytest.raises(InvalidParameter, match="workers"):
        make_settings("m", workers=0)
    with pytest.raises(InvalidParameter, match="engines"):
        make_settings("m", engines=0)


# ---- opening


async def test_the_names_of_sockets_cannot_be_foreseen() -> None:
    """Bound names are listed for all users: those of one process must not give the next one's."""
    me = Peer("frontend", 0, 7)
    async with open_frontend_hub("5eed", me) as one, open_frontend_hub("5eed", me) as other:
        assert not {*one.endpoints} & {*other.endpoints}
        for name in (*one.endpoints, *other.endpoints):
            check_endpoint(name)  # it is not too long


def test_outside_of_trio_it_says_what_to_use_instead() -> None:
    async def open_it() -> None:
        async with open_runtime():
            pass

    with pytest.raises(RuntimeError, match=r"needs trio.*In asyncio or a notebook use triolet.LLM"):
        open_it().send(None)


async def test_a_runtime_shows_what_a_program_has_use_for(null_folder: pathlib.Path) -> None:
    with trio.fail_after(DEADLINE_S):
        async with open_runtime(str(null_folder), executor="null", in_process=True) as runtime:
            assert repr(runtime) == f"<Runtime of {null_folder.name}: 1 of 1 engines ready>"
            assert all(hasattr(runtime, name) for name in dir(runtime))
            assert "generate" in dir(runtime)
            assert "admission" not in dir(runtime)
            with pytest.raises(TypeError, match="generate opens a block: `async with"):
                await runtime.generate("hi")
            with pytest.raises(TypeError, match="generate opens a block: `async with"):
                async for _ in runtime.generate("hi"):
                    pass
    assert repr(runtime) == f"<Runtime of {null_folder.name}: closed>"


async def test_a_folder_that_is_not_there_is_told_before_anything_is_spawned() -> None:
    diary = Diary()
    with check_no_leaks(), pytest.raises(ModelFolderError, match="nowhere"):
        async with open_runtime("/nowhere", on_event=diary):
            raise AssertionError("unreachable")
    assert diary.told == []


@pytest.mark.slow
async def test_it_serves_tells_how_it_started_and_leaves_nothing(null_folder: pathlib.Path) -> None:
    diary = Diary()
    opened = open_runtime(str(null_folder), executor="null", on_event=diary)
    with check_no_leaks(), trio.fail_after(DEADLINE_S):
        async with opened as runtime:
            assert runtime.model_name == null_folder.name
            assert runtime.health().ready
            first = await tokens_of(runtime, "the cat")
            assert len(first) == 8
            assert await tokens_of(runtime, "the cat") == first
            (counts,) = await runtime.engine_statistics()
            assert (counts.running, counts.kv_blocks_free) == (0, counts.kv_blocks)
    assert diary.of(ChildProgress)
    assert len(diary.of(ChildReady)) == 1


async def test_a_length_above_the_models_is_refused_before_anything_is_spawned(
    null_folder: pathlib.Path,
) -> None:
    diary = Diary()
    with check_no_leaks(), pytest.raises(InvalidParameter, match="max_model_len must be at most"):
        async with open_runtime(str(null_folder), max_model_len=2**20, on_event=diary):
            raise AssertionError("unreachable")
    assert diary.told == []


@pytest.mark.slow
async def test_after_its_block_a_runtime_says_that_it_is_closed(null_folder: pathlib.Path) -> None:
    with trio.fail_after(DEADLINE_S):
        async with open_runtime(str(null_folder), executor="null") as runtime:
            pass
        with pytest.raises(RuntimeClosed):
            await tokens_of(runtime, "the cat")
        with pytest.raises(RuntimeClosed):
            await runtime.engine_statistics()
    (engine,) = runtime.health().engines
    assert engine.reason == "engine 0 is restarting after it was stopped"


@pytest.mark.slow
async def test_what_no_restart_cures_is_raised_bare_and_at_once(
    null_folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """A torch worker meets a folder without weights; the sentence is its own."""
    import tokenizers

    backend = tokenizers.Tokenizer.from_file(str(null_folder / "tokenizer.json"))
    folder = write_folder(tmp_path / "m", backend)
    config = (
        '{"architectures": ["LlamaForCausalLM"], "vocab_size": 320, "hidden_size": 32,'
        ' "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,'
        ' "max_position_embeddings": 64}'
    )
    (folder / "config.json").write_text(config)
    diary = Diary()
    with check_no_leaks(), trio.fail_after(DEADLINE_S), pytest.raises(BootRefused) as caught:
        async with open_runtime(str(folder), on_event=diary):
            raise AssertionError("unreachable")
    assert "has neither model.safetensors nor" in str(caught.value)
    assert "choose another model" in str(caught.value)
    assert diary.of(ChildFailed) == []


@pytest.mark.slow
async def test_an_error_of_the_body_comes_through(null_folder: pathlib.Path) -> None:
    with check_no_leaks(), trio.fail_after(DEADLINE_S), pytest.raises(ZeroDivisionError):
        async with open_runtime(str(null_folder), executor="null"):
            raise ZeroDivisionError


# ---- cancellation


@pytest.mark.slow
@pytest.mark.parametrize("n", [*range(1, 12, 2), 13, 17, 23, 31, 60, 90, 200])
async def test_cancelled_at_any_checkpoint_it_leaves_nothing(
    null_folder: pathlib.Path, n: int
) -> None:
    """Of entering, serving and leaving: their checkpoints are counted through, coarsely."""

    async def enter_and_leave() -> None:
        async with open_runtime(str(null_folder), executor="null") as runtime:
            await tokens_of(runtime, "the cat")

    with check_no_leaks(), trio.fail_after(DEADLINE_S):
        await cancel_at_nth_checkpoint(enter_and_leave, n)


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 2, 4, 8, 16, 32])
async def test_cancelled_while_leaving_it_leaves_nothing(null_folder: pathlib.Path, n: int) -> None:
    """Leaving is what is left to do when it is cancelled: `n` counts from there."""
    entered = trio.Event()
    leave = trio.Event()

    async def open_and_leave() -> None:
        async with open_runtime(str(null_folder), executor="null"):
            entered.set()
            await leave.wait()

    with check_no_leaks(), trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(open_and_leave)
            await entered.wait()
            leave.set()
            for _ in range(n):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel("the test cancels while it leaves")
