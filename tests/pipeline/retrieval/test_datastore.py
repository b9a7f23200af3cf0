"""The datastore and the drafters know training prompts alone; keys are what scikit-learn's steps
give one by one.
"""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler, normalize

from gistgate.core.files import fingerprint, read_json_lines, write_json_lines
from gistgate.core.utils import UserError
from gistgate.models.sources import CORPUS, STORED
from gistgate.retrieval.sense import SenseDrafter
from gistgate.retrieval.store import Datastore
from pipeline import retrieval
from pipeline.decode import KNOWN, asks_draft, make_drafter
from pipeline.paths import DATASTORE
from tests.architectures import greedy, pair, prompts
from tests.drafters.proposing import decoded, wanted
from tests.pipeline.parameters import block
from tests.retrieval.test_sense import store_of

TRAIN = prompts(5, 17, 2, 10)
TEXTS = [retrieval.Text(prompt, greedy("llama", tuple(prompt), 40)) for prompt in TRAIN]
PARAMS = SimpleNamespace(datastore=block("datastore", key_size=16))


def tiny(kind: str = "llama") -> SimpleNamespace:
    """A pair as the stage loads it."""
    tokenizer = SimpleNamespace(get_vocab=lambda: {"a": 0}, name_or_path="tiny")
    target, draft = pair(kind)
    return SimpleNamespace(target=target, draft=draft, draft_model=draft, tokenizer=tokenizer)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run with training texts; a file of another split fails the test that reads it."""

    def reader(path: Path) -> list:
        assert Path(path).name == "train.jsonl", f"{path} was read"
        return read_json_lines(path)

    monkeypatch.chdir(tmp_path)
    rows = [{"id": f"train-{place}", "ids": prompt} for place, prompt in enumerate(TRAIN)]
    write_json_lines(retrieval.PROMPTS, rows)
    answers = [{"id": row["id"], "ids": text.answer} for row, text in zip(rows, TEXTS, strict=True)]
    write_json_lines(retrieval.ANSWERS, answers[::-1])
    monkeypatch.setattr(retrieval, "read_json_lines", reader)
    monkeypatch.setattr(retrieval, "read_params", lambda: PARAMS)
    monkeypatch.setattr(retrieval, "load_pair", lambda params: tiny())
    return tmp_path


def test_only_training_prompts_enter(folder: Path):
    retrieval.main()
    store = Datastore.load(DATASTORE, pair("llama")[0])
    assert store.tokens.tolist() == [token for text in TEXTS for token in (*text.answer, -1)]
    assert store.config.num_keys == 160 and store.config.key_size == 16
    assert store.config.provenance == {"split": "train", "prompts": len(TEXTS), "answers": "strict"}
    assert [one.ids for one in decoded(SenseDrafter(store), "llama", TRAIN)] == wanted(
        "llama", TRAIN
    )
    before = fingerprint(DATASTORE)
    retrieval.main()
    assert fingerprint(DATASTORE) == before


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
    store, explained = retrieval.build(tiny(), TEXTS, layer, 32)
    cosines = store.keys.double() @ store.keys.double().T
    torch.testing.assert_close(cosines, (want @ want.T).double(), atol=5e-3, rtol=0)
    assert explained == pytest.approx(1, abs=1e-3)


def test_states_are_fitted_chunk_by_chunk(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(retrieval, "CHUNK", 50)
    store, explained = retrieval.build(tiny(), TEXTS, "post", 16)
    assert len(store.keys) == 160 and 0.5 < explained < 1
    with pytest.raises(UserError, match="'datastore.key_size' is 33"):
        retrieval.build(tiny(), TEXTS, "post", 33)


@pytest.mark.parametrize("name", [CORPUS, *STORED])
def test_drafters_by_id_know_training_texts_alone_and_stay_strict(name: str, folder: Path):
    store_of("llama", TRAIN).save(DATASTORE)
    assert [one.ids for one in decoded(make_drafter(tiny(), name), "llama", TRAIN)] == wanted(
        "llama", TRAIN
    )
    assert not asks_draft(name)
    before = fingerprint(*KNOWN[name])
    store_of("llama", TRAIN[:2]).save(DATASTORE)
    write_json_lines(retrieval.ANSWERS, read_json_lines(retrieval.ANSWERS)[1:])
    assert fingerprint(*KNOWN[name]) != before  # a certificate is bound to these files


def test_a_datastore_that_is_missing_or_another_target_s_is_named(folder: Path):
    with pytest.raises(UserError, match="models/datastore/config.json is missing"):
        make_drafter(tiny(), "sen")
    store_of("llama", TRAIN).save(DATASTORE)
    with pytest.raises(UserError, match="does not fit the target"):
        make_drafter(tiny("qwen2"), "sen")
    with pytest.raises(UserError, match="no drafter 'rest'"):
        make_drafter(tiny(), "rest")
