"""Prefixes and samples follow from the seed alone; judges put samples into groups, and shares are
arithmetic.
"""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification, BertModel

from gistgate.core.files import write_json, write_text
from gistgate.core.utils import UserError
from gistgate.segments.writing import Boundaries
from pipeline.pair.pair import Pair
from pipeline.segments import collect
from pipeline.segments.collect import Prefix, Sampler, shares
from pipeline.segments.judges import (
    Embedding,
    Entailment,
    Sample,
    judges_of,
    pooling_of,
    same_answer,
    same_text,
)
from tests.architectures import pair
from tests.pipeline.parameters import parameters
from tests.tiny import byte_tokenizer

TARGET, DRAFT = pair("llama")
TOKENIZER = byte_tokenizer()
PAIR = Pair(TARGET, DRAFT, TOKENIZER, "tiny")
BOUNDARIES = Boundaries(TOKENIZER, "re:[a-m]$")
PARAMS = parameters(segments={"limit": 8, "samples": 4, "style": "re:[a-m]$"})
OWN = PARAMS.segments
PREFIXES = [
    Prefix(0, [5, 6, 7], [8]),
    Prefix(1, [9, 10], []),
    Prefix(2, [40, 41, 42, 43], [60, 61]),
]
SAMPLES = [Sample(text, f"#### {text[-2]}") for text in ("It is 3.", "it  is 3.", "So 3.", "So 4.")]
SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
}


def test_samples_do_not_depend_on_the_batch_and_end_where_a_segment_ends():
    def drawn(batch, seed=1):
        params = replace(PARAMS, decoding=replace(PARAMS.decoding, batch_size=batch))
        return Sampler(PAIR, Answers(), params, {"eos_ids": (), "stops": []}).segments(
            TARGET, PREFIXES, seed
        )

    found = drawn(12)
    assert found == drawn(5) != drawn(12, seed=2)
    segments = [ids for some in found for ids in some]
    assert segments and all(
        BOUNDARIES.cut(ids) == [ids] and BOUNDARIES.ends(ids) for ids in segments
    )
    assert len(segments) < 12  # the limit cut some


class Answers:
    """A task whose answer is the text behind the sign #, if any."""

    def text(self, tokenizer, ids):
        return tokenizer.decode(list(ids))

    def same_meaning(self, doc, text, reference):
        return "#" in text and text.split("#")[1] == reference.split("#")[1]


def test_prefixes_begin_at_ends_and_elsewhere_but_never_behind_the_answer():
    answer = TOKENIZER.encode("One. Two. #4", add_special_tokens=False)
    params = replace(PARAMS, segments=replace(OWN, prefixes=50, style="sentence"))
    sampler = Sampler(PAIR, Answers(), params, {"eos_ids": ()})
    prefixes, again = (sampler.prefixes(3, {"ids": [5], "doc": {}}, answer) for _ in range(2))
    texts = [TOKENIZER.decode(prefix.answer) for prefix in prefixes]
    assert texts[0] in ("", "One.", "One. Two.") and len(set(texts)) == len(texts)
    assert set(texts) == {"One. Two. #4"[:n] for n in range(12)} and again == prefixes


def test_finished_shards_are_found_again_only_while_nothing_changed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    task = SimpleNamespace(
        name="sums", metric="exact_match,first", stops=[], max_new_tokens=8, files=()
    )

    def folder(**changes):
        return collect.shards_of(
            replace(PARAMS, segments=replace(OWN, judge_model="judge", **changes)), PAIR, task
        ).folder

    folders = []
    for path in (
        collect.REFERENCE,
        "data/prompts/train.jsonl",
        "judge/model.safetensors",
        "data/else",
    ):
        write_text(Path(path), "changed")
        folders.append(folder())
    folders += [folder(hidden=8, lr=0.1), folder(samples=5)]
    task.metric = "exact_match,last"
    folders.append(folder())
    assert folders[2] == folders[3] == folders[4] and len(set(folders)) == 5


def folder(path, kind, **config):
    """A tiny encoder with its tokenizer."""
    torch.manual_seed(0)
    tokenizer = byte_tokenizer(bos=False)
    kind(BertConfig(vocab_size=len(tokenizer), **SIZES, **config)).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return str(path)


def nli(path, answer):
    """An entailment model that always says label `answer`."""
    name = folder(
        path, BertForSequenceClassification, id2label={0: "contradiction", 1: "ENTAILMENT"}
    )
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


