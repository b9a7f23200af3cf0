"""Shadow mode: strict ids whatever the rule, exact counts inside a block, an estimate across blocks."""

from typing import Any

import pytest

from gistgate.core.block import Sampling
from gistgate.core.decoder import Decoder
from gistgate.core.request import total
from gistgate.core.utils import UserError
from gistgate.drafters.model import ModelDrafter
from gistgate.measure.shadow import shadow, summary, would_be
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


def test_a_shadow_that_agrees_with_the_target_estimates_the_real_tau():
    """A rule that accepts nothing more gives exactly the strict rounds."""
    rows = shadow(decoder("prob", r=1.0)).generate(BATCH, max_new_tokens=40)
    found = would_be(total([row.statistics for row in rows]))
    assert found.tau == found.strict == found.first_step and found.differing == 0
    assert "instead of" in summary(total([row.statistics for row in rows]))


def test_what_has_no_shadow_is_refused():
    with pytest.raises(UserError, match="nothing drafts"):
        shadow(Decoder(pair("llama")[0], None, make_rule("exact")))
    target, draft = pair("llama")
    with pytest.raises(UserError, match="exact for chains only"):
        shadow(Decoder(target, TreeDrafter(draft), make_rule("prob", r=0.1), 4))
