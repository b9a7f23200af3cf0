"""Segments in the ordinary loop: closed it is greedy, open it keeps finished segments, seeds decide the draws."""

from dataclasses import replace

import pytest
import torch

from gistgate.core.block import Block, Reason, Sampling
from gistgate.core.decoder import Decoder
from gistgate.core.rule import Exact
from gistgate.core.utils import UserError
from gistgate.segments.build import segment_decoder
from gistgate.segments.judging import NO_SEGMENT, Constant, MeanLogprob, SegmentDraw, SegmentRule, Semantic
from gistgate.segments.probes import Probe
from tests.architectures import pair
from tests.rules.enumerating import P, first_token
from tests.tiny import byte_tokenizer

TARGET, DRAFT = pair("llama", noise=0.06)
TOKENIZER = byte_tokenizer()
PROMPTS = [[5, 6, 7], [9, 30, 31, 32, 40], [80, 81]]
STYLE = "re:[a-m]$"  # random bytes: letters come often enough
STRICT = SegmentRule(threshold=2.0)


def decode(opinion, rule, prompts=PROMPTS, **request):
    decoder = segment_decoder(TARGET, DRAFT, TOKENIZER, opinion, rule, style=STYLE, limit=8)
    return decoder.generate(prompts, max_new_tokens=40, **request)


def plain(prompts=PROMPTS):
    return Decoder(TARGET, None, Exact(), 0).generate(prompts, max_new_tokens=40)


def probes():
    torch.manual_seed(3)
    return Semantic(Probe(32, 8), Probe(32, 8, "attention"))


@pytest.mark.parametrize("partial", [True, False])
def test_closed_it_writes_the_greedy_text(partial):
    answers = decode(Constant(1.0), SegmentRule(threshold=2.0, partial=partial))
    assert [answer.ids for answer in answers] == [answer.ids for answer in plain()]


def test_partial_acceptance_saves_forwards():
    """Without it a refused segment costs a forward per token, but for the first of an answer, which may be a match."""
    kept = sum(answer.statistics.forwards for answer in decode(Constant(1.0), STRICT))
    whole = decode(Constant(1.0), SegmentRule(threshold=2.0, partial=False))
    matches = sum(answer.reasons[0] == Reason.STRICT for answer in whole)
    assert kept < sum(answer.statistics.forwards for answer in whole) == 3 * 40 - matches


def test_plain_rounds_count_no_segments_of_the_request_before():
    """Above so many rows decoding is plain, and nothing is judged."""
    decoder = segment_decoder(
        TARGET, DRAFT, TOKENIZER, Constant(1.0), SegmentRule(threshold=0.5), style=STYLE, limit=8, speculate_up_to=1
    )
    assert decoder.generate(PROMPTS[:1], max_new_tokens=40)[0].statistics.extra["segments"] > 0
    for prompts in (PROMPTS, PROMPTS[:2]):
        answers = decoder.generate(prompts, max_new_tokens=40)
        assert [answer.ids for answer in answers] == [answer.ids for answer in plain(prompts)]
        assert not any(answer.statistics.extra.get("segments") for answer in answers)


def test_open_it_keeps_finished_segments_and_no_cut_ones():
    seen = []

    class Watch:
        layers, wants_q = (), False

        def __call__(self, block, acceptance, rows):
            for b, length in enumerate(acceptance.length.tolist()):
                drafted = block.draft_ids[b][block.valid[b]].tolist()
                seen.append((drafted, length, int(block.match[b].long().cumprod(-1).sum())))

    decoder = segment_decoder(
        TARGET, DRAFT, TOKENIZER, Constant(1.0), SegmentRule(threshold=0.5), style=STYLE, limit=8, observer=Watch()
    )
    decoder.generate(PROMPTS, max_new_tokens=40)
    ends = decoder.parts.drafter.boundaries.ends
    finished = [(ids, length) for ids, length, _ in seen if ends(ids)]
    cut = [(length, strict) for ids, length, strict in seen if not ends(ids)]
    assert finished and all(length == len(ids) for ids, length in finished)
    assert cut and all(length == strict for length, strict in cut)


def test_rows_do_not_see_each_other():
    together = decode(probes(), SegmentDraw(), seeds=[1, 2, 3])
    alone = [decode(probes(), SegmentDraw(), [p], seeds=[s])[0] for p, s in zip(PROMPTS, [1, 2, 3], strict=True)]
    assert [answer.ids for answer in together] == [answer.ids for answer in alone]


def test_a_seed_decides_the_draws_greedy_or_not():
    for sampling in (Sampling(), Sampling(temperature=0.8)):
        first, again, other = (
            [a.ids for a in decode(Constant(0.5), SegmentDraw(), seeds=[s] * 3, sampling=sampling)] for s in (7, 7, 8)
        )
        assert first == again != other


def test_the_shortcut_takes_finished_segments_among_the_targets_two_best():
    """Rows: second best tokens; a third best among them; second best, but cut by the limit."""
    logits = torch.tensor([3.0, 2.0, 1.0, 0.0]).expand(3, 3, 4)
    draft_ids = torch.tensor([[1, 0], [1, 2], [1, 1]])
    block = Block(draft_ids, torch.ones(3, 2, dtype=torch.bool), logits)
    for opinion in (0.5, 0.0):  # 0 is an opinion too: a score of 0, a pair that is not aligned
        judged = block.with_gate(lambda _, p=opinion: torch.tensor([[p, p], [p, p], [NO_SEGMENT, NO_SEGMENT]]))
        shortcut = SegmentRule(threshold=2.0, shortcut="top2").accept(judged, {})
        assert shortcut.tolist() == [[True, True], [False, False], [False, False]]
        assert not STRICT.accept(judged, {}).any()


