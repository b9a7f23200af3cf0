"""Reflective verification: what a second reading can change, and that its rows are those of a plain
forward.
"""

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch

from gistgate.core.block import Block
from gistgate.core.decoder import Decoder
from gistgate.core.rule import allowed
from gistgate.core.utils import UserError
from gistgate.drafters.model import ModelDrafter
from gistgate.drafters.text import PromptLookup
from gistgate.rules import make_rule
from gistgate.rules.reflective import Reflective, Rereader
from tests.architectures import BY_SLOT, CONTEXT, SIZES, pair, prompts
from tests.blocks import SURE, TORN, accepted, block, random_block
from tests.core.watching import Markers, Watch
from tests.tiny import byte_tokenizer

KINDS = pytest.mark.parametrize(
    "temperature, with_q", [(0.0, True), (1.0, True), (1.0, False), (0.5, True)]
)
REFLECTION = Markers().encode("", add_special_tokens=False)
BATCH, TAIL = prompts(5, 17, 2), 6
NOISE = 0.1
"""Drafts that differ often."""


def converted(judged: Block) -> Block:
    """The second reading has no doubt about what was drafted."""
    praise = 40.0 * torch.nn.functional.one_hot(judged.draft_ids, judged.logits.shape[-1])
    return replace(
        judged,
        second=judged.logits[:, :-1].masked_fill(judged.logits[:, :-1] == -torch.inf, -50) + praise,
    )


@pytest.mark.parametrize("alpha, expected", [(0.0, False), (0.1, False), (0.3, True), (1.0, True)])
def test_the_second_reading_weighs_alpha(alpha: float, expected: bool):
    """1 against 0: -2 at first, +8 on reflection; even at alpha = 0.2."""
    judged = block([2.0, 0.0, -9.0], SURE[0][:3], draft=[1], second=[[0.0, 8.0, -9.0]])
    assert Reflective(alpha=alpha).accept(judged).tolist() == [[expected]]


@pytest.mark.parametrize(
    "alpha, rows, draft, second, length, own",
    [
        (
            1.0,
            [SURE[0], SURE[0]],
            0,
            SURE[1],
            1,
            0,
        ),  # a match stays whatever the second reading says
        (1.0, [SURE[0], SURE[3]], 1, SURE[2], 0, 0),  # own tokens come from the first reading
        (Reflective().alpha, [TORN, SURE[3]], 1, SURE[1], 1, 3),
    ],
)
def test_matches_and_own_tokens(
    alpha: float, rows: Any, draft: int, second: Any, length: int, own: int
):
    outcome = accepted(Reflective(alpha=alpha), block(*rows, draft=[draft], second=[second]))
    assert outcome.length.tolist() == [length] and outcome.own_ids.tolist() == [own]


@KINDS
def test_towards_a_converted_target_alpha_is_monotone_and_at_1_keeps_what_is_allowed(
    temperature: float, with_q: bool
):
    judged = converted(random_block(batch=300, temperature=temperature, with_q=with_q))
    lengths = [accepted(Reflective(alpha=alpha), judged).length for alpha in (0.0, 0.05, 0.3, 1.0)]
    assert all((less <= more).all() for less, more in pairwise(lengths))
    assert (lengths[0] < lengths[1]).any() and (lengths[1] < lengths[3]).any()
    assert torch.equal(lengths[3], (judged.strict | allowed(judged)).long().cumprod(-1).sum(-1))


def test_sampled_the_native_test_runs_on_the_mixture():
    """p(x) = 1/4 at first and 1/2 in the middle: u = 0.4 refuses the one and passes the other."""
    z, again = [math.log(3.0), 0.0], [[0.0, math.log(3.0)]]
    judged = block(z, z, draft=[1], second=again, uniforms=[0.4, 0.5], greedy=False)
    assert not judged.strict.any()
    assert Reflective(alpha=0.5).accept(judged).tolist() == [[True]]
    assert Reflective(alpha=0.2).accept(judged).tolist() == [[False]]
    # with q(x) = 1/2 the ratio is 1/2 at once
    judged = block(z, z, draft=[1], second=again, q=[[0.5, 0.5]], uniforms=[0.6, 0.5], greedy=False)
    assert Reflective(alpha=0.2).accept(judged).tolist() == [[True]]


