"""Judges put samples into groups; shares and agreement are plain arithmetic on them."""

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification, BertModel

from gistgate.core.files import write_json
from gistgate.core.utils import UserError
from pipeline.params import SegmentParams
from pipeline.segments.collect import (
    Embedding,
    Entailment,
    Sample,
    agreement,
    judges_of,
    pooling_of,
    same_answer,
    same_text,
    shares,
)
from tests.tiny import byte_tokenizer

TEXTS = ["It is 3.", "it  is 3.", "So 3.", "So 4."]
SAMPLES = [Sample(text, f"#### {text[-2]}") for text in TEXTS]
SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


def folder(path, kind, **config):
    """A tiny encoder with its tokenizer."""
    torch.manual_seed(0)
    tokenizer = byte_tokenizer(bos=False)
    kind(BertConfig(vocab_size=len(tokenizer), **SIZES, **config)).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return str(path)


def nli(path, answer):
    """An entailment model that always says label `answer`."""
    name = folder(path, BertForSequenceClassification, id2label={0: "contradiction", 1: "ENTAILMENT"})
    model = BertForSequenceClassification.from_pretrained(name)
    with torch.no_grad():
        model.classifier.bias[answer] += 100.0
    model.save_pretrained(name)
    return name


class SameLastSign:
    """A task whose answers agree when their last signs do; an empty text has none."""

    def same_meaning(self, doc, text, reference):
        return text[-1] == reference[-1] if reference else None


def test_texts_and_answers_make_their_own_groups():
    judge = same_answer(SameLastSign())
    assert same_text({}, SAMPLES) == [0, 0, 1, 2]
    assert judge({}, SAMPLES) == [0, 0, 0, 1]
    assert judge({}, [Sample("a", ""), Sample("b", ""), Sample("c", "3")]) == [0, 0, 1]
    assert same_text({}, []) == judge({}, []) == []


def test_entailment_has_to_hold_both_ways(tmp_path):
    assert Entailment(nli(tmp_path / "yes", 1))({}, SAMPLES) == [0, 0, 0, 0]
    assert Entailment(nli(tmp_path / "no", 0))({}, [*SAMPLES, SAMPLES[0]]) == [0, 1, 2, 3, 0]
    assert Entailment(str(tmp_path / "no"))({}, []) == []


def test_entailment_one_way_is_not_enough(tmp_path, monkeypatch):
    judge = Entailment(nli(tmp_path, 1))
    monkeypatch.setattr(judge, "matrix", lambda texts: torch.ones(len(texts), len(texts), dtype=torch.bool).tril())
    assert judge({}, SAMPLES) == [0, 1, 2, 3]


def test_embeddings_group_by_cosine_whatever_the_padding(tmp_path):
    name = folder(tmp_path, BertModel)
    assert Embedding(name, -1.0)({}, SAMPLES) == [0, 0, 0, 0]
    texts = [Sample("ab", ""), Sample("a longer text", ""), Sample("ab", "")]
    assert Embedding(name, 0.99999)({}, texts) == [0, 1, 0] and Embedding(name, 0.9)({}, []) == []


def pooling_folder(path, config, *further):
    """The encoder as sentence-transformers would save it."""
    name = folder(path, BertModel)
    kinds = [("Transformer", ""), ("Pooling", "1_Pooling"), *further]
    write_json(path / "modules.json", [{"type": f"sentence_transformers.models.{k}", "path": p} for k, p in kinds])
    write_json(path / "1_Pooling/config.json", {"word_embedding_dimension": 16, **config})
    return name


def switched(mode):
    return {f"pooling_mode_{other}": other == mode for other in ("cls_token", "mean_tokens", "max_tokens", "lasttoken")}


def test_a_sentence_model_pools_as_its_folder_says(tmp_path):
    """The padding of the shorter text must not be taken for its last token."""
    texts, known = ["ab", "a longer text"], {}
    for mode in ("cls_token", "lasttoken", "mean_tokens"):
        judge = Embedding(pooling_folder(tmp_path / mode, switched(mode), ("Normalize", "2_Normalize")), 0.9)
        both, alone = (judge.vectors(some) for some in (texts, texts[:1]))
        torch.testing.assert_close(both[:1], alone, atol=1e-5, rtol=1e-5)
        known[mode] = both
    plain = Embedding(folder(tmp_path / "plain", BertModel), 0.9)
    torch.testing.assert_close(known["mean_tokens"], plain.vectors(texts))
    with torch.no_grad():
        states = plain.model(plain.tokenizer("ab", return_tensors="pt").input_ids).last_hidden_state[0]
    unit = torch.nn.functional.normalize(states, dim=-1)
    torch.testing.assert_close(known["cls_token"][0], unit[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(known["lasttoken"][0], unit[-1], atol=1e-5, rtol=1e-5)
    assert pooling_of(pooling_folder(tmp_path / "new", {"pooling_mode": "cls"})) == "cls"


@pytest.mark.parametrize(
    "config, further, said",
    [
        (switched("max_tokens"), (), "max_tokens"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, (), "cls_token, mean_tokens"),
        (switched("mean_tokens"), (("Dense", "2_Dense"),), "Dense"),
        ({}, (), "nothing that is named"),
    ],
)
def test_a_sentence_model_that_does_something_else_is_refused(tmp_path, config, further, said):
    with pytest.raises(UserError, match=said):
        Embedding(pooling_folder(tmp_path, config, *further), 0.9)


def test_a_judge_needs_a_model_that_fits(tmp_path):
    assert list(judges_of(SegmentParams(), SameLastSign())) == ["answer", "exact"]
    other = SegmentParams(judge_model=folder(tmp_path / "encoder", BertModel))
    assert list(judges_of(other, SameLastSign())) == ["answer", "exact", "embedding"]
    with pytest.raises(UserError, match="cannot be loaded"):
        judges_of(SegmentParams(judge="nli", judge_model=str(tmp_path / "absent")), SameLastSign())
    with pytest.raises(UserError, match="needs a model"):
        SegmentParams(judge="nli")
    with pytest.raises(UserError, match="no label 'entailment'"):
        Entailment(folder(tmp_path / "bert", BertForSequenceClassification))


def test_a_share_counts_one_models_samples_in_the_group_of_any():
    row = {"roles": ["target"] * 4 + ["draft"] * 2, "groups": {"exact": [0, 0, 0, 1, 1, 2]}}
    assert shares(row, "exact", "target") == [0.75, 0.75, 0.75, 0.25, 0.25, 0.0]
    assert shares(row, "exact", "draft") == [0.0, 0.0, 0.0, 0.5, 0.5, 0.5]
    same = {"roles": ["target"] * 3, "groups": {"exact": [0, 0, 0]}}
    assert shares(same, "exact", "target") == [1.0] * 3


def test_agreement_compares_pairs_of_samples():
    rows = [{"segments": [[1]] * 3, "groups": {"a": [0, 0, 1], "b": [0, 1, 2], "c": [0, 0, 1]}}]
    report = agreement(rows)
    assert report["agreement"]["a, c"] == {"agree": 1.0, "kappa": 1.0}
    assert report["agreement"]["a, b"]["agree"] == pytest.approx(2 / 3)
    assert report["pairs_alike"] == {"a": pytest.approx(1 / 3), "b": 0.0, "c": pytest.approx(1 / 3)}
