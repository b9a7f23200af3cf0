"""The reader: its cache holds what the stock one holds, and its states and logits are those of a
plain forward.
"""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Cache, DynamicCache, MistralConfig, Qwen2Config

from gistgate.core.architecture import context_of, has_window, num_ids
from gistgate.core.cache import GrowingLayer, RowCache
from gistgate.core.decoder import Decoder
from gistgate.core.features import tap
from gistgate.core.reader import WASTE, Reader, last_logits, left_padded
from gistgate.core.request import check_prompts
from gistgate.core.utils import UserError
from gistgate.drafters.model import ModelDrafter
from gistgate.drafters.text import PromptLookup
from gistgate.rules import make_rule
from gistgate.trees.tree import attention_kinds
from tests.architectures import BY_SLOT, CONTEXT, SIZES, greedy, pair, prompts
from tests.core.watching import Watch, head_inputs, in_one_piece


def states(num: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, 3, num, 4, generator=generator), torch.randn(
        2, 3, num, 4, generator=generator
    )


def check_next(reader: Reader, model: Any, texts: list[list[int]]) -> None:
    """What the reader predicts behind every text is what a forward over that text alone
    predicts.
    """
    z = reader.read(*left_padded(reader.unread(texts), model.device), keep=1)[:, -1]
    for row, text in enumerate(texts):
        torch.testing.assert_close(
            z[row], model(torch.tensor([text])).logits[0, -1], atol=1e-3, rtol=0
        )


def test_growing_and_forgetting_equals_the_stock_cache(monkeypatch: pytest.MonkeyPatch):
    """Room runs out in the middle, exactly at the end, and right after forgetting."""
    monkeypatch.setattr(GrowingLayer, "spare", 3)
    ours = Cache(layer_class_to_replicate=GrowingLayer)
    stock = DynamicCache()
    for step, (new, forget) in enumerate(
        [(2, 0), (3, 1), (1, 1), (5, 4), (6, 0), (1, 11), (9, 0), (4, 13), (3, 0)]
    ):
        for layer in range(2):
            keys, values = states(new, 10 * step + layer)
            got = ours.update(keys, values, layer)
            want = stock.update(keys, values, layer)
            assert torch.equal(got[0], want[0]) and torch.equal(got[1], want[1])
            if forget:
                ours.layers[layer].crop(-forget)
                stock.layers[layer].crop(-forget)
        assert ours.get_seq_length() == stock.get_seq_length()
    assert ours.get_seq_length() == 4


@torch.inference_mode()
@pytest.mark.parametrize("kind", SIZES)
def test_a_reader_with_holes_predicts_like_one_without(kind: str):
    """Two rows keep different parts of what was read; what follows must not notice the rest."""
    model = pair(kind)[0]
    first, second = prompts(9, 14, seed=3)
    reader = Reader(model, 2)
    reader.read(*left_padded([first[:5], second[:8]], model.device), keep=1)
    reader.read(torch.tensor([first[5:8], second[8:11]]), None, keep=1)
    reader.keep(3, [1, 2])
    assert reader.known == [6, 10]
    check_next(reader, model, [first, second])
    assert reader.known == [9, 14]


@torch.inference_mode()
@pytest.mark.parametrize("kind", SIZES)
def test_rows_come_in_beside_others_and_leave_their_room_behind(kind: str):
    """One row leaves with the longest text, two come in, one of them remembered; all go on as if
    they were alone.
    """
    model = pair(kind)[0]
    long, short, new, remembered = prompts(60, 11, 20, 9, seed=3)
    reader = Reader(model, 2)
    memory = Reader(model, 1)
    reader.read(*left_padded([long[:50], short[:5]], model.device), keep=1)
    reader.read(torch.tensor([long[50:54], short[5:9]]), None, keep=1)
    reader.keep(4, [4, 2])
    reader.select([1])
    assert (reader.known, reader.slots) == ([7], 7)
    memory.read(torch.tensor([remembered[:6]]), None, keep=1)
    reader.admit([new, remembered], [RowCache([]), memory.snapshot([0])[0].first(5)])
    assert (reader.known, reader.slots) == ([7, 19, 8], 19)
    check_next(reader, model, [short, new, remembered])


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (MistralConfig(sliding_window=4096, max_position_embeddings=32768), True),
        (MistralConfig(sliding_window=131072, max_position_embeddings=131072), True),
        (
            MistralConfig(sliding_window=262144, max_position_embeddings=131072),
            False,
        ),  # twice the context
        (MistralConfig(sliding_window=None, max_position_embeddings=4096), False),
        (Qwen2Config(sliding_window=8, use_sliding_window=False), False),
    ],
)
def test_a_window_that_no_text_can_fill_is_none(config: Any, expected: bool) -> None:
    model: Any = SimpleNamespace(config=config)
    assert has_window(model) is expected
    assert WASTE < 2, "holes would make a cache twice as long as its text"


@pytest.mark.parametrize("kind", BY_SLOT)
@pytest.mark.parametrize("rows", [1, 4])
def test_rows_write_their_own_greedy_text_where_distances_are_slots(kind: str, rows: int) -> None:
    target, draft = pair(kind)
    batch = prompts(5, 17, 2, 10)
    decoder = Decoder(target, ModelDrafter(draft), make_rule("exact"), 4)
    parts = [batch[start : start + rows] for start in range(0, 4, rows)]
    answers = [answer for part in parts for answer in decoder.generate(part, max_new_tokens=40)]
    assert [answer.ids for answer in answers] == [
        greedy(kind, tuple(answer), 40) for answer in batch
    ]
    lengths = [length for answer in answers for length in answer.statistics.histogram]
    assert max(lengths) > 0 and len(set(lengths)) > 1  # unequal lengths leave holes


