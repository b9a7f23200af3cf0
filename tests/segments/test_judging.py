"""Segments in the ordinary loop: closed it is greedy, open it keeps finished segments, seeds decide
the draws.
"""

from types import SimpleNamespace

import pytest
import torch

from gistgate.core.block import Block, Sampling
from gistgate.core.request import Slots
from gistgate.core.utils import UserError
from gistgate.measure.trace import trace
from gistgate.segments.judging import (
    NO_SEGMENT,
    MeanLogprob,
    Score,
    SegmentDraw,
    SegmentRule,
    Semantic,
)
from gistgate.segments.probes import Probe
from gistgate.segments.writing import Boundaries
from tests.rules.enumerating import P, first_token
from tests.segments.deciding import (
    NUM,
    PROMPTS,
    SEEDS,
    STRICT,
    TARGET,
    TOKENIZER,
    Constant,
    Watch,
    decode,
    decoder,
    greedy,
    texts,
)


class Says:
    """A token gate that finds the first `num` tokens of a row harmless and doubts the others."""

    layers, wants_q = frozenset(), False

    def __init__(self, probability, num=10**6):
        self.probability, self.num = probability, num

    def __call__(self, block):
        place = torch.arange(block.draft_ids.shape[1])
        return torch.where(place < self.num, self.probability, 0.2).expand(block.draft_ids.shape)


def probes():
    torch.manual_seed(3)
    return Semantic(Probe(32, 8), Probe(32, 8, "attention"))


@pytest.mark.parametrize("replacement", ["token", "segment"])
def test_closed_it_writes_the_greedy_text(replacement):
    assert texts(decode(Constant(1.0), STRICT, replacement=replacement)) == greedy()


def test_open_it_keeps_finished_segments_and_no_cut_ones():
    watch, style = Watch(), "re:[a-m]$"
    decode(Constant(1.0), SegmentRule(threshold=0.5), observer=watch, style=style)
    ends = Boundaries(TOKENIZER, style).ends
    finished = [(ids, length) for _, _, ids, length, *_ in watch.rounds if ends(ids)]
    cut = [(length, strict) for _, _, ids, length, strict, _ in watch.rounds if not ends(ids)]
    assert finished and all(length == len(ids) for ids, length in finished)
    assert cut and all(length == strict for length, strict in cut)


@pytest.mark.parametrize("replacement", ["token", "segment"])
def test_rows_do_not_see_each_other(replacement):
    """Neither beside each other nor one after the other in the same slot."""

    def drawn(prompts, seeds, **request):
        answers = decode(
            probes(), SegmentDraw(), prompts, {"seeds": seeds, **request}, replacement=replacement
        )
        return [(answer.ids, answer.reasons) for answer in answers]

    alone = [drawn([prompt], [seed])[0] for prompt, seed in zip(PROMPTS, SEEDS, strict=True)]
    assert drawn(PROMPTS, SEEDS) == drawn(PROMPTS, SEEDS, slots=Slots(2)) == alone


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.8)])
def test_a_seed_decides_the_draws_greedy_or_not(sampling):
    request = {"sampling": sampling}
    first, again, other = (
        texts(decode(Constant(0.5), SegmentDraw(), request={**request, "seeds": [seed] * 3}))
        for seed in (7, 7, 8)
    )
    assert first == again != other


def test_the_shortcut_takes_finished_segments_among_the_targets_two_best():
    """Rows: second best tokens; a third best among them; second best, but cut by the limit."""
    logits = torch.tensor([3.0, 2.0, 1.0, 0.0]).expand(3, 3, 4)
    draft_ids = torch.tensor([[1, 0], [1, 2], [1, 1]])
    block = Block(draft_ids, torch.ones(3, 2, dtype=torch.bool), logits)
    for opinion in (0.5, 0.0):  # a score of 0 is an opinion, too
        judged = block.with_gate(
            lambda _, p=opinion: torch.tensor([[p, p], [p, p], [NO_SEGMENT, NO_SEGMENT]])
        )
        shortcut = SegmentRule(threshold=2.0, shortcut="top2").accept(judged)
        assert shortcut.tolist() == [[True, True], [False, False], [False, False]]
        assert not STRICT.accept(judged).any()


def test_an_equal_draft_has_mean_logprob_one():
    assert texts(decode(MeanLogprob(), SegmentRule(), draft=TARGET)) == greedy()


