"""Features that are read again equal those of the decode that found the mismatches."""

from types import SimpleNamespace

import pytest
import torch

from gistgate.core.decoder import Decoder
from gistgate.core.features import extract
from gistgate.core.files import read_json, save_tensors
from gistgate.drafters.model import ModelDrafter
from gistgate.drafters.suffix import SuffixDrafter
from gistgate.rules import make_rule
from pipeline.labels.features import FeatureReader, divergence
from pipeline.labels.mining import MismatchRecorder, stamped
from pipeline.labels.schema import (
    FEATURE_FOLDER,
    LABEL_FOLDER,
    LABELS,
    AnswerText,
    Policy,
    checked,
    concatenated,
    num_rows,
    pack,
    picked,
    read_rows,
)
from pipeline.stages import features as stage
from tests.pipeline.parameters import parameters
from tests.tiny import byte_tokenizer, tiny_pair

NAMES = ("h_tok:post", "h_pred:post", "h_tok:pre", "h_tok:layer:0", "scalars", "lookahead", "draft")
REQUEST = {"max_new_tokens": 40, "eos_ids": [2]}
BLOCK = 6


@pytest.fixture(scope="module")
def pair():
    target, draft = tiny_pair(noise=0.15)
    return SimpleNamespace(target=target, draft=draft, tokenizer=byte_tokenizer())


@pytest.fixture(scope="module")
def prompts():
    draw = torch.Generator().manual_seed(0)
    return [
        {"ids": torch.randint(3, 259, (4 + n % 5,), generator=draw).tolist()} for n in range(16)
    ]


def with_kl(block):
    at_B, at_K = torch.ones_like(block.valid).nonzero(as_tuple=True)
    return {**extract(block, NAMES), "kl": divergence(block, at_B, at_K).view(block.valid.shape)}


@pytest.fixture(scope="module", params=["exact", "random"])
def recorded(request, pair, prompts):
    """Mismatches of a strict and of a loose decode, with the features that its own blocks had, and
    the texts.
    """
    rule = make_rule("exact") if request.param == "exact" else make_rule("random", rate=0.5)
    recorder = MismatchRecorder(BLOCK, with_kl)
    recorder.layers, recorder.wants_q = ["post", "pre", "layer:0"], True
    return records_of(recorder, pair.target, ModelDrafter(pair.draft), rule, prompts)


def records_of(recorder, target, drafter, rule, prompts):
    """The mismatches of a decode, and its texts."""
    decoder = Decoder(target, drafter, rule, BLOCK, vocabulary=259, observer=recorder)
    answers = decoder.generate([prompt["ids"] for prompt in prompts], **REQUEST)
    found = recorder.take(answers)
    table = concatenated(
        [stamped(one, index, Policy.GATED) for index, one in enumerate(found) if num_rows(one)]
    )
    return table, {
        (n, Policy.GATED): AnswerText(n, Policy.GATED, answer.ids)
        for n, answer in enumerate(answers)
    }


@pytest.fixture(scope="module")
def again(pair, prompts, recorded):
    return FeatureReader(pair, prompts, NAMES, BLOCK).read(*recorded, batch_size=23, **REQUEST)


def test_features_read_again_equal_the_recorded_ones(recorded, again):
    """The block is rebuilt from its ids, so even a look-ahead over the end of the recorded block
    stays cut off.
    """
    table, _ = recorded
    assert (
        num_rows(table) >= 60
        and bool((table["behind"] < 0).any())
        and bool((table["behind"] >= 0).any())
    )
    for name in (*NAMES, "kl"):
        torch.testing.assert_close(again[name], table[name].float(), atol=1e-3, rtol=1e-3)


def test_features_of_drafts_without_a_model_equal_the_recorded_ones(pair, prompts):
    """Without draft probabilities nothing but `kl` is missing, and that is nan."""
    names = tuple(name for name in NAMES if name != "draft")
    recorder = MismatchRecorder(BLOCK, lambda block: extract(block, names))
    recorder.layers = ["post", "pre", "layer:0"]
    table, texts = records_of(recorder, pair.target, SuffixDrafter(), make_rule("exact"), prompts)
    alone = SimpleNamespace(target=pair.target, draft=None, tokenizer=pair.tokenizer)
    again = FeatureReader(alone, prompts, names, BLOCK).read(table, texts, batch_size=23, **REQUEST)
    assert num_rows(table) >= 20 and bool(again["kl"].isnan().all())
    for name in names:
        torch.testing.assert_close(again[name], table[name].float(), atol=1e-3, rtol=1e-3)


def test_the_target_says_the_same_as_in_the_decode(pair, prompts, recorded, again):
    assert again["same_target"].float().mean() >= 0.99
    table, texts = recorded
    other = {**table, "target_id": table["target_id"].clone()}
    other["target_id"][3] = (other["target_id"][3] + 1) % 259
    found = FeatureReader(pair, prompts, ("scalars",), BLOCK).read(
        other, texts, batch_size=23, **REQUEST
    )
    assert (found["same_target"] != again["same_target"]).nonzero().flatten().tolist() == [3]


def test_the_stage_writes_what_training_reads(tmp_path, monkeypatch, pair, prompts, recorded):
    """Features, labels and references of every row, in the labels' order; a shard without rows is
    no obstacle.
    """
    monkeypatch.chdir(tmp_path)
    table, texts = recorded
    labels = {name: column for name, column in table.items() if name in LABELS}
    labels["kept"], labels["greedy_kept"] = (
        torch.rand(num_rows(table)),
        torch.ones(num_rows(table), dtype=torch.int8),
    )
    labels["rollouts"] = (torch.arange(num_rows(table)) % 3).to(torch.int16)
    half = torch.arange(num_rows(table)) < 50
    for index, part in enumerate((half, ~half, half & ~half)):
        shard = pack(checked(picked(labels, part), LABELS, "the labels"), texts.values())
        save_tensors(LABEL_FOLDER / f"gated/rows-{index:05d}.safetensors", shard)
    features = ("lookahead", "h_tok:post")
    params = parameters(train={"features": features}, decoding={"block": BLOCK, "workers": 1})
    monkeypatch.setattr(stage, "read_params", lambda: params)
    monkeypatch.setattr(stage, "load_pair", lambda _params, weights=True: pair)
    monkeypatch.setattr(stage, "pair_files", lambda _pair: [])
    monkeypatch.setattr(stage, "read_prompts", lambda _split: prompts)
    monkeypatch.setattr(stage, "request_of", lambda _prompts, _pair: REQUEST)
    stage.main("gated")
    rows, widths = read_rows([FEATURE_FOLDER / "gated"], features)
    assert widths == {"lookahead": 6, "h_tok:post": 32}
    assert torch.equal(rows.outcome, labels["rollouts"] > 0)
    assert torch.equal(rows.kept, labels["kept"]) and torch.equal(rows.problem, labels["problem"])
    torch.testing.assert_close(rows.x[:, 6:], table["h_tok:post"].float(), atol=1e-3, rtol=1e-3)
    assert read_json(FEATURE_FOLDER / "gated/summary.json")["rows"] == len(rows)
