"""Rules that compare numbers of the target's row with thresholds: never, always, sometimes, and
what they publish.
"""

import math
from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gistgate.core.block import Block
from gistgate.core.request import Row
from gistgate.core.utils import UserError
from gistgate.rules import make_rule
from gistgate.rules.thresholds import (
    Lenience,
    Mars,
    MarsMargin,
    SglThreshold,
    Thinking,
    TrtRelaxed,
    Typical,
    between_markers,
    find_markers,
)
from tests.blocks import SPLIT, SURE, TORN, accepted, block, random_block
from tests.rules.enumerating import WANTED, P, Q, first_token, pairs


def of(*p: float) -> list[float]:
    return [math.log(x) for x in p]


HALVES = [*of(0.5, 0.3, 0.2), -99.0]


def verdict(rule: Any, *rows: list[float], draft: list[int], **more: Any) -> list[bool]:
    return rule.accept(block(*rows, draft=draft, **more))[0].tolist()


# The controls


@pytest.mark.parametrize(
    "rule_id, settings, row, draft, expected",
    [(name, settings, SPLIT, [3, 3], [False] * 2)  # never a token that the target finds absurd
     for name, settings in (("prob", {"r": 0.3}), ("prob-ratio", {"r": 0.3}), ("top-k", {"k": 3}))]
    + [(name, settings, TORN, [0, 1], [True] * 2)  # always those of an even split
       for name, settings in (("prob", {"r": 0.3}), ("prob-ratio", {"r": 0.9}),
                              ("top-k", {"k": 2}))]
    + [("prob", {"r": 0.25}, HALVES, [0, 1, 2], [True, True, False]),
       ("prob", {"r": 0.15}, HALVES, [0, 1, 2], [True, True, True]),
       ("prob-ratio", {"r": 0.59}, HALVES, [0, 1, 2], [True, True, False]),
       ("prob-ratio", {"r": 0.39}, HALVES, [0, 1, 2], [True, True, True]),
       ("top-k", {"k": 2}, HALVES, [0, 1, 2], [True, True, False])]
    # a probability of the threshold is enough: of two equal tokens each has exactly one half
    + [(name, {knob: value}, [0.0, 0.0, -torch.inf, -torch.inf], [1], [value == 0.5])
       for name, knob in (("prob", "r"), ("sgl-threshold", "single")) for value in (0.5, 0.51)],
)  # fmt: skip
def test_controls(
    rule_id: str, settings: dict[str, Any], row: list[float], draft: list[int], expected: list[bool]
):
    assert (
        verdict(make_rule(rule_id, **settings), *[row] * (len(draft) + 1), draft=draft) == expected
    )


def test_random_tolerates_its_share_and_the_same_ones_again():
    rule = make_rule("random", rate=0.3)
    found, again = (rule.accept(random_block(batch=4000)) for _ in range(2))
    assert found.float().mean().item() == pytest.approx(0.3, abs=0.01) and torch.equal(found, again)


def test_random_is_as_free_where_the_native_test_refused():
    """The number that refused a token is large; the blind choice must not see that."""
    judged = random_block(batch=8000, temperature=1.0)
    share = (
        make_rule("random", rate=0.3)
        .accept(judged)[judged.valid & ~judged.strict]
        .float()
        .mean()
        .item()
    )
    assert share == pytest.approx(0.3, abs=0.015)


# MARS

NEAR, WIDE = [10.0, 9.5, 9.4, 1.0], [10.0, 8.0, 7.0, 1.0]
"""Ratios 0.95 and 0.8, margins 0.5 and 2."""


@pytest.mark.parametrize(
    "rule, near, wide",
    [(Mars(), 1, 0), (Mars(0.99), 0, 0), (Mars(0.79), 1, 1), (Mars(0.8), 1, 0)]
    + [
        (MarsMargin(), 1, 0),
        (MarsMargin(0.4), 0, 0),
        (MarsMargin(2.0), 1, 1),
        (MarsMargin(-1.0), 0, 0),
    ],
)
def test_mars_sometimes_the_second_never_the_third(rule: Any, near: int, wide: int):
    assert verdict(rule, NEAR, NEAR, WIDE, NEAR, draft=[1, 2, 1]) == [bool(near), False, bool(wide)]


