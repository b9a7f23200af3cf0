"""What every rule promises. A new rule enters by itself; it only has to name its extreme settings
in extremes.py.
"""

import math
from copy import deepcopy
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
import torch

from gistgate.core.block import Block
from gistgate.core.rule import allowed, settle
from gistgate.core.session import Verifier
from gistgate.core.utils import UserError
from gistgate.rules import PRESETS, RULES, make_rule
from gistgate.rules.divergence import Fly
from tests.blocks import accepted, random_block
from tests.rules.extremes import BY_DISTRIBUTION, CLOSED, DEFAULT, NEVER_OPEN, OPEN, TARGET_ONLY

SETTINGS = [(rule_id, DEFAULT.get(rule_id, {})) for rule_id in RULES]
SETTINGS += [
    (rule_id, settings)
    for table in (CLOSED, OPEN)
    for rule_id, settings in table.items()
    if settings
]
VARIANTS = [
    (name, {**DEFAULT.get(name, {}), **more})
    for name, rule in RULES.items()
    for more in rule.variants
    if more
]
"""Other settings that calibration may choose; some of them replace the strict test where the rule
usually widens it.
"""
ON_DEVICE = [
    (name, settings) for name, settings in SETTINGS + VARIANTS if settings.get("table") != "online"
]
"""A table that is filled while decoding is left out: its size depends on what was met."""
ALWAYS = pytest.mark.parametrize("rule_id, settings", SETTINGS + VARIANTS)
KINDS = [(0.0, True), (0.0, False), (1.0, True), (1.0, False), (0.5, True)]
"""Temperature, and whether the drafter has probabilities."""


def blocks(rule_id: str, **more: Any) -> list[Block]:
    """Blocks of every kind that the rule is defined for."""
    rule = RULES[rule_id]
    kinds = [
        (t, q)
        for t, q in KINDS
        if rule.temperatures == "all" or (rule.temperatures == "greedy") == (t == 0.0)
        if q or "q" not in make_rule(rule_id, **CLOSED[rule_id]).needs
        if not (q and t and rule_id in TARGET_ONLY)
    ]
    return [
        random_block(seed, temperature=t, with_q=q, **more) for seed, (t, q) in enumerate(kinds)
    ]


def comparable(rule_id: str) -> list[Block]:
    """Those on which token-wise strictness says something about the rule."""
    return [
        block
        for block in blocks(rule_id, batch=200)
        if block.greedy or rule_id not in BY_DISTRIBUTION
    ]


def test_every_rule_names_its_extreme_settings():
    knobs = {rule_id for rule_id, rule in RULES.items() if rule.knob is not None}
    assert set(RULES) == set(CLOSED), "a new rule needs its lossless setting in CLOSED"
    assert knobs == set(OPEN) | NEVER_OPEN, (
        "a new rule with a knob needs its freest setting in OPEN"
    )


@pytest.mark.parametrize("rule_id", RULES)
def test_a_rule_is_a_frozen_dataclass_that_names_its_knob(rule_id: str):
    rule = RULES[rule_id]
    assert rule.id == rule_id and is_dataclass(rule) and rule.__dataclass_params__.frozen
    assert rule.knob is None or rule.knob in {field.name for field in fields(rule)}
    assert rule.looser in ("up", "down") and make_rule(rule_id, **CLOSED[rule_id]).needs <= {
        "gate",
        "q",
        "uniforms",
    }
    assert rule.verifier is None or issubclass(rule.verifier, Verifier)


@pytest.mark.parametrize("rule_id", [name for name, rule in RULES.items() if rule.knob])
def test_the_declared_settings_go_from_strict_to_loose(rule_id: str):
    rule = RULES[rule_id]
    assert len(rule.grid) >= 8 and 1 <= len(rule.variants) <= 4
    assert list(rule.grid) == sorted(set(rule.grid), reverse=rule.looser == "down")
    for variant in rule.variants:
        for value in rule.grid:
            made = make_rule(rule_id, **{**DEFAULT.get(rule_id, {}), **variant, rule.knob: value})
            assert getattr(made, rule.knob) == value


