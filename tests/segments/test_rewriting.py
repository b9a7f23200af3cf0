"""Behind a refused segment the target writes its own: nothing is judged until that has ended."""

import pytest
import torch

from gistgate.core.decoder import Decoder
from gistgate.core.request import Slots
from gistgate.core.rule import Exact
from gistgate.core.utils import UserError
from gistgate.segments.build import segment_decoder
from gistgate.segments.judging import Constant, SegmentDraw, SegmentRule
from gistgate.segments.writing import Boundaries
from tests.architectures import pair
from tests.tiny import byte_tokenizer

TARGET, DRAFT = pair("llama", noise=0.06)
TOKENIZER = byte_tokenizer()
PROMPTS = [[5, 6, 7], [9, 30, 31, 32, 40], [80, 81]]
STYLE = "re:[a-zA-Z]$"  # random bytes: letters come often enough
NUM = 40
STRICT = SegmentRule(threshold=2.0)


class Watch:
    """Keeps (row, answer before, drafted tokens, accepted, judged) of every round."""

    layers, wants_q = (), False

    def __init__(self):
        self.rounds = []

    def __call__(self, block, acceptance, rows):
        for b, row in enumerate(rows):
            drafted = block.draft_ids[b][block.valid[b]].tolist()
            judged = bool(drafted) and float(block.gate_probs[b, 0]) > 0
            self.rounds.append((row.index, row.answer, drafted, int(acceptance.length[b]), judged))


def decode(rule, opinion, prompts=PROMPTS, seeds=None, slots=None, **parts):
    decoder = segment_decoder(
        TARGET, DRAFT, TOKENIZER, opinion, rule, style=STYLE, limit=8, replacement="segment", **parts
    )
    return decoder.generate(prompts, max_new_tokens=NUM, seeds=seeds, slots=slots)


def greedy():
    return [answer.ids for answer in Decoder(TARGET, None, Exact(), 0).generate(PROMPTS, max_new_tokens=NUM)]


@pytest.mark.parametrize("partial", [True, False])
def test_closed_it_writes_the_greedy_text(partial):
    answers = decode(SegmentRule(threshold=2.0, partial=partial), Constant(1.0))
    assert [answer.ids for answer in answers] == greedy()


def test_a_row_in_the_slot_of_a_finished_one_knows_nothing_of_its_segments():
    rule, opinion, seeds = SegmentDraw(), Constant(0.5), [4, 2, 3]
    together = decode(rule, opinion, seeds=seeds, slots=Slots(2))
    alone = [decode(rule, opinion, [prompt], [seed])[0] for prompt, seed in zip(PROMPTS, seeds, strict=True)]
    assert [(one.ids, one.reasons) for one in together] == [(one.ids, one.reasons) for one in alone]


def test_no_segment_is_judged_before_the_refused_one_was_replaced_to_its_end():
    watch, boundaries = Watch(), Boundaries(TOKENIZER, STYLE)
    decode(SegmentDraw(), Constant(0.5), seeds=[1, 2, 3], observer=watch)
    waited = 0
    for index in range(len(PROMPTS)):
        began = None
        for row, before, drafted, length, judged in watch.rounds:
            if row != index or not drafted:
                continue
            if began is not None and any(boundaries.ends(before[began:at]) for at in range(began + 1, len(before) + 1)):
                began = None
            finished = boundaries.ends(drafted)
            assert judged == (began is None and finished)
            waited += finished and not judged
            if began is None and not (judged and length == len(drafted)):
                began = len(before)
    assert waited > 0 and any(judged for *_, judged in watch.rounds)


def test_loose_tokens_stand_only_in_judged_segments_and_are_counted_exactly():
    watch = Watch()
    answers = decode(SegmentDraw(), Constant(0.5), seeds=[1, 2, 3], observer=watch)
    for index, answer in enumerate(answers):
        refused = strict_refusals(PROMPTS[index], answer)
        assert answer.statistics.loose == len(refused) == answer.reasons.count(1)
        assert [at for at, reason in enumerate(answer.reasons) if reason == 1] == refused
        allowed = {
            len(before) + at
            for row, before, _, length, judged in watch.rounds
            if row == index and judged
            for at in range(length)
        }
        assert set(refused) <= allowed
    assert sum(answer.statistics.loose for answer in answers) > 0


def strict_refusals(prompt, answer):
    """Places of the answer that the target alone would have written otherwise, told by reading it once more."""
    with torch.inference_mode():
        rows = TARGET(torch.tensor([[*prompt, *answer.ids]])).logits[0, len(prompt) - 1 : -1].argmax(-1).tolist()
    return [at for at, (token, best) in enumerate(zip(answer.ids, rows, strict=True)) if token != best]


def test_rows_do_not_see_each_other():
    together = decode(SegmentDraw(), Constant(0.5), seeds=[1, 2, 3])
    alone = [decode(SegmentDraw(), Constant(0.5), [p], [s])[0] for p, s in zip(PROMPTS, [1, 2, 3], strict=True)]
    assert [answer.ids for answer in together] == [answer.ids for answer in alone]


def test_the_targets_own_segments_cost_fewer_forwards_than_tokens():
    """The draft model goes on proposing while they are written, and the strict test keeps what agrees."""
    closed = decode(SegmentRule(threshold=2.0), Constant(1.0))
    assert sum(answer.statistics.forwards for answer in closed) < len(PROMPTS) * NUM


def test_the_compiled_engine_says_once_that_it_falls_back():
    parts = {"style": STYLE, "limit": 8}
    decoder = segment_decoder(TARGET, DRAFT, TOKENIZER, Constant(1), STRICT, engine="compiled", **parts)
    with pytest.warns(UserWarning, match="SegmentDrafter ends its drafts at a length that is not known") as said:
        answers = [decoder.generate(PROMPTS, max_new_tokens=NUM) for _ in range(2)]
    assert len(said) == 1
    assert [[answer.ids for answer in some] for some in answers] == [greedy()] * 2


def test_what_cannot_be_is_refused():
    request = {"style": STYLE, "limit": 8}
    with pytest.raises(UserError, match="no replacement 'line'"):
        segment_decoder(TARGET, DRAFT, TOKENIZER, Constant(1), SegmentRule(), replacement="line", **request)
