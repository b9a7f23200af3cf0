"""Where segments end, whatever the tokenizer cuts the text into; behind a refused one the target
writes its own.
"""

import pytest
import torch

from gistgate.core.block import Sampling
from gistgate.core.utils import UserError
from gistgate.segments.judging import SegmentDraw
from gistgate.segments.writing import Boundaries
from tests.segments.deciding import (
    NUM,
    PROMPTS,
    SEEDS,
    STRICT,
    STYLE,
    TARGET,
    TOKENIZER,
    Constant,
    Watch,
    decode,
    decoder,
    greedy,
    texts,
    writer,
)


@pytest.mark.parametrize(
    ("style", "pieces"),
    [
        ("blank-line", ["one\ntwo\n\n", "three"]),
        ("sentence", ["It is 3.5 now.", " Then!", "\nSo"]),
        ("sentence", ["It has 82.\n", "#"]),
        ("step", ["a\n", "b\n"]),
        ("re:;$", ["a;", "b"]),
    ],
)
def test_segments_are_told_from_text(style, pieces):
    ids = TOKENIZER.encode("".join(pieces), add_special_tokens=False)
    assert [
        TOKENIZER.decode(segment) for segment in Boundaries(TOKENIZER, style).cut(ids)
    ] == pieces


@pytest.mark.parametrize("style", ["paragraph", "re:("])
def test_an_unknown_style_is_refused_with_a_remedy(style):
    with pytest.raises(UserError, match=r"segment style .*(Use|Correct)"):
        Boundaries(TOKENIZER, style)


def test_behind_a_text_that_fills_the_context_no_step_is_written():
    write = writer().write
    context = TARGET.config.max_position_embeddings
    full, nearly = ([7] * length for length in (context, context - 3))
    assert write([full], [0], Sampling(), [0]) == [([], False)]
    ((ids, _),) = write([nearly], [0], Sampling(), [0])
    assert 1 <= len(ids) <= 3


def rewritten():
    """Answers and rounds where the target writes its own segment in place of a refused one."""
    watch = Watch()
    drawn = {"request": {"seeds": SEEDS}, "replacement": "segment", "observer": watch}
    return decode(Constant(0.5), SegmentDraw(), **drawn), watch.rounds


def test_no_segment_is_judged_before_the_refused_one_was_replaced_to_its_end():
    boundaries, (_, rounds) = Boundaries(TOKENIZER, STYLE), rewritten()
    waited = 0
    for index in range(len(PROMPTS)):
        began = None
        for row, before, drafted, length, _, judged in rounds:
            if row != index or not drafted:
                continue
            if began is not None and any(
                boundaries.ends(before[began:at]) for at in range(began + 1, len(before) + 1)
            ):
                began = None
            finished = boundaries.ends(drafted)
            assert judged == (began is None and finished)
            waited += finished and not judged
            if began is None and not (judged and length == len(drafted)):
                began = len(before)
    assert waited > 0 and any(judged for *_, judged in rounds)


def test_loose_tokens_stand_only_in_judged_segments_and_are_counted_exactly():
    answers, rounds = rewritten()
    for index, (prompt, answer) in enumerate(zip(PROMPTS, answers, strict=True)):
        with (
            torch.inference_mode()
        ):  # what the target alone would have written otherwise, told by reading it again
            logits = TARGET(torch.tensor([[*prompt, *answer.ids]])).logits[0, len(prompt) - 1 : -1]
        best = zip(answer.ids, logits.argmax(-1).tolist(), strict=True)
        refused = [at for at, (token, other) in enumerate(best) if token != other]
        assert answer.statistics.loose == len(refused) == answer.reasons.count(1)
        assert [at for at, reason in enumerate(answer.reasons) if reason == 1] == refused
        judged = [
            (len(before), length)
            for row, before, _, length, _, judged in rounds
            if row == index and judged
        ]
        assert set(refused) <= {begin + at for begin, length in judged for at in range(length)}
    assert sum(answer.statistics.loose for answer in answers) > 0


def test_the_compiled_engine_says_once_that_it_falls_back():
    made = decoder(Constant(1), STRICT, engine="compiled")
    with pytest.warns(
        UserWarning, match="SegmentDrafter asks its model in a way of its own"
    ) as said:
        answers = [texts(made.generate(PROMPTS, max_new_tokens=NUM)) for _ in range(2)]
    assert len(said) == 1 and answers == [greedy()] * 2
