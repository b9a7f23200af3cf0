"""Hidden states and logits of a block are those of a plain forward over the same text."""

from __future__ import annotations

import pytest
import torch

from gistgate.core.decoder import Decoder
from gistgate.core.features import tap
from gistgate.drafters.model import ModelDrafter
from gistgate.rules import make_rule
from tests.architectures import SIZES, pair, prompts
from tests.core.watching import Watch

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
                torch.testing.assert_close(state, expected[0, len(text) - 1 :], atol=2e-4, rtol=2e-4)
            torch.testing.assert_close(
                block.logits[row, : num + 1], plain.logits[0, len(text) - 1 :], atol=1e-3, rtol=0
            )
            assert all(block.hidden[name].shape[1] == block.logits.shape[1] for name in LAYERS)


def test_only_what_was_asked_for_is_carried():
    watch = Watch(["pre"])
    Decoder(*pair_parts(), 4, observer=watch).generate(prompts(5), max_new_tokens=6)
    assert all(set(block.hidden) == {"pre"} for block, _, _ in watch.seen)


def test_taps_are_taken_off_again_even_after_an_error():
    target = pair("llama")[0]

    def hooks() -> int:
        return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in target.modules())

    def fail_inside() -> None:
        with tap(target, ["post", "layer:0"]):
            raise RuntimeError(f"{hooks() - before} hooks")

    before = hooks()
    with pytest.raises(RuntimeError, match="2 hooks"):
        fail_inside()
    assert hooks() == before


def pair_parts() -> tuple[object, ...]:
    target, draft = pair("llama")
    return target, ModelDrafter(draft), make_rule("exact")
