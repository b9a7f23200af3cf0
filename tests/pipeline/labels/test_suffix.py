"""Suffix labels are what reading every candidate again finds."""

from types import SimpleNamespace

import pytest
import torch

from gistgate.core.decoder import Decoder
from gistgate.core.rule import Exact
from pipeline.labels.schema import AnswerText
from pipeline.labels.suffix import SuffixLabeller, Text
from pipeline.stages.label import suffix_labels
from tests.pipeline.parameters import block
from tests.tiny import byte_tokenizer, tiny_pair

EOS = 258
WINDOW = 4
PROMPTS = [[5, 9, 7], [11, 3], [200, 30, 31, 32, 33]]


@pytest.fixture(scope="module")
def models():
    return tiny_pair(noise=0.6)


@pytest.fixture(scope="module")
@torch.no_grad()
def texts(models):
    """Three texts of the target with their mismatches; the first ends, its limit cuts another."""
    target, draft = models
    answers = Decoder(target, None, Exact(), 0).generate(PROMPTS, max_new_tokens=14)
    answers[0].ids[-1] = EOS
    texts = []
    for prompt, answer in zip(PROMPTS, answers):
        choices = draft(torch.tensor([prompt + answer.ids])).logits[0].argmax(-1).tolist()
        first = len(prompt) - 1
        at = [n for n, token in enumerate(answer.ids) if token != choices[first + n]]
        texts.append(Text(prompt, answer.ids, at, [choices[first + n] for n in at]))
    return texts


@pytest.fixture(scope="module")
def losses(models, texts):
    return SuffixLabeller(models[0], 259, [EOS], window=WINDOW).losses(texts, tokens=400)


@torch.no_grad()
def logprob(model, prefix, tokens):
    """ln p of tokens behind a prefix, read without cache or batch."""
    logits = model(torch.tensor([[*prefix, *tokens]])).logits[0, len(prefix) - 1 : -1]
    return float(logits.log_softmax(-1).gather(-1, torch.tensor(tokens)[:, None]).sum())


def expected_loss(target, text, at, z):
    """The label of a mismatch, every candidate read on its own."""
    front = text.prompt + text.answer[:at]
    ahead = text.answer[at + 1 : at + 4]
    starts = [at + 1, at, *([at + 2 + ahead.index(z)] if z in ahead else [])]
    lost = []
    for start in starts:
        tokens = text.answer[start : start + WINDOW]
        if tokens:
            before = logprob(target, text.prompt + text.answer[:start], tokens)
            lost.append(before - logprob(target, [*front, z], tokens))
    ratio = logprob(target, front, [text.answer[at]]) - logprob(target, front, [z])
    return min(lost) + ratio


def test_labels_are_what_reading_again_finds(models, texts, losses):
    num = 0
    for text, loss in zip(texts, losses):
        usable = len(text.answer) - (0 if text.answer[-1] == EOS else WINDOW)
        for at, z, label in zip(text.at, text.z, loss):
            if z == EOS or at >= usable:
                assert label.isnan()
            else:
                assert float(label) == pytest.approx(
                    expected_loss(models[0], text, at, z), abs=1e-4
                )
                num += 1
    assert num > 8


def test_alignments_need_text_behind_them(models):
    labeller = SuffixLabeller(models[0], 259, [EOS], window=2)
    continuations = labeller.continuations(Text([1], [1, 2, 3, 4, 7, 5, 6, EOS], [2, 7], [7, 9]))
    assert [(entry.mismatch, entry.start, entry.tokens) for entry in continuations] == [
        (0, 3, [4, 7]),
        (0, 2, [3, 4]),
        (0, 5, [5, 6]),
        (1, 7, [EOS]),  # nothing follows the last token
    ]


def test_the_stage_labels_refused_tokens_by_the_loss_behind_them(models, texts, losses):
    loss = torch.cat(losses)
    nats = float(loss[loss.isfinite()].median())
    settings = block("label", recipe="suffix", window=WINDOW, nats=nats, batch_size=64)
    pair = SimpleNamespace(target=models[0], tokenizer=byte_tokenizer())
    pair.tokenizer.eos_token = pair.tokenizer.convert_ids_to_tokens(EOS)
    rows = []
    answers = {}
    for problem, text in enumerate(texts):
        answers[problem, 2] = AnswerText(problem, 2, text.answer)
        rows += [(problem, at, z, text.answer[at]) for at, z in zip(text.at, text.z)]
    names = ("problem", "position", "draft_id", "target_id")
    records = dict(zip(names, torch.tensor(rows).T.contiguous()))
    records["policy"] = torch.full_like(records["problem"], 2)
    records["accepted"] = torch.zeros(len(rows))
    records["target_id"][0] += 1  # an accepted token: the target's own does not follow the text
    labels = suffix_labels(
        SimpleNamespace(label=settings), pair, [{"ids": ids} for ids in PROMPTS], records, answers
    )
    labelled = loss.isfinite() & (torch.arange(len(loss)) > 0)
    assert torch.equal(labels["position"], records["position"][labelled])
    assert "accepted" not in labels
    kept = (loss[labelled] <= nats).tolist()
    assert labels["kept"].tolist() == labels["greedy_kept"].tolist() == kept
