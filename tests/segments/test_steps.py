"""Steps judged without probes: what each is asked, what that costs, and which steps are asked about at all."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

from gistgate.core.decoder import Decoder
from gistgate.core.request import eos_ids
from gistgate.core.rule import Exact
from gistgate.core.utils import UserError
from gistgate.measure.trace import trace
from gistgate.segments.build import segment_decoder
from gistgate.segments.judging import Constant, Pair, Reward, Score, SegmentRule, same_numbers
from gistgate.segments.writing import Boundaries, SegmentWriter
from tests.architectures import pair
from tests.tiny import byte_tokenizer

TARGET, DRAFT = pair("llama", noise=0.06)
TOKENIZER = byte_tokenizer()
PROMPTS = [[5, 6, 7], [9, 30, 31, 32, 40], [80, 81]]
STYLE, LIMIT, NUM = "re:[a-zA-Z]$", 8, 40


def decode(opinion, rule, **parts):
    decoder = segment_decoder(TARGET, DRAFT, TOKENIZER, opinion, rule, style=STYLE, limit=LIMIT, **parts)
    return decoder.generate(PROMPTS, max_new_tokens=NUM)


def own(judge=lambda a, b: 0.0):
    boundaries = Boundaries(TOKENIZER, STYLE, eos_ids(TARGET, TOKENIZER))
    return Pair(SegmentWriter(TARGET, TOKENIZER, boundaries, LIMIT), judge)


def greedy():
    return [answer.ids for answer in Decoder(TARGET, None, Exact(), 0).generate(PROMPTS, max_new_tokens=NUM)]


def drafted(text, steps):
    """A block and drafter as a judge sees them: the first step is finished, the second was cut."""
    ids = torch.tensor(steps)
    block = SimpleNamespace(valid=torch.ones_like(ids, dtype=torch.bool), draft_ids=ids, logits=torch.zeros(1))
    return block, SimpleNamespace(lengths=[ids.shape[1], 0], texts=[text, text])


@pytest.mark.parametrize("expected", [False, True])
def test_a_score_is_what_the_target_says_behind_text_and_step(expected):
    opinion = Score(TARGET, TOKENIZER, "good?", expected)
    got = opinion.score(*drafted([5, 6], [[70, 71], [72, 73]]))
    asked = [5, 6, 70, 71, *TOKENIZER.encode("good?", add_special_tokens=False)]
    with torch.inference_mode():
        z = TARGET(torch.tensor([asked])).logits[0, -1]
    digits = [TOKENIZER.convert_tokens_to_ids(str(digit)) for digit in range(10)]
    mean = float((z.softmax(-1)[digits] * torch.arange(10)).sum() / z.softmax(-1)[digits].sum())
    digit = digits.index(int(z.argmax())) if int(z.argmax()) in digits else 0
    assert got.tolist() == pytest.approx([(mean if expected else digit) / 9, 0.0], abs=1e-5)
    assert opinion.spent == [1, 0] and opinion.notes[0].startswith("score_") and opinion.notes[1] is None


def test_a_question_beyond_the_context_reads_the_end_of_the_text():
    opinion = Score(TARGET, TOKENIZER, "good?", expected=True)
    room = TARGET.config.max_position_embeddings - len(opinion.question) - 2
    whole, longer = ([9] * more + [5, 6] * (room // 2) for more in (room % 2, room % 2 + 40))
    scores = [float(opinion.score(*drafted(text, [[70, 71], [72, 73]]))[0]) for text in (whole, longer)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-5) and scores[0] > 0


def test_scoring_forwards_count_and_scores_are_noted():
    closed = decode(Score(TARGET, TOKENIZER), SegmentRule(threshold=2.0))
    without = decode(Constant(1.0), SegmentRule(threshold=2.0))
    assert [answer.ids for answer in closed] == [answer.ids for answer in without] == greedy()
    for scored, other in zip(closed, without, strict=True):
        segments = scored.statistics.extra["segments"]
        assert segments > 0 and scored.statistics.forwards == other.statistics.forwards + segments
        assert sum(count for name, count in scored.statistics.extra.items() if name.startswith("score_")) == segments


def test_whoever_watches_sees_the_same_counts():
    closed = segment_decoder(
        TARGET, DRAFT, TOKENIZER, Score(TARGET, TOKENIZER), SegmentRule(threshold=2.0), style=STYLE, limit=8
    )
    counted = closed.generate(PROMPTS[:1], max_new_tokens=NUM)[0].statistics
    answer, tokens = trace(closed, PROMPTS[0], TOKENIZER, max_new_tokens=NUM)
    assert answer.statistics.as_dict(timed=False) == counted.as_dict(timed=False) and len(tokens) == len(answer.ids)


def test_behind_a_text_that_fills_the_context_no_step_is_written():
    writer = own().writer
    context = TARGET.config.max_position_embeddings
    full, nearly = ([7] * length for length in (context, context - 3))
    assert [(one.ids, one.finished) for one in writer.write([full], [0])] == [([], False)]
    (one,) = writer.write([nearly], [0])
    assert 1 <= len(one.ids) <= 3


def test_what_is_kept_is_counted():
    for answer in decode(Constant(1.0), SegmentRule(threshold=0.5)):
        found = answer.statistics.extra
        assert 0 < found["segments"] == found["segments_passed"] >= found["segments_kept"] > 0
    for answer in decode(Constant(0.4), SegmentRule(threshold=0.5)):
        assert answer.statistics.extra["segments_passed"] == 0


def test_what_passes_is_counted_by_the_opinion_alone():
    """Every token is harmless to this gate, or near enough: all segments stay but the first, whose first token
    is the target's, and the opinion passes none."""

    class Sure:
        layers, wants_q = frozenset(), False

        def __call__(self, block):
            return torch.ones(block.draft_ids.shape)

    rule = SegmentRule(threshold=1.0)
    for found in decode(Constant(0.0), rule, token_gate=Sure()), decode(Constant(0.0), replace(rule, ratio=1e-30)):
        counted = [answer.statistics.extra for answer in found]
        assert all(one["segments_kept"] >= one["segments"] - 1 > 0 == one["segments_passed"] for one in counted)