@pytest.mark.parametrize("kind", BY_SLOT)
@pytest.mark.parametrize("drafter", ["model", "lookup"])
def test_a_draft_needs_room_behind_the_answer(kind: str, drafter: str) -> None:
    """Their tables of distances end with the context, and a draft may run over the end of its
    answer.
    """
    target, draft = pair(kind)
    decoder = Decoder(
        target, ModelDrafter(draft) if drafter == "model" else PromptLookup(), make_rule("exact"), 8
    )
    batch = prompts(CONTEXT - 28, 3)
    answers = decoder.generate(batch, max_new_tokens=20)
    assert [answer.ids for answer in answers] == [
        greedy(kind, tuple(answer), 20) for answer in batch
    ]
    with pytest.raises(UserError, match="exceed the context"):
        decoder.generate(batch, max_new_tokens=21)


@pytest.mark.parametrize("kind", BY_SLOT)
def test_their_context_is_known_and_trees_are_refused(kind: str) -> None:
    target = pair(kind)[0]
    assert context_of(target.config.get_text_config()) == CONTEXT
    with pytest.raises(UserError, match="exceed the context"):
        check_prompts([target], [CONTEXT - 10], 11)
    with pytest.raises(UserError, match="distances in slots"):
        attention_kinds(target)


def test_a_tokenizer_may_have_gaps() -> None:
    """Special tokens above reserved ids: the count of entries is not the largest id."""
    assert num_ids(SimpleNamespace(get_vocab=lambda: {"a": 0, "b": 1, "<end>": 9})) == 10


@torch.no_grad()
@pytest.mark.parametrize("rows, keep", [(3, 4), (3, 1), (1, 4), (1, 1)])
@pytest.mark.parametrize("kind", SIZES)
def test_the_output_layer_reads_rows_in_one_piece(kind: str, rows: int, keep: int):
    """A slice of the states has gaps between the rows of a batch, and such an input has the weight
    copied.
    """
    model = pair(kind)[0]
    with head_inputs(model) as seen:
        Reader(model, rows).read(torch.tensor(prompts(*[9] * rows)), None, keep=keep)
    assert [tuple(states.shape) for states in seen] == [(rows, keep, 32)]
    assert in_one_piece(seen[0])


@torch.no_grad()
@pytest.mark.parametrize("kind", SIZES)
def test_last_logits_are_those_of_a_plain_forward_and_no_hook_stays(kind: str):
    model = pair(kind)[0]
    ids = torch.tensor(prompts(9, 9))
    before = len(model.get_output_embeddings()._forward_pre_hooks)
    assert torch.allclose(
        last_logits(model, 4, input_ids=ids), model(ids).logits[:, -4:], atol=1e-5
    )
    assert len(model.get_output_embeddings()._forward_pre_hooks) == before


LAYERS = ["post", "pre", "layer:0", "layer:1"]
NORMS = {"gpt2": "transformer.ln_f"}


@pytest.mark.parametrize("lengths", [(5,), (5, 17, 2)])
@pytest.mark.parametrize("kind", SIZES)
def test_rows_equal_a_plain_forward(kind: str, lengths: tuple[int, ...]):
    target, draft = pair(kind)
    watch = Watch(LAYERS)
    Decoder(target, ModelDrafter(draft), make_rule("prob", r=0.01), 4, observer=watch).generate(
        prompts(*lengths), max_new_tokens=12
    )
    norm = target.get_submodule(NORMS.get(kind, "model.norm"))
    assert len(watch.seen) >= 3
    for block, _, texts in watch.seen:
        for row, text in enumerate(texts):
            num = int(block.valid[row].sum())
            whole = torch.tensor([text + block.draft_ids[row, :num].tolist()])
            with torch.no_grad():
                plain = target(whole, output_hidden_states=True)
            for name, expected in {
                "post": plain.hidden_states[-1],
                "layer:0": plain.hidden_states[1],
                "pre": plain.hidden_states[-1],
                "layer:1": plain.hidden_states[-1],
            }.items():
                state = block.hidden[name][row, : num + 1]
                if name in ("pre", "layer:1"):
                    with torch.no_grad():
                        state = norm(state)
                torch.testing.assert_close(
                    state, expected[0, len(text) - 1 :], atol=2e-4, rtol=2e-4
                )
            torch.testing.assert_close(
                block.logits[row, : num + 1], plain.logits[0, len(text) - 1 :], atol=1e-3, rtol=0
            )
            assert all(block.hidden[name].shape[1] == block.logits.shape[1] for name in LAYERS)


def test_taps_are_taken_off_again_even_after_an_error():
    target = pair("llama")[0]

    def hooks() -> int:
        return sum(
            len(module._forward_hooks) + len(module._forward_pre_hooks)
            for module in target.modules()
        )

    def fail_inside() -> None:
        with tap(target, ["post", "layer:0"]):
            raise RuntimeError(f"{hooks() - before} hooks")

    before = hooks()
    with pytest.raises(RuntimeError, match="2 hooks"):
        fail_inside()
    assert hooks() == before
