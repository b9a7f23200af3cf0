"""Models that measure distances in slots of the cache: rows keep apart, and trees are refused."""

from __future__ import annotations

import pytest

from gistgate.core.decoder import Decoder
from gistgate.core.reader import context_of
from gistgate.core.request import check_prompts
from gistgate.core.utils import UserError
from gistgate.drafters.model import ModelDrafter
from gistgate.drafters.text import PromptLookup
from gistgate.rules import make_rule
from gistgate.trees.tree import attention_kinds
from tests.architectures import BY_SLOT, CONTEXT, greedy, pair, prompts

BATCH = prompts(5, 17, 2, 10)


@pytest.mark.parametrize("kind", BY_SLOT)
@pytest.mark.parametrize("rows", [1, 4])
def test_rows_of_a_batch_write_their_own_greedy_text(kind: str, rows: int) -> None:
    target, draft = pair(kind)
    answers = Decoder(target, ModelDrafter(draft), make_rule("exact"), 4).generate(BATCH, max_new_tokens=40)
    alone = Decoder(target, ModelDrafter(draft), make_rule("exact"), 4)
    if rows == 1:
        answers = [alone.generate([one], max_new_tokens=40)[0] for one in BATCH]
    assert [one.ids for one in answers] == [greedy(kind, tuple(one), 40) for one in BATCH]
    lengths = [length for one in answers for length in one.statistics.histogram]
    assert max(lengths) > 0 and len(set(lengths)) > 1  # unequal lengths leave holes


@pytest.mark.parametrize("kind", BY_SLOT)
@pytest.mark.parametrize("drafter", ["model", "lookup"])
def test_a_draft_needs_room_behind_the_answer(kind: str, drafter: str) -> None:
    """Their tables of distances end with the context, and a draft may run over the end of its answer."""
    target, draft = pair(kind)
    decoder = Decoder(target, ModelDrafter(draft) if drafter == "model" else PromptLookup(), make_rule("exact"), 8)
    long, short = prompts(CONTEXT - 28, 3)
    answers = decoder.generate([long, short], max_new_tokens=20)
    assert [one.ids for one in answers] == [greedy(kind, tuple(one), 20) for one in (long, short)]
    with pytest.raises(UserError, match="exceed the context"):
        decoder.generate([long, short], max_new_tokens=21)


@pytest.mark.parametrize("kind", BY_SLOT)
def test_their_context_is_known_and_trees_are_refused(kind: str) -> None:
    target = pair(kind)[0]
    assert context_of(target.config.get_text_config()) == CONTEXT
    with pytest.raises(UserError, match="exceed the context"):
        check_prompts([target], [CONTEXT - 10], 11)
    with pytest.raises(UserError, match="distances in slots"):
        attention_kinds(target)