def reward(labels, bias):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = BertForSequenceClassification(BertConfig(vocab_size=len(TOKENIZER), num_labels=labels, **sizes))
    with torch.no_grad():
        model.classifier.bias[-1] += bias
    return Reward(model, TOKENIZER, TOKENIZER)


@pytest.mark.parametrize("labels", [1, 2])
def test_a_reward_model_decides(labels):
    block, drafter = drafted([5, 6], [[70, 71], [72, 73]])
    high, low = (float(reward(labels, bias).score(block, drafter)[0]) for bias in (20.0, -20.0))
    assert high > 0.99 and low < 0.01
    assert [a.ids for a in decode(reward(labels, -20.0), SegmentRule(threshold=0.7))] == greedy()


def test_a_long_text_keeps_its_end():
    """The step that is judged stands there."""
    judge = reward(1, 0.0)
    judge.tokenizer.model_max_length = 6
    short, long = (judge._inputs(text)["input_ids"][0].tolist() for text in ("Tom has", "Anna and Tom has"))
    assert len(long) == 6 and long[-3:] == short[-3:] and TOKENIZER.truncation_side == "right"


def test_equal_own_steps_pass_and_cost_a_forward_per_token():
    answers = decode(own(), SegmentRule(threshold=0.5))
    assert [answer.ids for answer in answers] == greedy()
    without = decode(Constant(0.0), SegmentRule(threshold=0.5))
    assert all(a.statistics.forwards > b.statistics.forwards for a, b in zip(answers, without, strict=True))
    assert any(answer.statistics.extra["segments_passed"] for answer in answers)


def test_other_own_steps_are_compared_by_the_judge():
    said = []
    loose = decode(own(lambda a, b: said.append((a, b)) or 1.0), SegmentRule(threshold=0.5))
    assert said and all(a.lower().split() != b.lower().split() for a, b in said)
    assert sum(answer.statistics.loose for answer in loose) > 0


def test_numbers_are_compared_in_order():
    assert same_numbers("took 2, so 3 + 4", "lost 2: 3+4 now") == 1.0
    assert same_numbers("3 + 4", "4 + 3") == same_numbers("none", "1") == 0.0


def test_what_cannot_judge_is_refused():
    with pytest.raises(UserError, match="one label or two"):
        reward(3, 0.0)
    words = SimpleNamespace(encode=lambda text, add_special_tokens: [1, 2])
    with pytest.raises(UserError, match="one digit"):
        Score(TARGET, words)
