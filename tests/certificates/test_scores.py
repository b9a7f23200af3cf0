"""Scores: the task's metric, the target's log-probability, cut answers, and a judge that is asked
in both orders.
"""

from types import SimpleNamespace

import pytest
import torch

from gistgate.certificates.outcomes import (
    MOST_LOST,
    WORSE,
    Capped,
    LogProbability,
    PairwiseJudge,
    TaskScore,
)
from tests.tiny import byte_tokenizer, tiny_pair


class Reader:
    """A judge that finds the answer with an exclamation mark better, and keeps what it
    read.
    """

    device = torch.device("cpu")

    def __init__(self) -> None:
        self.texts: list[str] = []

    def __call__(self, input_ids: torch.Tensor) -> SimpleNamespace:
        text = byte_tokenizer().decode(input_ids[0], skip_special_tokens=True)
        self.texts.append(text)
        logits_BTV = torch.zeros(1, input_ids.shape[1], 259)
        first = text[text.index("Answer A") : text.index("Answer B")]
        logits_BTV[0, -1, byte_tokenizer().encode("A" if "!" in first else "B")[-1]] = 1.0
        return SimpleNamespace(logits=logits_BTV)


def test_a_judge_reads_request_and_answers_and_says_a_or_b():
    reader = Reader()
    tokenizer = byte_tokenizer()
    judge = PairwiseJudge(SimpleNamespace(model=reader, tokenizer=tokenizer), tokenizer)
    plain = tokenizer.encode("four")
    loud = tokenizer.encode("four!")
    prompts = [{"context": "2 + 2?"}]
    # an end of text is not shown
    assert judge.differences(prompts, [[*loud, 2]], [plain]).tolist() == [1.0]
    assert judge.differences(prompts, [plain], [loud]).tolist() == [-1.0]
    orders = [("four!", "four"), ("four", "four!")]
    for text, (first, second) in zip(reader.texts, orders, strict=False):
        parts = ("Request:\n2 + 2?\n", f"Answer A:\n{first}\n", f"Answer B:\n{second}\n")
        places = [text.index(part) for part in parts]
        assert places == sorted(places) and text.endswith("The better answer is")
    assert len(reader.texts) == 4
    # a judge that always says B says nothing
    assert judge.differences(prompts, [plain], [plain[:2]]).tolist() == [0.0]


@pytest.mark.parametrize("size", [1, 3, 32])
def test_log_probabilities_do_not_depend_on_the_rows_beside_them(size, monkeypatch):
    # a random model finds all tokens improbable
    monkeypatch.setattr("gistgate.certificates.outcomes.CLIP", 10.0)
    model, _ = tiny_pair()
    score = LogProbability(model, batch_size=size)
    sizes = ((1, 1), (5, 3), (2, 7), (9, 2))
    texts = [([3 + p + i for i in range(p)], [50 + p + i for i in range(a)]) for p, a in sizes]
    singly = []
    for prompt, answer in texts:
        with torch.no_grad():
            logp_TV = model(torch.tensor([prompt + answer])).logits[0].log_softmax(-1)
        places = range(len(prompt) - 1, len(prompt) + len(answer) - 1)
        singly.append(float(logp_TV[places, answer].mean()))
    assert score.means(texts) == pytest.approx(singly, abs=1e-5)
    assert score.means([([3, 4], []), texts[1]]) == [WORSE, pytest.approx(singly[1], abs=1e-5)]
    prompts = [{"ids": prompt} for prompt, _ in texts]
    answers = [answer for _, answer in texts]
    # an empty answer is as bad as the worst
    d = score.differences(prompts, answers, [[], answers[1], [], []])
    expected = [1 + mean / 10 for mean in singly]
    expected[1] = 0.0
    assert d == pytest.approx(expected, abs=1e-5)
    others = [answers[0], answers[1], answers[2][:3], []]
    lost = score.losses(prompts, answers, others)
    shorter = score.means([(prompts[2]["ids"], others[2])])[0]
    expected = [0, 0, min(max(singly[2] - shorter, -MOST_LOST), MOST_LOST), MOST_LOST]
    assert lost == pytest.approx(expected, abs=1e-5)
    monkeypatch.delattr(LogProbability, "means")  # nothing is read twice
    assert score.losses(prompts, answers, others).tolist() == lost.tolist()


def test_an_answer_is_cut_where_it_is_as_long_as_it_may_be():
    prompts = [{"max_new_tokens": limit} for limit in (2, 2, 2, 2, 1)]
    strict = [[5], [5, 6], [5], [5, 6], [5]]
    loose = [[5], [5], [5, 6], [5, 7], []]
    assert Capped().differences(prompts, strict, loose).tolist() == [0.0, -1.0, 1.0, 0.0, -1.0]


class Sums:
    """A task that scores the share of right letters, and keeps what it scored."""

    def __init__(self) -> None:
        self.scored: list[str] = []

    def text(self, tokenizer, ids):
        return tokenizer.decode(ids)

    def score(self, doc, text):
        self.scored.append(text)
        return float(text == doc["right"])


def test_only_answers_that_differ_are_scored():
    task = Sums()
    tokenizer = byte_tokenizer(bos=False)
    right = tokenizer.encode("4")
    wrong = tokenizer.encode("5")
    prompts = [{"doc": {"right": "4"}}] * 4
    d = TaskScore(task, tokenizer).differences(
        prompts, [right, right, wrong, wrong], [right, wrong, right, wrong]
    )
    assert d.tolist() == [0.0, 1.0, -1.0, 0.0]
    assert task.scored == ["4", "5", "5", "4"]
