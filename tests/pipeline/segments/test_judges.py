"""Judges put samples into groups: by answers, by texts, or by what a model says of them."""

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification, BertModel

from gistgate.core.files import write_json
from gistgate.core.utils import UserError
from pipeline.segments.judges import (
    Embedding,
    Entailment,
    Sample,
    judges_of,
    pooling_of,
    same_answer,
    same_text,
)
from tests.pipeline.parameters import block
from tests.tiny import byte_tokenizer

SAMPLES = [Sample(text, f"#### {text[-2]}") for text in ("It is 3.", "it  is 3.", "So 3.", "So 4.")]
SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
}
LABELS = {0: "contradiction", 1: "ENTAILMENT"}
MODES = ("cls_token", "mean_tokens", "max_tokens", "lasttoken")


class SameLastSign:
    """A task whose answers agree when their last signs do; an empty text has none."""

    def same_meaning(self, doc, text, reference):
        return text[-1] == reference[-1] if reference else None


def encoder(path, kind=BertModel, says=None, **config):
    """The folder of a tiny encoder with its tokenizer; a classifier `says` always one label."""
    torch.manual_seed(0)
    tokenizer = byte_tokenizer(bos=False)
    model = kind(BertConfig(vocab_size=len(tokenizer), **SIZES, **config))
    if says is not None:
        with torch.no_grad():
            model.classifier.bias[says] += 100.0
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return str(path)


def test_texts_and_answers_make_their_own_groups():
    judge = same_answer(SameLastSign())
    assert same_text({}, SAMPLES) == [0, 0, 1, 2]
    assert judge({}, SAMPLES) == [0, 0, 0, 1]
    assert judge({}, [Sample("a", ""), Sample("b", ""), Sample("c", "3")]) == [0, 0, 1]


def test_entailment_has_to_hold_both_ways(tmp_path, monkeypatch):
    yes, no = (
        Entailment(
            encoder(tmp_path / str(says), BertForSequenceClassification, says, id2label=LABELS)
        )
        for says in (1, 0)
    )
    assert yes({}, SAMPLES) == [0, 0, 0, 0]
    assert no({}, [*SAMPLES, SAMPLES[0]]) == [0, 1, 2, 3, 0]
    one_way = torch.ones(4, 4, dtype=torch.bool).tril()
    monkeypatch.setattr(yes, "matrix", lambda texts: one_way)
    assert yes({}, SAMPLES) == [0, 1, 2, 3]


def test_embeddings_group_by_cosine_whatever_the_padding(tmp_path):
    name = encoder(tmp_path)
    assert Embedding(name, -1.0)({}, SAMPLES) == [0, 0, 0, 0]
    texts = [Sample("ab", ""), Sample("a longer text", ""), Sample("ab", "")]
    assert Embedding(name, 0.99999)({}, texts) == [0, 1, 0]


def pooling_folder(path, mode, *steps):
    """The encoder as sentence-transformers would save it."""
    kinds = {"Transformer": "", "Pooling": "1_Pooling", **{step: f"2_{step}" for step in steps}}
    modules = [
        {"type": f"sentence_transformers.models.{kind}", "path": place}
        for kind, place in kinds.items()
    ]
    write_json(path / "modules.json", modules)
    switches = {f"pooling_mode_{name}": name == mode for name in MODES}
    write_json(path / "1_Pooling/config.json", {"word_embedding_dimension": 16, **switches})
    return encoder(path)


@pytest.mark.parametrize(
    "mode, place", [("cls_token", 0), ("lasttoken", -1), ("mean_tokens", None)]
)
def test_a_sentence_model_pools_as_its_folder_says(tmp_path, mode, place):
    """The padding of the shorter text must not be taken for its last token."""
    judge = Embedding(pooling_folder(tmp_path, mode, "Normalize"), 0.9)
    vector = judge.vectors(["ab", "a longer text"])[0]
    with torch.no_grad():
        ids = judge.tokenizer("ab", return_tensors="pt").input_ids
        states = judge.model(ids).last_hidden_state[0]
    pooled = states.mean(0) if place is None else states[place]
    torch.testing.assert_close(vector, pooled / pooled.norm(), atol=1e-5, rtol=1e-5)


def test_pooling_is_read_in_the_newer_notation_and_else_the_mean(tmp_path):
    pooling_folder(tmp_path / "new", "")
    write_json(tmp_path / "new/1_Pooling/config.json", {"pooling_mode": "cls"})
    assert pooling_of(str(tmp_path / "new")) == "cls"
    assert pooling_of(encoder(tmp_path / "plain")) == "mean"


@pytest.mark.parametrize(
    "mode, steps, name", [("max_tokens", [], "max_tokens"), ("mean_tokens", ["Dense"], "Dense")]
)
def test_a_sentence_model_that_does_something_else_is_refused(tmp_path, mode, steps, name):
    with pytest.raises(UserError, match=name):
        Embedding(pooling_folder(tmp_path, mode, *steps), 0.9)


def test_a_judge_needs_a_model_that_fits(tmp_path):
    params = block("segments", judge_model=encoder(tmp_path / "encoder"))
    assert list(judges_of(params, SameLastSign())) == ["answer", "exact", "embedding"]
    with pytest.raises(UserError, match="needs a model"):
        block("segments", judge="nli")
    with pytest.raises(UserError, match="no label 'entailment'"):
        Entailment(encoder(tmp_path / "bert", BertForSequenceClassification))
