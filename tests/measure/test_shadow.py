"""Shadow mode: strict ids whatever the rule, exact counts inside a block, an estimate across blocks."""

from typing import Any

import pytest

from gistgate.core.block import Sampling
from gistgate.core.decoder import Decoder
from gistgate.core.guards import LoopGuard, make_guards
from gistgate.core.request import total
from gistgate.core.utils import UserError
from gistgate.drafters.model import ModelDrafter
from gistgate.measure.shadow import shadow, summary
from gistgate.rules import RULES, make_rule
from gistgate.trees.drafter import TreeDrafter
from tests.architectures import pair, prompts
from tests.core.watching import HalfGate, Markers
from tests.rules.extremes import LOOSE, LOSSLESS

BATCH = prompts(5, 9, 2)


def decoder(rule_id: str, noise: float = 0.03, **settings: Any) -> Decoder:
    target, draft = pair("llama", noise=noise)
    rule = make_rule(rule_id, **settings)
    return Decoder(target, ModelDrafter(draft), rule, 4, gate=HalfGate(), tokenizer=Markers())


@pytest.mark.parametrize("rule_id", RULES)
def test_ids_are_those_of_strict_verification(rule_id: str):
    """Although the watched rule would keep loose tokens, unless it is lossless."""
    watched, exact = decoder(rule_id, noise=0.1, **LOOSE.get(rule_id, {})), decoder("exact", noise=0.1)
    sampling = Sampling(0.0 if watched.rule.temperatures != "sampled" else 1.0)
    strict = exact.generate(BATCH, max_new_tokens=24, sampling=sampling)
    shadowed = shadow(watched).generate(BATCH, max_new_tokens=24, sampling=sampling)
    assert [row.ids for row in shadowed] == [row.ids for row in strict]
    assert all(row.statistics.loose == 0 for row in shadowed)
    assert any(row.statistics.extra["shadow_loose"] for row in shadowed) == (rule_id not in LOSSLESS)


def test_sampled_texts_stay_the_same_as_well():
    runs = [one.generate(BATCH, max_new_tokens=16, sampling=Sampling(1.0)) for one in (
        decoder("exact"), shadow(decoder("prob", r=0.001))
    )]  # fmt: skip
    assert [row.ids for row in runs[0]] == [row.ids for row in runs[1]]


def test_a_shadow_that_agrees_with_the_target_estimates_the_real_tau():
    """A rule that accepts nothing more gives exactly the strict rounds."""
    rows = shadow(decoder("prob", r=1.0)).generate(BATCH, max_new_tokens=40)
    counted = total([row.statistics for row in rows])
    tau = f"{counted.mean_accepted_length:.2f}"
    assert f"tau {tau} estimated for the rule instead of {tau}, 0.0 loose" in summary(counted)
    assert counted.extra["shadow_differing"] == 0


def test_what_has_no_shadow_is_refused():
    with pytest.raises(UserError, match="chains of drafts"):
        shadow(Decoder(pair("llama")[0], None, make_rule("exact")))
    target, draft = pair("llama")
    with pytest.raises(UserError, match="chains of drafts"):
        shadow(Decoder(target, TreeDrafter(draft), make_rule("prob", r=0.1), 4))


def test_the_command_line_makes_guards_by_name(tmp_path):
    assert make_guards(["loop"]) == [LoopGuard()]
    refused = (("lop", None, "no guard 'lop'"), ("domain", None, "Name the gate's folder"))
    for name, folder, said in (*refused, ("domain", str(tmp_path), "does not know which prompts")):
        with pytest.raises(UserError, match=said):
            make_guards([name], folder)