@ALWAYS
def test_shape_and_type_also_without_a_draft(rule_id: str, settings: dict[str, Any]):
    for num in (0, 1, 8):
        for block in blocks(rule_id, num=num):
            opinion = make_rule(rule_id, **settings).accept(block)
            assert opinion.shape == (16, num) and opinion.dtype == torch.bool
            outcome = accepted(make_rule(rule_id, **settings), block)
            assert outcome.length.shape == outcome.own_ids.shape == (16,)
            assert (outcome.length <= block.valid.sum(-1)).all()


def elsewhere(block: Block) -> Block:
    """The block on the device "meta", whose tensors have a shape and no values."""
    content = {field.name: getattr(block, field.name) for field in fields(block)}
    moved = {
        name: value.to("meta") for name, value in content.items() if isinstance(value, torch.Tensor)
    }
    return replace(
        block, **moved, hidden={name: state.to("meta") for name, state in block.hidden.items()}
    )


@pytest.mark.parametrize("rule_id, settings", ON_DEVICE)
def test_all_happens_on_the_device_of_the_block_and_nothing_is_read_back(
    rule_id: str, settings: dict[str, Any]
):
    """Mixing devices fails there, and so does asking for the value of a tensor, which would stall
    an accelerator.
    """
    rule = make_rule(rule_id, **deepcopy(settings))
    for whole in (*blocks(rule_id), *blocks(rule_id, num=0)):
        outcome = settle(rule, elsewhere(whole))
        found = [outcome.length, outcome.own_ids, outcome.reasons]
        assert {tensor.device.type for tensor in found} == {"meta"}
        assert {len(tensor) for tensor in found} == {len(whole.draft_ids)}


@pytest.mark.parametrize("rule_id", CLOSED)
def test_closed_is_strict(rule_id: str):
    closed, exact = make_rule(rule_id, **CLOSED[rule_id]), make_rule("exact")
    for block in comparable(rule_id):
        assert torch.equal(accepted(closed, block).length, accepted(exact, block).length)
        assert torch.equal(accepted(closed, block).own_ids, accepted(exact, block).own_ids)


@pytest.mark.parametrize("rule_id", CLOSED)
def test_closed_is_strict_where_two_tokens_tie(rule_id: str):
    """Half-precision logits tie often; only the first of equals is the target's greedy token."""
    z = torch.tensor([1.0, 1.0, 0.0, 1.0]).expand(1, 3, 4)
    block = replace(
        random_block(batch=1, num=2), draft_ids=torch.tensor([[1, 0]]), logits=z, protocol=None
    )
    block = replace(
        block,
        valid=torch.ones(1, 2, dtype=torch.bool),
        q=torch.full((1, 2, 4), 0.25),
        second=z[:, :-1],
    )
    assert accepted(make_rule(rule_id, **CLOSED[rule_id]), block).length.tolist() == [0]


@pytest.mark.parametrize("rule_id", OPEN)
def test_open_keeps_all_that_may_be_kept(rule_id: str):
    rule = make_rule(rule_id, **OPEN[rule_id])
    for block in blocks(rule_id, batch=200):
        may = block.strict | allowed(block)
        assert torch.equal(accepted(rule, block).length, may.long().cumprod(-1).sum(-1))


@pytest.mark.parametrize("rule_id, settings", SETTINGS)
def test_never_less_than_strict(rule_id: str, settings: dict[str, Any]):
    for block in comparable(rule_id):
        loose, strict = (
            accepted(make_rule(rule_id, **settings), block),
            accepted(make_rule("exact"), block),
        )
        assert (loose.length >= strict.length).all()


