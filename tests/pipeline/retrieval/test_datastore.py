"""The datastore holds training prompts alone, and its keys are what scikit-learn's steps give one after another."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler, normalize

from gistgate.core.files import read_json, read_json_lines, write_json_lines
from gistgate.core.utils import UserError
from gistgate.retrieval.sense import SenDrafter
from gistgate.retrieval.store import Datastore
from pipeline import retrieval as datastore
from pipeline import retrieval as texts
from pipeline.params import DatastoreParams, RetrievalParams
from pipeline.paths import DATASTORE
from tests.architectures import greedy, pair, prompts
from tests.core.heads import head_inputs, in_one_piece
from tests.drafters.proposing import decoded, wanted

TRAIN = prompts(5, 17, 2, 10)
TEXTS = [texts.Text(prompt, greedy("llama", tuple(prompt), 40)) for prompt in TRAIN]


def tiny(kind: str = "llama") -> SimpleNamespace:
    """A pair as the stage loads it."""
    tokenizer = SimpleNamespace(get_vocab=lambda: {"a": 0}, name_or_path="tiny")
    return SimpleNamespace(target=pair(kind)[0], tokenizer=tokenizer)


def test_only_training_prompts_enter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def reader(path):
        assert Path(path).name == "train.jsonl", f"{path} was read"
        opened.append(str(path))
        return read_json_lines(path)

    opened: list[str] = []
    monkeypatch.chdir(tmp_path)
    names = [f"train-{place}" for place in range(len(TEXTS))]
    write_json_lines(texts.PROMPTS, [{"id": n, "ids": t.prompt} for n, t in zip(names, TEXTS, strict=True)])
    answers = [{"id": n, "ids": t.answer} for n, t in zip(names, TEXTS, strict=True)]
    write_json_lines(texts.ANSWERS, answers[::-1])
    for other in ("calibration", "development", "test"):
        for folder in ("prompts", "reference"):
            (tmp_path / f"data/{folder}/{other}.jsonl").write_text("nobody reads this")
    monkeypatch.setattr(texts, "read_json_lines", reader)
    monkeypatch.setattr(datastore, "read_params", lambda: None)
    own = RetrievalParams(datastore=DatastoreParams(key_size=16))
    monkeypatch.setattr(datastore, "read_retrieval_params", lambda: own)
    monkeypatch.setattr(datastore, "load_pair", lambda params: tiny())
    datastore.main()
    assert sorted(opened) == [str(texts.PROMPTS), str(texts.ANSWERS)]
    store = Datastore.load(DATASTORE, pair("llama")[0], "post")
    assert store.tokens.tolist() == [token for text in TEXTS for token in (*text.answer, -1)]
    assert store.config.provenance == {"split": "train", "prompts": len(TEXTS), "answers": "strict"}
    report = read_json(datastore.REPORT)
    assert report["keys"] == 160 and report["bytes"] > 160 * 16 * 2 and report["keys_per_second"] > 0
    assert [one.ids for one in decoded(SenDrafter(store), "llama", TRAIN)] == wanted("llama", TRAIN)
    write_json_lines(texts.ANSWERS, answers[1:])
    with pytest.raises(UserError, match="no answer to 'train-0'"):
        datastore.main()


@pytest.mark.parametrize("layer", ["post", "layer:0"])
def test_keys_are_standardised_projected_and_of_unit_length(layer: str):
    target, states = pair("llama")[0], []
    for text in TEXTS:
        with torch.inference_mode():
            out = target(torch.tensor([[*text.prompt, *text.answer]]), output_hidden_states=True)
        h_BTD = out.hidden_states[1 if layer == "layer:0" else -1]
        states.append(h_BTD[0, len(text.prompt) - 1 : -1].detach().numpy())
    h_ND = StandardScaler().fit_transform(np.concatenate(states))
    want = torch.from_numpy(normalize(PCA(32).fit_transform(h_ND)))
    store, explained = datastore.build(tiny(), TEXTS, layer, 32)
    cosines = store.keys.double() @ store.keys.double().T
    torch.testing.assert_close(cosines, (want @ want.T).double(), atol=5e-3, rtol=0)
    assert explained == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("layer", ["post", "layer:0"])
def test_the_output_layer_reads_states_in_one_piece(layer: str):
    """The rows behind the shortest prompt are cut out of the states of a batch."""
    with head_inputs(pair("llama")[0]) as seen:
        states = list(datastore.states_of(pair("llama")[0], TEXTS, layer))
    assert len(seen) == len(states) and len(seen[0]) > 1 and all(in_one_piece(one) for one in seen)


def test_chunks_cover_everything_and_none_is_too_short(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(datastore, "CHUNK", 50)
    store, explained = datastore.build(tiny(), TEXTS, "post", 16)
    assert len(store.keys) == 160 and 0.5 < explained < 1
    assert [len(part) for part in datastore.chunks(np.zeros((160, 2)), 16)] == [50, 50, 60]
    assert [len(part) for part in datastore.chunks(np.zeros((160, 2)), 1)] == [50, 50, 50, 10]


def test_widths_that_do_not_fit_are_refused():
    with pytest.raises(UserError, match="keys of width 33"):
        datastore.build(tiny(), TEXTS, "post", 33)
