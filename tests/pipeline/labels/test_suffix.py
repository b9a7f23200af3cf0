"""Suffix labels are what reading every candidate again finds, and their features what a decoder's blocks have."""

import math
from types import SimpleNamespace

import pytest
import torch

from gistgate.core.decoder import Decoder
from gistgate.core.features import extract
from gistgate.core.rule import Exact
from gistgate.drafters.model import ModelDrafter
from pipeline.labels.features import FirstBlocks
from pipeline.labels.schema import AnswerText
from pipeline.labels.suffix import SuffixLabeller, Text, aligned
from pipeline.params import LabelParams
from pipeline.stages.label import suffix_labels
from tests.tiny import byte_tokenizer, tiny_pair

NAMES = ("h_tok:post", "h_pred:post", "h_tok:layer:0", "h_pred:layer:0", "scalars", "draft")
EOS, WINDOW = 258, 4


@pytest.fixture(scope="module")
def made():
    """A pair, three texts of the target (one of them cut by its limit), and their labels in batches of two texts."""
    target, draft = tiny_pair(noise=0.6)
    prompts = [[5, 9, 7], [11, 3], [200, 30, 31, 32, 33]]
    answers = Decoder(target, None, Exact(), 0).generate(prompts, max_new_tokens=14)
    texts = [
        Text(number, prompt, answer.ids) for number, (prompt, answer) in enumerate(zip(prompts, answers, strict=True))
    ]
    texts[0] = Text(0, prompts[0], [*answers[0].ids[:-1], EOS])
    labeller = SuffixLabeller(target, draft, NAMES, 259, [EOS], window=WINDOW, chunk=7)
    return target, draft, texts, labeller.label(texts, tokens=400)


def logprob(model, prefix, tokens):
    """ln p of tokens behind a prefix, read without cache or batch."""
    with torch.no_grad():
        logits = model(torch.tensor([[*prefix, *tokens]])).logits[0, len(prefix) - 1 : -1]
    return float(logits.log_softmax(-1).gather(-1, torch.tensor(tokens)[:, None]).sum())


def test_labels_are_what_reading_again_finds(made):
    target, draft, texts, table = made
    columns = ("problem", "position", "draft_id", "loss", "ratio")
    rows = iter(zip(*(table[name].tolist() for name in columns), strict=True))
    found = 0
    for text in texts:
        whole = [*text.prompt, *text.answer]
        with torch.no_grad():
            first = draft(torch.tensor([whole])).logits[0].argmax(-1).tolist()
        usable = len(text.answer) - (0 if text.answer[-1] == EOS else WINDOW)
        for at in range(usable):
            z, y, before = first[len(text.prompt) + at - 1], text.answer[at], whole[: len(text.prompt) + at]
            if z in (y, EOS):
                continue
            ahead = text.answer[at + 1 : at + 4]
            starts = [at + 1, at, *([at + 2 + ahead.index(z)] if z in ahead else [])]
            losses = []
            for start in starts:
                if tokens := text.answer[start : start + WINDOW]:
                    own = logprob(target, whole[: len(text.prompt) + start], tokens)
                    losses.append(own - logprob(target, [*before, z], tokens))
            *place, loss, ratio = next(rows)
            assert place == [text.problem, at, z] and loss == pytest.approx(min(losses), abs=1e-4)
            assert ratio == pytest.approx(logprob(target, before, [y]) - logprob(target, before, [z]), abs=1e-4)
            found += 1
    assert found == len(table["loss"]) > 8 and next(rows, None) is None


def test_features_are_those_of_a_decoder(made):
    target, draft, texts, table = made
    watcher = FirstBlocks(("post", "layer:0"), wants_q=True)
    decoder = Decoder(target, ModelDrafter(draft), Exact(), 1, observer=watcher)
    for row in range(len(table["loss"])):
        text, at = texts[int(table["problem"][row])], int(table["position"][row])
        decoder.generate([[*text.prompt, *text.answer[:at]]], max_new_tokens=2)
        block = watcher._blocks[0]
        watcher._blocks = []
        assert int(block.draft_ids[0, 0]) == table["draft_id"][row]
        for name, values in extract(block, NAMES).items():
            torch.testing.assert_close(table[name][row], values[0, 0].float(), atol=1e-4, rtol=1e-4)


def test_alignments_need_text_behind_them():
    ways = [(one.way, one.start) for one in aligned(0, 2, 7, [1, 2, 3, 4, 7, 5])]
    assert ways == [(0, 3), (1, 2), (2, 5)]
    assert [one.way for one in aligned(0, 1, 7, [1, 2])] == [1]  # nothing follows z in place of the last token


def test_a_label_is_the_best_way(made):
    table = made[3]
    ways = torch.stack([table[name] for name in ("substitute", "insert", "delete")], dim=1)
    assert torch.equal(ways.min(1).values, table["loss"]) and bool(ways.isfinite().any(1).all())
    assert math.inf in ways[:, 2] and int(table["kept_first"].max()) <= WINDOW


def test_the_stage_labels_refused_tokens_by_the_loss_behind_them(made):
    target, _, texts, table = made
    loss = table["loss"] + table["ratio"]
    nats = float(loss.median())
    params = SimpleNamespace(label=LabelParams(recipe="suffix", window=WINDOW, nats=nats, batch_size=64))
    pair = SimpleNamespace(target=target, tokenizer=byte_tokenizer())
    pair.tokenizer.eos_token = pair.tokenizer.convert_ids_to_tokens(EOS)
    records = {name: table[name].long() for name in ("problem", "position", "draft_id", "target_id")}
    records |= {"policy": torch.full_like(table["position"], 2), "accepted": torch.zeros(len(table["loss"]))}
    answers = {(text.problem, 2): AnswerText(text.problem, 2, list(text.answer)) for text in texts}
    records["target_id"][0] += 1  # an accepted token: the text in front of it is not followed by the target's own
    labels = suffix_labels(params, pair, [{"ids": text.prompt} for text in texts], records, answers)
    assert labels["position"].tolist() == table["position"][1:].tolist() and "accepted" not in labels
    assert labels["kept"].tolist() == (loss[1:] <= nats).float().tolist() == labels["greedy_kept"].tolist()