def test_entailment_has_to_hold_both_ways(tmp_path, monkeypatch):
    judge = Entailment(nli(tmp_path / "yes", 1))
    assert judge({}, SAMPLES) == [0, 0, 0, 0]
    assert Entailment(nli(tmp_path / "no", 0))({}, [*SAMPLES, SAMPLES[0]]) == [0, 1, 2, 3, 0]
    monkeypatch.setattr(
        judge, "matrix", lambda texts: torch.ones(len(texts), len(texts), dtype=torch.bool).tril()
    )
    assert judge({}, SAMPLES) == [0, 1, 2, 3]


def test_embeddings_group_by_cosine_whatever_the_padding(tmp_path):
    name = folder(tmp_path, BertModel)
    assert Embedding(name, -1.0)({}, SAMPLES) == [0, 0, 0, 0]
    texts = [Sample("ab", ""), Sample("a longer text", ""), Sample("ab", "")]
    assert Embedding(name, 0.99999)({}, texts) == [0, 1, 0]


def pooling_folder(path, config, *further):
    """The encoder as sentence-transformers would save it."""
    name = folder(path, BertModel)
    kinds = [("Transformer", ""), ("Pooling", "1_Pooling"), *further]
    write_json(
        path / "modules.json",
        [{"type": f"sentence_transformers.models.{k}", "path": p} for k, p in kinds],
    )
    write_json(path / "1_Pooling/config.json", {"word_embedding_dimension": 16, **config})
    return name


def switched(mode):
    return {
        f"pooling_mode_{other}": other == mode
        for other in ("cls_token", "mean_tokens", "max_tokens", "lasttoken")
    }


def test_a_sentence_model_pools_as_its_folder_says(tmp_path):
    """The padding of the shorter text must not be taken for its last token."""
    texts, known = ["ab", "a longer text"], {}
    for mode in ("cls_token", "lasttoken", "mean_tokens"):
        judge = Embedding(
            pooling_folder(tmp_path / mode, switched(mode), ("Normalize", "2_Normalize")), 0.9
        )
        both, alone = (judge.vectors(some) for some in (texts, texts[:1]))
        torch.testing.assert_close(both[:1], alone, atol=1e-5, rtol=1e-5)
        known[mode] = both
    plain = Embedding(folder(tmp_path / "plain", BertModel), 0.9)
    torch.testing.assert_close(known["mean_tokens"], plain.vectors(texts))
    with torch.no_grad():
        states = plain.model(
            plain.tokenizer("ab", return_tensors="pt").input_ids
        ).last_hidden_state[0]
    unit = torch.nn.functional.normalize(states, dim=-1)
    for mode, place in (("cls_token", 0), ("lasttoken", -1)):
        torch.testing.assert_close(known[mode][0], unit[place], atol=1e-5, rtol=1e-5)
    assert pooling_of(pooling_folder(tmp_path / "new", {"pooling_mode": "cls"})) == "cls"


@pytest.mark.parametrize("config, further, said", [
    (switched("max_tokens"), (), "max_tokens"), (switched("mean_tokens"), (("Dense", "2_Dense"),), "Dense"),
])  # fmt: skip
def test_a_sentence_model_that_does_something_else_is_refused(tmp_path, config, further, said):
    with pytest.raises(UserError, match=said):
        Embedding(pooling_folder(tmp_path, config, *further), 0.9)


def test_a_judge_needs_a_model_that_fits(tmp_path):
    other = replace(OWN, judge_model=folder(tmp_path / "encoder", BertModel))
    assert list(judges_of(other, SameLastSign())) == ["answer", "exact", "embedding"]
    with pytest.raises(UserError, match="needs a model"):
        replace(OWN, judge="nli")
    with pytest.raises(UserError, match="no label 'entailment'"):
        Entailment(folder(tmp_path / "bert", BertForSequenceClassification))


def test_a_share_counts_one_models_samples_in_the_group_of_any():
    row = {"roles": ["target"] * 4 + ["draft"] * 2, "groups": {"exact": [0, 0, 0, 1, 1, 2]}}
    assert shares(row, "exact", "target") == [0.75, 0.75, 0.75, 0.25, 0.25, 0.0]
    assert shares(row, "exact", "draft") == [0.0, 0.0, 0.0, 0.5, 0.5, 0.5]
    assert (
        shares({"roles": ["target"] * 3, "groups": {"exact": [0, 0, 0]}}, "exact", "target")
        == [1.0] * 3
    )
