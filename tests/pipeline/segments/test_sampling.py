"""Prefixes and samples: what is drawn follows from the seed alone, and what the limit cut is left out."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

from gistgate.core.files import write_text
from gistgate.segments.writing import Boundaries
from pipeline.pair.pair import Pair
from pipeline.params import Params, SegmentParams
from pipeline.segments.collect import REFERENCE, Prefix, prefixes_of, sample_segments, shards_of
from tests.architectures import pair
from tests.tiny import byte_tokenizer

TARGET, DRAFT = pair("llama")
TOKENIZER = byte_tokenizer()
BOUNDARIES = Boundaries(TOKENIZER, "re:[a-m]$")
OWN = SegmentParams(limit=8, samples=4)
REQUEST = {"eos_ids": (), "stops": []}
PREFIXES = [Prefix(0, [5, 6, 7], [8]), Prefix(1, [9, 10], []), Prefix(2, [40, 41, 42, 43], [60, 61])]


def drawn(prefixes, batch, seed=1):
    both = Pair(TARGET, DRAFT, TOKENIZER, "tiny")
    return sample_segments(TARGET, both, prefixes, BOUNDARIES, OWN, REQUEST, batch, seed)


def test_samples_do_not_depend_on_the_batch_and_end_where_a_segment_ends():
    found = drawn(PREFIXES, 12)
    assert found == drawn(PREFIXES, 5) != drawn(PREFIXES, 12, seed=2)
    segments = [ids for some in found for ids in some]
    assert segments and all(BOUNDARIES.cut(ids) == [ids] and BOUNDARIES.ends(ids) for ids in segments)
    assert len(segments) < 12  # the limit cut some


class Task:
    """Its answer is the text behind the sign #, if any."""

    def text(self, tokenizer, ids):
        return tokenizer.decode(list(ids))

    def same_meaning(self, doc, text, reference):
        return "#" in text and text.split("#")[1] == reference.split("#")[1]


def test_prefixes_begin_at_ends_and_elsewhere_but_never_behind_the_answer():
    answer = TOKENIZER.encode("One. Two. #4", add_special_tokens=False)
    params = Params(segments=replace(OWN, prefixes=50))
    sentence = Boundaries(TOKENIZER, "sentence")
    prefixes = prefixes_of(3, {"ids": [5], "doc": {}}, answer, sentence, Task(), TOKENIZER, params)
    texts = [TOKENIZER.decode(prefix.answer) for prefix in prefixes]
    assert texts[0] in ("", "One.", "One. Two.") and len(set(texts)) == len(texts)
    assert set(texts) == {"One. Two. #4"[:n] for n in range(12)}
    again = prefixes_of(3, {"ids": [5], "doc": {}}, answer, sentence, Task(), TOKENIZER, params)
    assert again == prefixes


def test_finished_shards_are_found_again_only_while_nothing_changed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    params = Params(segments=replace(OWN, judge_model="judge"))
    task = SimpleNamespace(name="sums", metric="exact_match,first", stops=[], max_new_tokens=8)
    both = Pair(TARGET, DRAFT, TOKENIZER, "tiny")
    folders = []
    for path in (REFERENCE, Path("data/prompts/train.jsonl"), Path("judge/model.safetensors"), Path("data/else")):
        write_text(path, "changed")
        folders += [shards_of(params, both, task).folder]
    learning = replace(params, segments=replace(params.segments, hidden=8, lr=0.1))
    folders.append(shards_of(learning, both, task).folder)
    drawing = replace(params, segments=replace(params.segments, samples=5))
    folders.append(shards_of(drawing, both, task).folder)
    task.metric = "exact_match,last"
    folders.append(shards_of(params, both, task).folder)
    assert folders[2] == folders[3] == folders[4] and len(set(folders)) == 5