@pytest.mark.parametrize(
    "z, x, expected",
    [([math.log(1 - p), math.log(p)], 1, p >= 0.09) for p in (0.10, 0.08)]
    + [([0.0] * 64, 9, True)],
)
def test_typical_acceptance_of_the_mixture(z: list[float], x: int, expected: bool):
    """Peaked: eps = 0.09 decides. 64 even tokens: delta exp(-ln 64) = 0.0047 < 1/64. The drawn
    number plays no part.
    """
    judged = block(z, z, draft=[x], second=[z], uniforms=[0.999, 0.5], greedy=False)
    assert Reflective(base="typical").accept(judged).tolist() == [[expected]]


def test_it_asks_for_its_second_reading_which_a_prompt_announces():
    assert Reflective.verifier is Rereader
    assert Reflective(tail=0).context(byte_tokenizer(), ()).tail == 0  # no text need be repeated
    context = Reflective(tail=3, prompt="Again:").context(byte_tokenizer(), ())
    assert byte_tokenizer().decode(context.prompt_ids) == "Again:"  # no <s> in front of it
    assert context.tail == 3
    with pytest.raises(UserError, match=r"'reflective' puts a prompt .* Pass tokenizer="):
        Reflective().context(None, ())


def decoded(kind: str, watch: Watch | None = None, alpha: float = 0.5, **more: Any) -> list[Any]:
    target, draft = pair(kind, noise=NOISE)
    rule = make_rule("reflective", alpha=alpha, tail=TAIL)
    drafter = more.pop("drafter", None) or ModelDrafter(draft)
    decoder = Decoder(target, drafter, rule, 4, tokenizer=Markers(), observer=watch)
    return decoder.generate(BATCH, max_new_tokens=12, **more)


def read_twice(kind: str, text: list[int], draft: list[int]) -> torch.Tensor:
    """Rows [K, V] that predict the second copy of the draft, by one forward over all of it."""
    whole = [*text, *draft, *REFLECTION, *text[-TAIL:], *draft]
    with torch.no_grad():
        return pair(kind, noise=NOISE)[0](torch.tensor([whole])).logits[0, -len(draft) - 1 : -1]


@pytest.mark.parametrize("kind", [*SIZES, *BY_SLOT])
def test_rows_of_both_readings_are_those_of_plain_forwards(kind: str):
    """Also behind many second readings: nothing of them is left in the cache."""
    watch, checked = Watch(["post"]), 0
    decoded(kind, watch)
    for judged, _, texts in watch.seen:
        assert judged.second.shape == judged.logits[:, :-1].shape
        for row, text in enumerate(texts):
            num = int(judged.valid[row].sum())
            draft = judged.draft_ids[row, :num].tolist()
            if num:
                torch.testing.assert_close(
                    judged.second[row, :num], read_twice(kind, text, draft), atol=2e-3, rtol=0
                )
                checked += 1
            if kind in BY_SLOT:
                continue
            with torch.no_grad():
                plain = pair(kind)[0](torch.tensor([text + draft]), output_hidden_states=True)
            logits, states = (
                plain.logits[0, len(text) - 1 :],
                plain.hidden_states[-1][0, len(text) - 1 :],
            )
            torch.testing.assert_close(judged.logits[row, : num + 1], logits, atol=1e-3, rtol=0)
            torch.testing.assert_close(
                judged.hidden["post"][row, : num + 1], states, atol=2e-4, rtol=2e-4
            )
    assert checked >= 5


def test_drafts_of_unequal_length():
    answers = decoded("llama", alpha=0.0, drafter=PromptLookup())
    strict = Decoder(pair("llama")[0], None, make_rule("exact"), 0).generate(
        BATCH, max_new_tokens=12
    )
    assert [answer.ids for answer in answers] == [answer.ids for answer in strict]


def test_the_second_reading_needs_a_tokenizer_and_has_to_fit_the_context():
    target, draft = pair("llama")
    with pytest.raises(UserError, match="prompt in front of its second reading"):
        Decoder(target, ModelDrafter(draft), make_rule("reflective"), 4)
    decoder = Decoder(
        target, ModelDrafter(draft), make_rule("reflective", tail=TAIL), 4, tokenizer=Markers()
    )
    room = CONTEXT - len(BATCH[0]) - len(REFLECTION) - TAIL - 2 * 4
    assert decoder.generate(BATCH[:1], max_new_tokens=room)[0].ids
    with pytest.raises(UserError, match="exceed the context"):
        decoder.generate(BATCH[:1], max_new_tokens=room + 1)
