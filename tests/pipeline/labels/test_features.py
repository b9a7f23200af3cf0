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
from pipeline.labels.features import FeatureReader
from pipeline.labels.mining import MismatchRecorder, stamped
from pipeline.labels.schema import (
    FEATURE_FOLDER,
    LABEL_FOLDER,
    LABELS,
    Policy,
    checked,
    concatenated,
    num_rows,
    pack,
    picked,
    read_rows,
    unpack,
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
    lengths = [4 + n % 5 for n in range(16)]
    return [{"ids": torch.randint(3, 259, (num,), generator=draw).tolist()} for num in lengths]


class FeatureRecorder(MismatchRecorder):
    """Keeps the features that the blocks of the decode have, and KL(p || q)."""

    layers = ("post", "pre", "layer:0")
    wants_q = True

    def __init__(self, names):
        super().__init__(BLOCK)
        self.names = names

    def columns(self, block):
        features = extract(block, self.names)
        if block.q is None:
            return features
        p = block.logprobs[:, :-1].exp()
        return {**features, "kl": (p * (p / block.q).log()).sum(-1)}


def recorded_by(decoder, prompts, names):
    """The mismatches of a decode with their features, and its texts."""
    recorder = FeatureRecorder(names)
    ids = [prompt["ids"] for prompt in prompts]
    answers = decoder.watched_by(recorder).generate(ids, **REQUEST)
    tables = []
    texts = {}
    for problem, table in enumerate(recorder.take(answers)):
        texts[problem, int(Policy.GATED)] = answers[problem].ids
        if num_rows(table):
            tables.append(stamped(table, problem, Policy.GATED))
    return concatenated(tables), unpack(pack({}, texts))[1]


@pytest.fixture(scope="module", params=["exact", "random"])
def recorded(request, pair, prompts):
    """Mismatches of a strict and of a loose decode."""
    rule = make_rule("exact") if request.param == "exact" else make_rule("random", rate=0.5)
    decoder = Decoder(pair.target, ModelDrafter(pair.draft), rule, BLOCK, vocabulary=259)
    return recorded_by(decoder, prompts, NAMES)


@pytest.fixture(scope="module")
def again(pair, prompts, recorded):
    return FeatureReader(pair, prompts, NAMES, BLOCK).read(*recorded, batch_size=23, **REQUEST)


def test_features_read_again_equal_the_recorded_ones(recorded, again):
    """The block is rebuilt from its ids, so even a look-ahead over the end of the recorded block
    stays cut off.
    """
    table, _ = recorded
    assert num_rows(table) >= 60
    assert {bool(ended) for ended in (table["behind"] < 0).flatten()} == {True, False}
    for name in (*NAMES, "kl"):
        torch.testing.assert_close(again[name], table[name].float(), atol=1e-3, rtol=1e-3)


def test_features_of_drafts_without_a_model_equal_the_recorded_ones(pair, prompts):
    """Without draft probabilities nothing but `kl` is missing, and that is nan."""
    names = tuple(name for name in NAMES if name != "draft")
    decoder = Decoder(pair.target, SuffixDrafter(), make_rule("exact"), BLOCK, vocabulary=259)
    table, texts = recorded_by(decoder, prompts, names)
    alone = SimpleNamespace(target=pair.target, draft=None, tokenizer=pair.tokenizer)
    again = FeatureReader(alone, prompts, names, BLOCK).read(table, texts, batch_size=23, **REQUEST)
    assert num_rows(table) >= 20
    assert bool(again["kl"].isnan().all())
    for name in names:
        torch.testing.assert_close(again[name], table[name].float(), atol=1e-3, rtol=1e-3)


def test_the_target_says_the_same_as_in_the_decode(pair, prompts, recorded, again):
    assert again["same_target"].float().mean() >= 0.99
    table, texts = recorded
    target_id = table["target_id"].clone()
    target_id[3] = (target_id[3] + 1) % 259
    reader = FeatureReader(pair, prompts, ("scalars",), BLOCK)
    changed = reader.read({**table, "target_id": target_id}, texts, batch_size=23, **REQUEST)
    differs = changed["same_target"] != again["same_target"]
    assert differs.nonzero().flatten().tolist() == [3]


def test_the_stage_writes_what_training_reads(tmp_path, monkeypatch, pair, prompts, recorded):
    """Features, labels and references of every row, in the labels' order; a shard without rows is
    no obstacle.
    """
    monkeypatch.chdir(tmp_path)
    table, texts = recorded
    places = torch.arange(num_rows(table))
    labels = {name: column for name, column in table.items() if name in LABELS}
    labels["kept"] = torch.rand(len(places))
    labels["greedy_kept"] = torch.ones(len(places), dtype=torch.int8)
    labels["rollouts"] = (places % 3).to(torch.int16)
    for index, part in enumerate((places < 50, places >= 50, places < 0)):
        shard = pack(checked(picked(labels, part), LABELS, "the labels"), texts)
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
    assert torch.equal(rows.kept, labels["kept"])
    assert torch.equal(rows.problem, labels["problem"])
    torch.testing.assert_close(rows.x[:, 6:], table["h_tok:post"].float(), atol=1e-3, rtol=1e-3)
    assert read_json(FEATURE_FOLDER / "gated/summary.json")["rows"] == len(rows)