@ALWAYS
def test_never_a_forbidden_token_nor_one_behind_the_draft_and_protocol_tokens_strictly(
    rule_id: str, settings: Any
):
    """Neither may the draft end what the target goes on with, nor the reverse."""
    for block in blocks(rule_id, batch=200):
        outcome = accepted(make_rule(rule_id, **settings), block)
        kept = torch.arange(8) < outcome.length[:, None]
        assert not (kept & (block.draft_logprob == -torch.inf)).any()
        assert not (kept & ~block.valid).any()
        own_row = block.logits[torch.arange(200), outcome.length]
        assert (own_row.gather(-1, outcome.own_ids[:, None]) > -torch.inf).all()
        if block.greedy or rule_id not in BY_DISTRIBUTION:
            steering = (block.draft_ids == 5) | (block.top_ids[:, :-1] == 5)
            assert not (kept & steering & ~block.strict).any()


@pytest.mark.parametrize("rule_id", OPEN)
def test_the_knob_is_monotone_from_closed_to_open(rule_id: str):
    rule = RULES[rule_id]
    low, high = sorted([CLOSED[rule_id][rule.knob], min(OPEN[rule_id][rule.knob], 6)])
    middle = (low + high) // 2 if isinstance(low, int) else (low + high) / 2
    fixed = {name: value for name, value in OPEN[rule_id].items() if name != rule.knob}
    order = [low, middle, high] if rule.looser == "up" else [high, middle, low]
    for block in blocks(rule_id, batch=200):
        lengths = [
            accepted(make_rule(rule_id, **fixed, **{rule.knob: value}), block).length
            for value in order
        ]
        assert (lengths[0] <= lengths[1]).all() and (lengths[1] <= lengths[2]).all()
        assert (lengths[0] < lengths[2]).any()


@ALWAYS
def test_rows_do_not_influence_each_other(rule_id: str, settings: dict[str, Any]):
    rule = make_rule(rule_id, **settings)
    for block in blocks(rule_id):
        whole = accepted(rule, block)
        alone = [accepted(rule, block.of_rows(torch.tensor([row]))) for row in range(16)]
        assert torch.equal(whole.length, torch.cat([one.length for one in alone]))
        assert torch.equal(whole.own_ids, torch.cat([one.own_ids for one in alone]))


@ALWAYS
def test_padding_behind_a_draft_changes_nothing(rule_id: str, settings: dict[str, Any]):
    """A neighbour with a longer draft widens the block; a row's own verdict stays."""
    for block in blocks(rule_id):
        short = replace(block, valid=block.valid & (torch.arange(8) < 5))
        cut = {
            "draft_ids": block.draft_ids[:, :5],
            "valid": short.valid[:, :5],
            "logits": block.logits[:, :6],
        }
        cut["gate_probs"], cut["q"] = (
            block.gate_probs[:, :5],
            None if block.q is None else block.q[:, :5],
        )
        cut["second"], cut["thinking"] = block.second[:, :5], block.thinking[:, :5]
        cut["uniforms"] = torch.cat([block.uniforms[:, :5], block.uniforms[:, -1:]], dim=1)
        rule = make_rule(rule_id, **settings)
        wide, narrow = accepted(rule, short), accepted(rule, replace(block, **cut, hidden={}))
        assert torch.equal(wide.length, narrow.length) and torch.equal(wide.own_ids, narrow.own_ids)


@ALWAYS
def test_the_first_token_of_an_answer_is_strict(rule_id: str, settings: dict[str, Any]):
    rule, differing = make_rule(rule_id, **settings), 0
    for block in blocks(rule_id, batch=200):
        free = accepted(rule, block)
        outcome = accepted(rule, replace(block, begins=torch.arange(200) < 100))
        assert torch.equal(outcome.length[100:], free.length[100:])
        assert torch.equal(outcome.own_ids[100:], free.own_ids[100:])
        if rule.lossless:
            continue
        strict, exact = block.strict[:100, 0], accepted(make_rule("exact"), block)
        assert torch.equal(outcome.length[:100] > 0, strict)
        assert torch.equal(outcome.own_ids[:100][~strict], exact.own_ids[:100][~strict])
        differing += int((free.length[:100] > 0).ne(strict).sum())
    assert differing or rule.lossless or rule_id not in OPEN or settings != OPEN[rule_id]


