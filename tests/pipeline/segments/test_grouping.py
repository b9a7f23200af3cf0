"""Judges put samples into groups; shares, agreement and the choice of values are plain arithmetic on them."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pipeline.segments.collect.calibrate import operating, promising
from transformers import BertConfig, BertForSequenceClassification, BertModel

from gistgate.core.files import write_json
from gistgate.core.utils import UserError
from pipeline.params import local_models, read_params, read_segment_params
from pipeline.segments.collect import (
    Answer,
    Embedding,
    Entailment,
    Exact,
    Sample,
    Truth,
    agreement,
    make_judge,
    pooling_of,
    shares,
)
from tests.tiny import byte_tokenizer

ROOT = Path(__file__).parents[3]
OWN = read_segment_params(ROOT / "pipeline/studies/segments/params.yaml")
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
    assert Exact().groups({}, SAMPLES) == [0, 0, 1, 2]
    assert Answer(SameLastSign()).groups({}, SAMPLES) == [0, 0, 0, 1]
    assert Answer(SameLastSign()).groups({}, [Sample("a", ""), Sample("b", ""), Sample("c", "3")]) == [0, 0, 1]


SOLUTION = "We had 11 nuts. Then we lost 8, in numbers - 8 + 11 = 3 of them. Next it doubled: 2 * 3 = 6. So 6.\n#### 6"


def told(before, *segments):
    return Truth().groups({"answer": SOLUTION}, [Sample(text, "", before) for text in segments])


def test_the_generators_numbers_are_the_truth():
    before = "There were 11 nuts. Later they took"
    assert told(before, " 8,", " away 8, so 11 - 8 = 3.", " 8 and had - 8 + 11 = 3.", " some.") == [0] * 4
    assert told(before, " 8,", " 9,", " 8, so 11 - 8 = 4.", " 8, so 3 - 8 = 3.", " just 9.") == [0, 1, 2, 3, 1]
    assert told("", " 12 nuts.", " 11 nuts.", " nuts.") == [0, 1, 1]
    done = " 11 nuts, lost 8: 11 - 8 = 3. Then 3 + 3 = 6."
    assert told(done, " So 6.\n#### 6", " So 3.", " Then 6 * 2 = 12.") == [0, 1, 2]
    assert told("") == []


def test_other_tasks_have_no_known_truth():
    with pytest.raises(UserError, match="Judge this task by its answers"):
        Truth().groups({"answer": "Because."}, SAMPLES)


def test_entailment_has_to_hold_both_ways(tmp_path):
    assert Entailment(nli(tmp_path / "yes", 1)).groups({}, SAMPLES) == [0, 0, 0, 0]
    assert Entailment(nli(tmp_path / "no", 0)).groups({}, [*SAMPLES, SAMPLES[0]]) == [0, 1, 2, 3, 0]


def test_entailment_one_way_is_not_enough(tmp_path, monkeypatch):
    judge = Entailment(nli(tmp_path, 1))
    monkeypatch.setattr(judge, "_matrix", lambda texts: torch.ones(len(texts), len(texts), dtype=torch.bool).tril())
    assert judge.groups({}, SAMPLES) == [0, 1, 2, 3]


def test_embeddings_group_by_cosine_whatever_the_padding(tmp_path):
    name = folder(tmp_path, BertModel)
    assert Embedding(name, -1.0).groups({}, SAMPLES) == [0, 0, 0, 0]
    texts = [Sample("ab", ""), Sample("a longer text", ""), Sample("ab", "")]
    assert Embedding(name, 0.99999).groups({}, texts) == [0, 1, 0]


def test_without_a_finished_sample_there_are_no_groups(tmp_path):
    judges = Embedding(folder(tmp_path / "encoder", BertModel), 0.9), Entailment(nli(tmp_path / "nli", 1))
    assert [judge.groups({}, []) for judge in (*judges, Exact(), Truth(), Answer(SameLastSign()))] == [[]] * 5


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


def test_a_sentence_model_that_does_something_else_is_refused(tmp_path):
    for number, (config, further, said) in enumerate(
        (
            (switched("max_tokens"), (), "max_tokens"),
            ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}, (), "cls_token, mean_tokens"),
            (switched("mean_tokens"), (("Dense", "2_Dense"),), "Dense"),
            ({}, (), "nothing that is named"),
        )
    ):
        with pytest.raises(UserError, match=said):
            Embedding(pooling_folder(tmp_path / str(number), config, *further), 0.9)


def test_a_missing_judge_model_is_refused(tmp_path):
    with pytest.raises(UserError, match="cannot be loaded"):
        make_judge("nli", replace(OWN, judge_model=str(tmp_path / "absent")), None)
    with pytest.raises(UserError, match="needs a model"):
        replace(OWN, judge="nli", judge_model=None)
    name = folder(tmp_path / "bert", BertForSequenceClassification)
    with pytest.raises(UserError, match="no label 'entailment'"):
        Entailment(name)


def test_only_models_at_hand_are_files(tmp_path):
    assert local_models(None, "some/model", str(tmp_path)) == [tmp_path]


def test_a_share_counts_one_models_samples_in_the_group_of_any():
    row = {"roles": ["target"] * 4 + ["draft"] * 2, "groups": {"exact": [0, 0, 0, 1, 1, 2]}}
    assert shares(row, "exact", "target") == [0.75, 0.75, 0.75, 0.25, 0.25, 0.0]
    assert shares(row, "exact", "draft") == [0.0, 0.0, 0.0, 0.5, 0.5, 0.5]
    same = {"roles": ["target"] * 3, "groups": {"exact": [0, 0, 0]}}
    assert shares(same, "exact", "target") == [1.0] * 3


def test_agreement_compares_pairs_of_samples():
    rows = [{"segments": [[1]] * 3, "groups": {"a": [0, 0, 1], "b": [0, 1, 2], "c": [0, 0, 1]}}]
    report = agreement(rows, ["a", "b", "c"])
    assert report["agreement"]["a, c"] == {"agree": 1.0, "kappa": 1.0}
    assert report["agreement"]["a, b"]["agree"] == pytest.approx(2 / 3)
    assert report["pairs_alike"] == {"a": pytest.approx(1 / 3), "b": 0.0, "c": pytest.approx(1 / 3)}


def test_a_method_is_compared_where_it_is_certified_or_at_its_strictest():
    points = [{"value": 0.9, "passed": 0.2}, {"value": 0.8, "passed": 0.4}]
    assert operating({"certified": 0.8, "calibration": points})["passed"] == 0.4
    assert operating({"certified": None, "calibration": points})["passed"] == 0.2


def test_only_values_with_room_for_the_bound_are_tested():
    params = read_params(ROOT / "params.yaml")
    seen = [
        {"value": v, "loss": loss, "deviation": 0.2, "n": 1000}
        for v, loss in ((0.9, 0.0), (0.8, 0.02), (0.7, 0.01), (0.6, 0.0))
    ]
    assert promising(seen, params, 0.03) == [0.7, 0.6]
    assert promising(seen[:3], params, 0.03) == [0.9, 0.7]
    assert promising(seen[1:2], params, 0.03) == [0.8]
    assert promising([{**one, "n": 100} for one in seen[:3]], params, 0.03) == [0.9]