def test_mars_the_margin_does_not_depend_on_the_origin_of_the_logits():
    """As the published ratio does, which opens at 7 : 1 where logits are negative."""
    assert verdict(Mars(1.0), *[[-1.0, -3.0, -9.0, -9.0]] * 2, draft=[1]) == [True]
    for row in ([z + shift for z in NEAR] for shift in (0.0, -20.0, 20.0)):
        assert [verdict(MarsMargin(margin), row, row, draft=[1]) for margin in (0.51, 0.49)] == [
            [True],
            [False],
        ]


@pytest.mark.parametrize("rule", [Mars(), MarsMargin()])
def test_mars_sampling_keeps_a_refused_top_token_only_where_the_gate_is_open(rule: Any):
    """The native test refuses t* here: u q = 0.999 exceeds p."""
    for row, length in ((NEAR, 1), (WIDE, 0)):
        judged = block(row, row, draft=[0], uniforms=[0.999, 0.5], greedy=False)
        assert accepted(rule, judged).length.tolist() == [length]


# Typical acceptance

PEAKED = of(0.8, 0.11, 0.07, 0.02)
"""H = 0.69 nats, so delta exp(-H) = 0.15 and eps = 0.09 decides."""
FLAT = [2.0] * 6 + [0.0] * 2
"""Six tokens of 0.1594 and two of 0.0216; H = 1.924 nats, so delta exp(-H) = 0.0438 decides."""
ASCEND = {"form": "ascend"}
"""Its threshold is exp(-0.4 * 0.69) = 0.76; scaled by 0.1 it lies between the second and the third
token.
"""


@pytest.mark.parametrize(
    "settings, row, draft, expected",
    [({}, PEAKED, [1, 2, 3], [1, 0, 0]), ({}, FLAT, [5, 7], [1, 0])]
    # the looser of the two thresholds decides
    + [({"eps": 0.12}, PEAKED, [1], [0]), ({"delta": 0.2}, PEAKED, [1], [1]),
       ({"delta": 0.1}, PEAKED, [2], [1])]
    + [({"eps": 1.0, "delta": 0.1}, FLAT, [7], [1])]
    # the scale moves both
    + [({"scale": scale}, PEAKED, [1, 2, 3], [1] * num + [0] * (3 - num))
       for scale, num in ((9.0, 0), (1.2, 1), (0.5, 2), (0.0, 3))]
    + [(ASCEND, PEAKED, [0, 1], [1, 0]), ({"scale": 0.1, **ASCEND}, PEAKED, [1, 2], [1, 0])],
)  # fmt: skip
def test_typical(settings: dict[str, Any], row: list[float], draft: list[int], expected: list[int]):
    more = {"greedy": False, "uniforms": [0.999] * (len(draft) + 1)}
    found = verdict(Typical(**settings), *[row] * (len(draft) + 1), draft=draft, **more)
    assert found == [bool(one) for one in expected]


def test_typical_as_the_formula_of_medusa():
    """Their entropy adds 1e-5 inside the logarithm, which moves the threshold by less than the 1e-3
    spared here.
    """
    judged = random_block(batch=500, vocabulary=40, temperature=1.0)
    p = judged.logits[:, :-1].softmax(-1)
    p_x = p.gather(-1, judged.draft_ids[..., None]).squeeze(-1)
    entropy = -(p * (p + 1e-5).log()).sum(-1)
    threshold = torch.minimum(torch.full_like(entropy, 0.09), 0.3 * (-entropy).exp())
    clear = (p_x / threshold - 1).abs() > 1e-3
    ours = Typical().accept(judged)
    assert torch.equal(ours[clear], (p_x > threshold)[clear]) and clear.float().mean() > 0.9
    assert ours.any() and not ours.all()


def test_typical_greedy_is_exact_unless_asked():
    for settings, expected in (
        ({}, [1, 0, 0]),
        ({"superset": False}, [1, 0, 0]),
        ({"greedy": "raw"}, [1, 1, 0]),
    ):
        assert verdict(Typical(**settings), *[SPLIT] * 4, draft=[0, 1, 3]) == [
            bool(one) for one in expected
        ]