# Rules are made by name, and a slip of the pen is answered with the name that was meant.


def test_presets_are_settings_of_a_rule():
    assert make_rule("fly-paper") == Fly(entropy="normalised")
    assert make_rule("fly-amd") == Fly(window=5)
    assert make_rule("fly-amd", theta=0.5, window=4) == Fly(theta=0.5, window=4)
    assert all(make_rule(name).id == rule_id for name, (rule_id, _) in PRESETS.items())


@pytest.mark.parametrize(
    "rule_id, settings, sentence",
    [
        ("flyy", {}, "no rule 'flyy'. Did you mean 'fly'"),
        ("fly", {"teta": 0.3}, "no setting 'teta'. Did you mean 'theta'"),
        ("exact", {"r": 0.3}, "no setting 'r'. Known: none"),
        (
            "fly",
            {"entropy": "full"},
            "fly: 'entropy' is 'full', but it has to be 'top3' or 'normalised'",
        ),
        ("fly", {"theta": "abc"}, "fly: 'theta' is 'abc', but it has to be a number"),
        ("fly", {"window": 2.5}, "fly: 'window' is 2.5, but it has to be a whole number"),
        ("fly", {"strict_window": "no"}, "'strict_window' is 'no', but it has to be true or false"),
        ("sense", {"gamma": math.nan}, "sense: 'gamma' is nan"),
    ],
)
def test_mistakes_are_explained(rule_id: str, settings: dict[str, Any], sentence: str):
    with pytest.raises(UserError, match=sentence):
        make_rule(rule_id, **settings)


WRONG: dict[str, dict[str, list[Any]]] = {
    "prob": {"r": [0.0, 1.1]},
    "prob-ratio": {"r": [0.0, 1.1]},
    "top-k": {"k": [0]},
    "random": {"rate": [1.5]},
    "fly": {"window": [-1], "entropy": ["full"]},
    "sense": {"k": [-1], "window": [0]},
    "csd": {"tau_c": [0.0], "min_count": [-1], "table": ["warm"]},
    "reflective": {"alpha": [-0.1, 1.1], "tail": [-1], "base": ["mars"]},
    "kl-judge": {"max_p": [0.0, 1.1]},
    "typical": {
        "scale": [-1.0],
        "eps": [0.0, 1.5],
        "delta": [0.0],
        "form": ["other"],
        "greedy": ["argmax"],
    },
    "ensemble": {"w": [-0.1, 1.1], "replacement": ["argmax_q"]},
    "sgl-threshold": {"acc": [0.0, 1.1], "single": [0.0, 2.0]},
    "trt-relaxed": {"delta": [-0.1, 1.5], "k": [0], "mode": ["gap"], "scope": ["answer"]},
    "mars": {"theta": [math.nan]},
    "mars-margin": {"margin": [math.nan]},
    "fsd": {"div": ["euclid"], "replacement": ["q"]},
    "lenience": {"lenience": [0.0, -1.0, 1.1]},
    "regret-budget": {"budget": [-1.0]},
    "judge": {"delta": [-0.1, math.nan]},
    "autojudge": {"risk": [2.0]},
    "ensemble-gate": {"risk": [2.0], "w": [-0.1, 1.5, 2.0]},
    "wisv": {
        "risk": [1.1],
        "kappa": [-1.0],
        "limit": [1.5, -0.1],
    },
}


def test_every_rule_with_settings_refuses_some():
    assert set(WRONG) == {rule_id for rule_id, rule in RULES.items() if fields(rule)}


@pytest.mark.parametrize(
    "rule_id, name, value",
    [
        (rule_id, name, value)
        for rule_id, wrong in WRONG.items()
        for name, values in wrong.items()
        for value in values
    ],
)
def test_settings_out_of_range_are_refused_by_the_rule_itself(rule_id: str, name: str, value: Any):
    with pytest.raises(UserError, match=f"^{rule_id}: .{name}. is {value!r}, but it has to be "):
        RULES[rule_id](**{**DEFAULT.get(rule_id, {}), name: value})