def test_a_token_gate_speaks_inside_refused_and_cut_segments():
    logits = torch.tensor([3.0, 2.0, 1.0, 0.0]).expand(2, 4, 4)
    block = Block(torch.full((2, 3), 2), torch.ones(2, 3, dtype=torch.bool), logits)
    parts = decoder(Constant(0.7), STRICT, token_gate=Says(0.95, 2), risk=0.1).parts
    parts.drafter.lengths = [3, 0]
    judged = block.with_gate(parts.gate)
    assert judged.gate_probs[0].tolist() == pytest.approx([1.0, 1.0, 0.7])
    assert judged.gate_probs[1].tolist() == [1.0, 1.0, NO_SEGMENT]
    assert parts.gate.opinions.tolist() == pytest.approx([0.7, NO_SEGMENT])
    for threshold in (0.8, 1.0):
        assert SegmentRule(threshold=threshold).accept(judged).tolist() == [[True, True, False]] * 2
    assert not STRICT.accept(judged).any()  # above 1 the token gate has no say either
    assert SegmentRule(threshold=0.7 - 1e-6).accept(judged).tolist() == [
        [True] * 3,
        [True, True, False],
    ]


def test_a_remembered_text_is_resumed_by_ids():
    made = decoder(probes(), SegmentRule(threshold=0.5))
    whole = made.generate([PROMPTS[0]], max_new_tokens=24)[0].ids
    resumed, _ = made.resume([made.remember([PROMPTS[0]])[0]], [(3, [])], [3], max_new_tokens=24)[0]
    assert resumed.ids == whole


def test_a_refused_segment_leaves_the_targets_distribution_alone():
    class Refusing(SegmentRule):
        """With an opinion of one half, which is below its threshold."""

        def accept(self, block):
            return super().accept(block.with_gate(lambda b: torch.full(b.draft_ids.shape, 0.5)))

    torch.testing.assert_close(first_token(Refusing(threshold=0.9)), P)


def drafted(text, steps):
    """A block and drafter as a judge sees them: the first step is finished, the second was cut."""
    ids = torch.tensor(steps)
    block = SimpleNamespace(
        valid=torch.ones_like(ids, dtype=torch.bool), draft_ids=ids, logits=torch.zeros(1)
    )
    return block, SimpleNamespace(lengths=[ids.shape[1], 0], texts=[text, text])


def test_a_score_is_what_the_target_says_behind_text_and_step():
    opinion = Score(TARGET, TOKENIZER)
    got = opinion.score(*drafted([5, 6], [[70, 71], [72, 73]]))
    asked = [5, 6, 70, 71, *TOKENIZER.encode(Score.QUESTION, add_special_tokens=False)]
    with torch.inference_mode():
        best = int(TARGET(torch.tensor([asked])).logits[0, -1].argmax())
    digits = [TOKENIZER.convert_tokens_to_ids(str(digit)) for digit in range(10)]
    digit = digits.index(best) if best in digits else None
    assert got.tolist() == pytest.approx([(digit or 0) / 9, 0.0], abs=1e-5)
    assert opinion.found == {0: digit}


def test_scoring_forwards_count_and_whoever_watches_sees_the_same():
    made = decoder(Score(TARGET, TOKENIZER), STRICT)
    closed, without = made.generate(PROMPTS, max_new_tokens=NUM), decode(Constant(1.0), STRICT)
    assert texts(closed) == texts(without) == greedy()
    for scored, other in zip(closed, without, strict=True):
        extra = scored.statistics.extra
        scores = sum(count for name, count in extra.items() if name.startswith("score_"))
        assert scores > 0 and scored.statistics.forwards == other.statistics.forwards + scores
    alone = made.generate(PROMPTS[:1], max_new_tokens=NUM)[0].statistics.as_dict(timed=False)
    answer, tokens = trace(made, PROMPTS[0], TOKENIZER, max_new_tokens=NUM)
    assert answer.statistics.as_dict(timed=False) == alone and len(tokens) == len(answer.ids)


def test_what_cannot_be_is_refused():
    for wrong in ({"threshold": -1}, {"shortcut": "top3"}):
        with pytest.raises(UserError, match="segment"):
            SegmentRule(**wrong)
    words = SimpleNamespace(encode=lambda text, add_special_tokens: [1, 2])
    for refused, said in (
        (lambda: decoder(Constant(1), STRICT, limit=1), "is none"),
        (
            lambda: decoder(Constant(1), STRICT, replacement="line"),
            "no replacement of a refused segment",
        ),
        (lambda: Score(TARGET, words), "one digit"),
    ):
        with pytest.raises(UserError, match=said):
            refused()
