"""Prefixes and samples follow from the seed alone, and shares are arithmetic."""

from types import SimpleNamespace

from gistgate.core.files import write_text
from gistgate.segments.writing import Boundaries
from pipeline.pair.pair import Pair
from pipeline.segments import collect
from pipeline.segments.collect import Prefix, Sampler, shares
from tests.architectures import pair
from tests.pipeline.parameters import parameters
from tests.tiny import byte_tokenizer

TARGET, DRAFT = pair("llama")
TOKENIZER = byte_tokenizer()
PAIR = Pair(TARGET, DRAFT, TOKENIZER, "tiny")
STYLE = "re:[a-m]$"
PREFIXES = [
    Prefix(0, [5, 6, 7], [8]),
    Prefix(1, [9, 10], []),
    Prefix(2, [40, 41, 42, 43], [60, 61]),
]


def params_with(decoding=None, **segments):
    settings = {"limit": 8, "samples": 4, "style": STYLE, **segments}
    return parameters(segments=settings, decoding=decoding or {})


class Answers:
    """A task whose answer is the text behind the sign #, if any."""

    def text(self, tokenizer, ids):
        return tokenizer.decode(list(ids))

    def same_meaning(self, doc, text, reference):
        return "#" in text and text.split("#")[1] == reference.split("#")[1]


def sampler(params):
    return Sampler(PAIR, Answers(), params, {"eos_ids": (), "stops": []})


def test_samples_do_not_depend_on_the_batch_and_end_where_a_segment_ends():
    def drawn(batch, seed=1):
        params = params_with({"batch_size": batch})
        return sampler(params).segments(TARGET, PREFIXES, seed)

    by_prefix = drawn(12)
    assert by_prefix == drawn(5) != drawn(12, seed=2)
    segments = [ids for segments in by_prefix for ids in segments]
    assert 0 < len(segments) < 12  # the limit cuts several
    boundaries = Boundaries(TOKENIZER, STYLE)
    for ids in segments:
        assert boundaries.cut(ids) == [ids]
        assert boundaries.ends(ids)


def test_prefixes_begin_at_ends_and_elsewhere_but_never_behind_the_answer():
    answer = TOKENIZER.encode("One. Two. #4", add_special_tokens=False)
    writer = sampler(params_with(prefixes=50, style="sentence"))
    prefixes, again = (writer.prefixes(3, {"ids": [5], "doc": {}}, answer) for _ in range(2))
    assert again == prefixes
    texts = [TOKENIZER.decode(prefix.answer) for prefix in prefixes]
    assert texts[0] in ("", "One.", "One. Two.")
    assert sorted(texts) == ["One. Two. #4"[:n] for n in range(12)]


def test_finished_shards_are_found_again_only_while_nothing_changed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    task = SimpleNamespace(name="sums", metric="first", stops=[], max_new_tokens=8, files=())

    def folder(**changes):
        params = params_with(**changes)
        return collect.shards_of(params, PAIR, task).folder

    folders = []
    for file in (collect.REFERENCE, "data/prompts/train.jsonl"):
        write_text(file, "changed")
        folders.append(folder())
    write_text("data/else", "changed")
    assert folder() == folder(hidden=8, lr=0.1) == folders[-1]
    folders.append(folder(samples=5))
    task.metric = "last"
    folders.append(folder())
    assert len(set(folders)) == 4


def test_a_share_counts_one_models_samples_in_the_group_of_any():
    row = {"roles": ["target"] * 4 + ["draft"] * 2, "groups": {"exact": [0, 0, 0, 1, 1, 2]}}
    assert shares(row, "exact", "target") == [0.75, 0.75, 0.75, 0.25, 0.25, 0.0]
    assert shares(row, "exact", "draft") == [0.0, 0.0, 0.0, 0.5, 0.5, 0.5]
