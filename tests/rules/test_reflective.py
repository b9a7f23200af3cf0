"""Reflective verification: what a second reading can change, and what it cannot."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch

from gistgate.core.block import Block
from gistgate.core.rule import allowed
from gistgate.core.utils import UserError
from gistgate.rules import make_rule
from gistgate.rules.reflective import Reflective, Rereader
from tests.blocks import SURE, TORN, accepted, block, random_block
from tests.tiny import byte_tokenizer

KINDS = [(0.0, True), (1.0, True), (1.0, False), (0.5, True)]


def read_twice(*rows: list[float], draft: list[int], second: list[list[float]], **more: Any) -> Block:
    return block(*rows, draft=draft, second=second, **more)


def converted(judged: Block) -> Block:
    """The second reading has no doubt about what was drafted."""
    praise = 40.0 * torch.nn.functional.one_hot(judged.draft_ids, judged.logits.shape[-1])
    return replace(judged, second=judged.logits[:, :-1].masked_fill(judged.logits[:, :-1] == -torch.inf, -50) + praise)


@pytest.mark.parametrize("alpha, expected", [(0.0, False), (0.1, False), (0.3, True), (1.0, True)])
def test_the_second_reading_weighs_alpha(alpha: float, expected: bool):
    """1 against 0: -2 at first, +8 on reflection; even at alpha = 0.2."""
    judged = read_twice([2.0, 0.0, -9.0], SURE[0][:3], draft=[1], second=[[0.0, 8.0, -9.0]])
    assert Reflective(alpha=alpha).accept(judged, {}).tolist() == [[expected]]


def test_never_what_both_readings_refuse():
    judged = read_twice(SURE[0], SURE[0], draft=[1], second=[SURE[2]])
    assert not any(Reflective(alpha=alpha / 10).accept(judged, {}).any() for alpha in range(11))


def test_a_match_stays_whatever_the_second_reading_says():
    judged = read_twice(SURE[0], SURE[0], draft=[0], second=[SURE[1]])
    assert accepted(Reflective(alpha=1.0), judged).length.tolist() == [1]


def test_own_tokens_come_from_the_first_reading():
    judged = read_twice(SURE[0], SURE[3], draft=[1], second=[SURE[2]])
    assert accepted(Reflective(alpha=1.0), judged).own_ids.tolist() == [0]
    judged = read_twice(TORN, SURE[3], draft=[1], second=[SURE[1]])
    outcome = accepted(Reflective(), judged)
    assert outcome.length.tolist() == [1] and outcome.own_ids.tolist() == [3]


@pytest.mark.parametrize("temperature, with_q", KINDS)
def test_alpha_0_is_exact(temperature: float, with_q: bool):
    judged = random_block(batch=300, temperature=temperature, with_q=with_q)
    judged = replace(judged, second=torch.full_like(judged.logits[:, :-1], -torch.inf))
    strict = accepted(make_rule("exact"), judged)
    outcome = accepted(Reflective(alpha=0.0), judged)
    assert torch.equal(outcome.length, strict.length) and torch.equal(outcome.own_ids, strict.own_ids)


@pytest.mark.parametrize("temperature, with_q", KINDS)
def test_a_converted_target_keeps_what_is_allowed(temperature: float, with_q: bool):
    judged = converted(random_block(batch=300, temperature=temperature, with_q=with_q))
    wanted = (judged.strict | allowed(judged)).long().cumprod(-1).sum(-1)
    assert torch.equal(accepted(Reflective(alpha=1.0), judged).length, wanted)


@pytest.mark.parametrize("temperature, with_q", KINDS)
def test_towards_a_converted_target_alpha_is_monotone(temperature: float, with_q: bool):
    judged = converted(random_block(batch=300, temperature=temperature, with_q=with_q))
    lengths = [accepted(Reflective(alpha=alpha), judged).length for alpha in (0.0, 0.05, 0.3, 1.0)]
    assert all((less <= more).all() for less, more in pairwise(lengths))
    assert (lengths[0] < lengths[1]).any() and (lengths[1] < lengths[3]).any()


@pytest.mark.parametrize("alpha", [0.3, 1.0])
@pytest.mark.parametrize("base", ["exact", "typical"])
@pytest.mark.parametrize("temperature, with_q", KINDS)
def test_forbidden_tokens_of_either_reading_leave_no_trace(base: Any, temperature: float, with_q: bool, alpha: float):
    judged = random_block(batch=300, temperature=temperature, with_q=with_q)
    forbids = torch.rand(judged.logits[:, :-1].shape, generator=torch.Generator().manual_seed(1)) < 0.4
    second = torch.where(forbids, -torch.inf, judged.logits[:, :-1].clamp_min(-5))
    outcome = accepted(Reflective(alpha=alpha, base=base), replace(judged, second=second))
    kept = torch.arange(8) < outcome.length[:, None]
    assert not (kept & (judged.draft_logprob == -torch.inf)).any()
    assert not Reflective(alpha=alpha).mix(judged.logits[:, :-1], second).isnan().any()


def test_sampled_the_native_test_runs_on_the_mixture():
    """p(x) = 1/4 at first and 1/2 in the middle: u = 0.4 refuses the one and passes the other."""
    z, again = [math.log(3.0), 0.0], [[0.0, math.log(3.0)]]
    judged = read_twice(z, z, draft=[1], second=again, uniforms=[0.4, 0.5], greedy=False)
    assert not judged.strict.any()
    assert Reflective(alpha=0.5).accept(judged, {}).tolist() == [[True]]
    assert Reflective(alpha=0.2).accept(judged, {}).tolist() == [[False]]
    # with q(x) = 1/2 the ratio is 1/2 at once
    judged = read_twice(z, z, draft=[1], second=again, q=[[0.5, 0.5]], uniforms=[0.6, 0.5], greedy=False)
    assert Reflective(alpha=0.2).accept(judged, {}).tolist() == [[True]]


@pytest.mark.parametrize("p, expected", [(0.10, True), (0.08, False)])
def test_typical_acceptance_of_the_mixture(p: float, expected: bool):
    """A peaked mixture: eps = 0.09 decides. The drawn number plays no part."""
    z = [math.log(1 - p), math.log(p)]
    judged = read_twice(z, z, draft=[1], second=[z], uniforms=[0.999, 0.5], greedy=False)
    assert Reflective(base="typical").accept(judged, {}).tolist() == [[expected]]


def test_typical_acceptance_is_milder_where_the_mixture_is_flat():
    """64 even tokens: delta exp(-ln 64) = 0.0047 < 1/64 < eps."""
    z = [0.0] * 64
    judged = read_twice(z, z, draft=[9], second=[z], uniforms=[0.999, 0.5], greedy=False)
    assert Reflective(base="typical").accept(judged, {}).tolist() == [[True]]


def test_greedy_both_bases_are_the_same():
    judged = random_block(batch=200)
    judged = replace(judged, second=judged.logits[:, :-1].flip(-1).clamp_min(-5))
    both = [accepted(Reflective(base=base), judged).length for base in ("exact", "typical")]
    assert torch.equal(*both) and (both[0] > accepted(make_rule("exact"), judged).length).any()


def test_it_asks_for_its_second_reading():
    assert Reflective.verifier is Rereader
    with pytest.raises(UserError, match="second reading, and none was given"):
        Reflective().accept(block(SURE[0], SURE[0], draft=[1]), {})


def test_no_text_need_be_repeated():
    assert Reflective(tail=0).context(byte_tokenizer(), ()).tail == 0


def test_its_second_reading_is_announced_by_a_prompt():
    context = Reflective(tail=3, mode="second", prompt="Again:").context(byte_tokenizer(), ())
    assert byte_tokenizer().decode(context.prompt_ids) == "Again:"  # no <s> in front of it
    assert (context.tail, context.mode) == (3, "second")
    with pytest.raises(UserError, match=r"'reflective' puts a prompt .* Pass tokenizer="):
        Reflective().context(None, ())