def test_no_segment_passes_at_no_threshold_and_in_no_draw():
    block = Block(torch.zeros(2, 2, dtype=torch.long), torch.ones(2, 2, dtype=torch.bool), torch.zeros(2, 3, 4))
    block = replace(block, gate_probs=torch.tensor([[0.0, 0.0], [NO_SEGMENT] * 2]), uniforms=torch.zeros(2, 3))
    assert SegmentRule(threshold=0.0).accept(block, {}).tolist() == [[True, True], [False, False]]
    assert not SegmentDraw().accept(block, {}).any()


def test_the_shortcut_takes_segments_of_which_the_opinion_is_nothing():
    """The whole loop, every drafted token being the target's: an opinion of 0 does not stand for a cut segment."""
    rule = SegmentRule(threshold=2.0, shortcut="top2")
    decoder = segment_decoder(TARGET, TARGET, TOKENIZER, Constant(0.0), rule, style="re:.$", limit=8)
    for answer in decoder.generate(PROMPTS, max_new_tokens=40):
        assert 0 < answer.statistics.extra["segments"] == answer.statistics.extra["segments_passed"]


def test_a_token_ratio_inside_refused_segments_keeps_more():
    shorter = sum(a.statistics.forwards for a in decode(MeanLogprob(), SegmentRule(threshold=2.0, ratio=0.2)))
    assert shorter < sum(a.statistics.forwards for a in decode(MeanLogprob(), STRICT))


def test_a_token_gate_speaks_inside_refused_and_cut_segments():
    """It finds the first two tokens of a row harmless: these stay where the segment does not."""

    class FirstTwo:
        layers, wants_q = frozenset(), False

        def __call__(self, block):
            place = torch.arange(block.draft_ids.shape[1])
            return torch.where(place < 2, 0.95, 0.2).expand(block.draft_ids.shape)

    logits = torch.tensor([3.0, 2.0, 1.0, 0.0]).expand(2, 4, 4)
    block = Block(torch.full((2, 3), 2), torch.ones(2, 3, dtype=torch.bool), logits)
    decoder = segment_decoder(
        TARGET, DRAFT, TOKENIZER, Constant(0.7), STRICT, style=STYLE, limit=8, token_gate=FirstTwo(), risk=0.1
    )
    decoder.parts.drafter.lengths = [3, 0]
    judged = block.with_gate(decoder.parts.gate)
    assert judged.gate_probs[0].tolist() == pytest.approx([1.0, 1.0, 0.7])
    assert judged.gate_probs[1].tolist() == [1.0, 1.0, NO_SEGMENT]
    assert decoder.parts.gate.opinions.tolist() == pytest.approx([0.7, NO_SEGMENT])
    assert SegmentRule(threshold=0.8).accept(judged, {}).tolist() == [[True, True, False]] * 2
    assert SegmentRule(threshold=1.0).accept(judged, {}).tolist() == [[True, True, False]] * 2
    assert not STRICT.accept(judged, {}).any()  # above 1 the token gate has no say either
    assert SegmentRule(threshold=0.7 - 1e-6).accept(judged, {}).tolist() == [[True] * 3, [True, True, False]]


def test_the_mean_logprob_of_an_equal_draft_is_one():
    decoder = segment_decoder(TARGET, TARGET, TOKENIZER, MeanLogprob(), SegmentRule(), style=STYLE, limit=8)
    answers = decoder.generate(PROMPTS, max_new_tokens=40)
    assert [answer.ids for answer in answers] == [answer.ids for answer in plain()]


def test_a_remembered_text_is_resumed_by_ids():
    decoder = segment_decoder(TARGET, DRAFT, TOKENIZER, probes(), SegmentRule(threshold=0.5), style=STYLE, limit=8)
    whole = decoder.generate([PROMPTS[0]], max_new_tokens=24)[0].ids
    memory = decoder.remember([PROMPTS[0]])[0]
    resumed, _ = decoder.resume([memory], [(3, [])], [3], max_new_tokens=24)[0]
    assert resumed.ids == whole


@pytest.mark.parametrize("partial", [True, False])
def test_a_refused_segment_leaves_the_targets_distribution_alone(partial):
    class Refusing(SegmentRule):
        """With an opinion of one half, which is below its threshold."""

        def accept(self, block, state):
            return super().accept(block.with_gate(lambda b: torch.full(b.draft_ids.shape, 0.5)), state)

    torch.testing.assert_close(first_token(Refusing(threshold=0.9, partial=partial)), P)


def test_bad_settings_are_refused():
    for wrong in ({"threshold": -1}, {"shortcut": "top3"}, {"ratio": 0}):
        with pytest.raises(UserError, match="segment"):
            SegmentRule(**wrong)
    for kind in (SegmentRule, SegmentDraw):
        with pytest.raises(UserError, match="Leave one away"):
            kind(partial=False, ratio=0.5)
    rule = SegmentRule(partial=False)
    with pytest.raises(UserError, match="token gate"):
        segment_decoder(TARGET, DRAFT, TOKENIZER, Constant(1), rule, style=STYLE, limit=8, token_gate=Constant(1))
    with pytest.raises(UserError, match="is none"):
        segment_decoder(TARGET, DRAFT, TOKENIZER, Constant(1), STRICT, style=STYLE, limit=1)
    with pytest.raises(UserError, match="width"):
        decode(Semantic(Probe(16, 8)), SegmentRule())