def test_typical_alone_draws_from_p_and_beside_the_strict_test_from_the_residual():
    """Threshold 0.3: alone x = 2 is always refused; beside the strict test, which refuses half of
    it, p is left.
    """
    alone = Typical(eps=0.3, delta=9.0, superset=False)
    assert alone.log_threshold(torch.ones(1)).exp().item() == pytest.approx(0.3)
    assert torch.allclose(first_token(alone), torch.tensor([0.25, 0.25, 0.0]) + 0.5 * P, atol=1e-6)
    assert torch.allclose(first_token(Typical(eps=0.3, delta=9.0)), P, atol=1e-6)


# Lenience: the native test with q made smaller


@pytest.mark.parametrize(
    "lenience, uniform, expected", [(1.0, 0.3, False), (0.5, 0.3, True), (0.5, 0.41, False)]
)
def test_lenience_towards_a_draft_that_counts_as_certain(
    lenience: float, uniform: float, expected: bool
):
    z = of(0.2, 0.4, 0.4)
    assert verdict(Lenience(lenience), z, z, draft=[0], uniforms=[uniform, 0.5], greedy=False) == [
        expected
    ]


@pytest.mark.parametrize("lenience", [1.0, 0.75, 0.5, 0.25])
def test_lenience_texts_are_distributed_as_the_formula_says(lenience: float):
    """Accepted: min(q, p / l). The rest: the residual, which is (1/2, 1/2, 0) here."""
    kept = torch.minimum(Q, P / lenience)
    wanted = kept + (1 - kept.sum()) * torch.tensor([0.5, 0.5, 0.0])
    assert torch.allclose(first_token(Lenience(lenience)), wanted, atol=1e-6)
    assert (wanted <= P / lenience + 1e-6).all() and torch.allclose(wanted, P) is (lenience == 1)


# SGLang's thresholds: target-only, lossless at 1 and 1, and two ways to loosen


def sampled(x: int, u: float, draw: float = 0.5, q: list[list[float]] | None = None) -> Block:
    return block(HALVES, HALVES, draft=[x], uniforms=[u, draw], greedy=False, q=q)


@pytest.mark.parametrize(
    "settings, u, expected",
    [
        ({"acc": acc}, u, u < 0.3 / acc)
        for acc, u in ((1.0, 0.29), (1.0, 0.31), (0.5, 0.59), (0.5, 0.61))
    ]
    + [({"single": single}, 0.999, single < 0.3) for single in (0.31, 0.29)],
)
def test_sgl_acc_inflates_the_probability_and_single_is_enough_without_luck(
    settings: Any, u: float, expected: bool
):
    assert accepted(SglThreshold(**settings), sampled(1, u)).length.tolist() == [int(expected)]


@pytest.mark.parametrize("single", [1.0, 0.3, 0.1, 0.02])
def test_sgl_a_greedy_request_is_judged_as_by_prob(single: float):
    judged = random_block(batch=300)
    outcome, other = (
        accepted(SglThreshold(single=single), judged),
        accepted(make_rule("prob", r=single), judged),
    )
    assert all(
        torch.equal(getattr(outcome, name), getattr(other, name))
        for name in ("length", "own_ids", "reasons")
    )
    assert torch.equal(outcome.length, accepted(make_rule("exact"), judged).length) is (single == 1)


@pytest.mark.parametrize("x", range(3))
def test_sgl_closed_and_sampled_any_draft_leaves_the_distribution_alone(x: int):
    """By enumeration, with a q that the draft was not drawn from."""
    assert torch.allclose(
        pairs(SglThreshold(), (x,), certain=False, num=120), WANTED.double(), atol=1e-6
    )


def test_sgl_protocol_tokens_pass_the_lossless_test_only():
    for u, single in product((0.29, 0.31), (1.0, 0.01)):
        # a q(x) below p(x) would let the native test of other rules pass at once
        judged = replace(sampled(1, u, q=[[0.8, 0.1, 0.1, 0.0]]), protocol=torch.tensor([1]))
        assert accepted(SglThreshold(acc=0.1, single=single), judged).length.tolist() == [
            int(u < 0.3)
        ]


# TensorRT-LLM's relaxed acceptance, and the think markers between which it holds

BEGIN, END = 1, 2


