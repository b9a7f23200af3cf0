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

EOS, WINDOW = 258, 4


@pytest.fixture(scope="module")
def made():
    """A target, three of its texts (one of them cut by its limit) with their mismatches, and the
    labels of these.
    """
    target, draft = tiny_pair(noise=0.6)
    prompts = [[5, 9, 7], [11, 3], [200, 30, 31, 32, 33]]
    answers = [
        one.ids for one in Decoder(target, None, Exact(), 0).generate(prompts, max_new_tokens=14)
    ]
    answers[0][-1] = EOS
    texts = []
    for prompt, answer in zip(prompts, answers, strict=True):
        with torch.no_grad():
            z = (
                draft(torch.tensor([[*prompt, *answer]]))
                .logits[0]
                .argmax(-1)
                .tolist()[len(prompt) - 1 :]
            )
        at = [place for place, token in enumerate(answer) if token != z[place]]
        texts.append(Text(prompt, answer, at, [z[place] for place in at]))
    return (
        target,
        texts,
        SuffixLabeller(target, 259, [EOS], window=WINDOW).losses(texts, tokens=400),
    )


def logprob(model, prefix, tokens):
    """ln p of tokens behind a prefix, read without cache or batch."""
    with torch.no_grad():
        logits = model(torch.tensor([[*prefix, *tokens]])).logits[0, len(prefix) - 1 : -1]
    return float(logits.log_softmax(-1).gather(-1, torch.tensor(tokens)[:, None]).sum())


def test_labels_are_what_reading_again_finds(made):
    target, texts, labels = made
    for text, losses in zip(texts, labels, strict=True):
        usable = len(text.answer) - (0 if text.answer[-1] == EOS else WINDOW)
        for at, z, found in zip(text.at, text.z, losses.tolist(), strict=True):
            if z == EOS or at >= usable:
                assert found != found
                continue
            whole = [*text.prompt, *text.answer]
            y, before, ahead = (
                text.answer[at],
                whole[: len(text.prompt) + at],
                text.answer[at + 1 : at + 4],
            )
            starts = [at + 1, at, *([at + 2 + ahead.index(z)] if z in ahead else [])]
            lost = []
            for start in starts:
                if tokens := text.answer[start : start + WINDOW]:
                    own = logprob(target, whole[: len(text.prompt) + start], tokens)
                    lost.append(own - logprob(target, [*before, z], tokens))
            ratio = logprob(target, before, [y]) - logprob(target, before, [z])
            assert found == pytest.approx(min(lost) + ratio, abs=1e-4)
    assert sum(int(losses.isfinite().sum()) for losses in labels) > 8


def test_alignments_need_text_behind_them(made):
    labeller = SuffixLabeller(made[0], 259, [EOS], window=2)
    found = labeller.candidates(Text([1], [1, 2, 3, 4, 7, 5, 6, EOS], [2, 7], [7, 9]))
    assert [(one.start, one.tokens) for one in found if not one.mismatch] == [
        (3, [4, 7]),
        (2, [3, 4]),
        (5, [5, 6]),
    ]
    assert [(one.start, one.tokens) for one in found if one.mismatch] == [
        (7, [EOS])
    ]  # nothing follows the last token


def test_the_stage_labels_refused_tokens_by_the_loss_behind_them(made):
    target, texts, labels = made
    loss, lengths = torch.cat(labels), [len(text.at) for text in texts]
    nats = float(loss[loss.isfinite()].median())
    params = SimpleNamespace(
        label=block("label", recipe="suffix", window=WINDOW, nats=nats, batch_size=64)
    )
    pair = SimpleNamespace(target=target, tokenizer=byte_tokenizer())
    pair.tokenizer.eos_token = pair.tokenizer.convert_ids_to_tokens(EOS)
    position = torch.tensor([at for text in texts for at in text.at])
    records = {
        "problem": torch.arange(len(texts)).repeat_interleave(torch.tensor(lengths)),
        "position": position,
        "draft_id": torch.tensor([z for text in texts for z in text.z]),
        "target_id": torch.tensor([text.answer[at] for text in texts for at in text.at]),
        "policy": torch.full_like(position, 2),
        "accepted": torch.zeros(len(position)),
    }
    answers = {
        (number, 2): AnswerText(number, 2, list(text.answer)) for number, text in enumerate(texts)
    }
    records["target_id"][0] += (
        1  # an accepted token: the text in front of it is not followed by the target's own
    )
    found = suffix_labels(params, pair, [{"ids": text.prompt} for text in texts], records, answers)
    known = loss.isfinite() & (torch.arange(len(loss)) > 0)
    assert torch.equal(found["position"], position[known]) and "accepted" not in found
    assert (
        found["kept"].tolist()
        == (loss[known] <= nats).float().tolist()
        == found["greedy_kept"].tolist()
    )