@pytest.mark.parametrize(
    "settings, draft, expected",
    # 0.5 - 0.3 = 0.2, 0.5 - 0.2 = 0.3; 0.3 / 0.5 = 0.6, 0.2 / 0.5 = 0.4
    [({"mode": mode, "delta": delta}, [0, 1, 2], [1] * num + [0] * (3 - num))
     for mode, deltas in (("diff", (0.19, 0.21, 0.31)), ("ratio", (0.39, 0.41, 0.61)))
     for num, delta in enumerate(deltas, 1)]
    # never below the top; where p(t*) = 0.5 <= delta only k counts
    + [({"k": 2, "delta": 1.0}, [1, 2, 3], [1, 0, 0]), ({"k": 4}, [1, 2, 3], [1, 1, 1])],
)  # fmt: skip
def test_trt_delta_is_a_difference_or_a_share(
    settings: dict[str, Any], draft: list[int], expected: list[int]
):
    assert verdict(TrtRelaxed(scope="all", **settings), *[HALVES] * 4, draft=draft) == [
        bool(one) for one in expected
    ]


def test_trt_behind_the_end_marker_the_answer_is_strict():
    judged = block(*[HALVES] * 5, draft=[1, 0, 0, 1], thinking=[True, True, False, False])
    assert TrtRelaxed().accept(judged).tolist() == [[True, True, False, False]]
    assert accepted(TrtRelaxed(), judged).length.tolist() == [
        3
    ]  # the match behind the marker stays


@pytest.mark.parametrize(
    "settings, rule_id, same",
    [({"k": 3, "delta": 1.0, "mode": mode}, "top-k", {"k": 3}) for mode in ("diff", "ratio")]
    + [
        ({"k": 99, "delta": 0.7, "mode": "ratio"}, "prob-ratio", {"r": 0.3})
    ],  # without a rank: the control
)
def test_trt_at_its_ends_is_a_control(settings: dict[str, Any], rule_id: str, same: dict[str, Any]):
    judged, rules = (
        random_block(batch=300),
        (TrtRelaxed(scope="all", **settings), make_rule(rule_id, **same)),
    )
    relaxed, control, strict = (
        accepted(rule, judged).length for rule in (*rules, make_rule("exact"))
    )
    assert torch.equal(relaxed, control) and (relaxed > strict).any()


@pytest.mark.parametrize(
    "ids, before, after",
    [([], False, False), ([], True, True), ([5, BEGIN, 6], False, True), ([END, 7], True, False),
     ([BEGIN, 5, END, 6], False, False), ([END, BEGIN], True, True),
     ([BEGIN, BEGIN, END], False, False)],
)  # fmt: skip
def test_between_markers(ids: list[int], before: bool, after: bool):
    assert between_markers(ids, before, (BEGIN, END)) is after


@pytest.mark.parametrize(
    "text, draft, expected",
    [
        ([BEGIN, 5], [3, 0, 3], [True, True, True]),
        (
            [BEGIN, 5],
            [3, END, 3],
            [True, True, False],
        ),  # the end marker itself still stands in the thinking
        ([BEGIN, 5, END], [3, 0, 3], [False, False, False]),
        ([5], [3, END, 3], [False, False, False]),
        ([BEGIN, 5], [END, END, 3], [True, False, False]),
    ],
)
def test_an_end_marker_in_the_draft_ends_it(
    text: list[int], draft: list[int], expected: list[bool]
):
    fields = Thinking((BEGIN, END)).fields(
        block(*[SURE[0]] * 4, draft=draft), [Row(0, text, len(text))]
    )
    assert fields["thinking"].tolist() == [expected]


def test_markers_are_single_tokens_asked_for_only_where_they_count_and_never_loose():
    tokenizer = SimpleNamespace(get_vocab=lambda: {"<think>": BEGIN, "</think>": END, "<b>": 7})
    assert find_markers(tokenizer, ("<think>", "</think>")) == (BEGIN, END)
    assert find_markers(tokenizer, ("<b>", "</think>")) == (7, END)
    with pytest.raises(
        UserError, match=r"know the think marker '</b>' as one token\. Pass think_markers="
    ):
        find_markers(tokenizer, ("<b>", "</b>"))
    with pytest.raises(UserError, match=r"Pass tokenizer=\.\.\. to the decoder, or set scope: all"):
        find_markers(None, ("<think>", "</think>"))
    assert TrtRelaxed().context(tokenizer, ("<b>", "</think>")).protocol_ids == (7, END)
    assert TrtRelaxed(scope="all").context(None, ("<a>", "</a>")).protocol_ids == ()
    assert "think markers" in Thinking((BEGIN, END)).needs_eager
