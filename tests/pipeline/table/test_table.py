"""The large table: which methods it has, and what its own stages find, against hand-made and tiny cases."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml
from pipeline.labels.spans.agreement import compare

from gistgate.core.decoder import Decoder
from gistgate.core.features import extract, layers_needed
from gistgate.core.files import read_json, save_tensors, write_text
from gistgate.core.utils import UserError
from gistgate.drafters.model import ModelDrafter
from gistgate.drafters.text import PromptLookup
from gistgate.rules import RULES, make_rule
from gistgate.rules.history import PairCounts
from pipeline import params as params_of_table
from pipeline.decode import Operating, calibration_file, evaluation_folder
from pipeline.labels import spans
from pipeline.labels import spans as judge
from pipeline.labels import spans as pair_counts
from pipeline.labels.features import FirstBlocks, rounds
from pipeline.labels.mining import MismatchRecorder, stamped
from pipeline.labels.schema import AnswerText, Policy, concatenated, pack
from pipeline.labels.spans import agreement, calibrate, span_rows
from pipeline.params import FILE_TABLE as FILE
from pipeline.params import TableParams, build, read_params, read_table_params, table_params
from pipeline.paths import SPANS, TABLE_MODELS
from tests.tiny import tiny_pair

ROOT = Path(__file__).parents[3]
REQUEST = {"max_new_tokens": 24, "eos_ids": [2]}
PROMPTS = [{"ids": ids} for ids in ([5, 9, 30, 44], [7, 7, 120], [11, 200, 3, 90, 17, 18])]


def test_every_rule_that_greedy_decoding_defines_is_in_the_table():
    core = read_params(ROOT / "params.yaml")
    table = table_params(core)
    assert list(table.methods)[: len(core.methods)] == list(core.methods)
    ruled = {method.rule for method in table.methods.values()}
    # lossless; for sampled requests only; autojudge as long as costs are 0
    assert RULES.keys() - ruled == {"block", "traversal", "lenience", "wisv"}
    assert {name for name, method in table.methods.items() if method.extra} == set(table.methods) - set(core.methods)


def test_a_method_of_the_table_takes_what_its_rule_declares():
    table = table_params(read_params(ROOT / "params.yaml"))
    sense = table.method("sense")
    assert (sense.knob, sense.grid, sense.variants) == ("gamma", RULES["sense"].grid, RULES["sense"].variants)
    assert table.method("judge").head == "judge" and table.method("judge").learned
    assert make_rule("trt-relaxed", **table.method("trt-relaxed").settings({}, 0.3)).scope == "all"


def test_rules_of_the_table_draft_as_the_pair_does(monkeypatch):
    """A pair without a draft model has another drafter, whose id certificates and shared times go by."""
    core = read_params(ROOT / "params.yaml")
    monkeypatch.setattr(params_of_table, "drafter_of", lambda _pair: "suffix")
    extra = [method for method in table_params(core).methods.values() if method.extra]
    assert extra and {method.drafter for method in extra} == {"suffix"}


def test_a_group_without_methods_leaves_the_folder_that_the_graph_expects(tmp_path, monkeypatch):
    table = table_params(read_params(ROOT / "params.yaml"))
    free = replace(table, methods={name: one for name, one in table.methods.items() if not one.learned})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(calibrate, "table_params", lambda: free)
    monkeypatch.setattr(calibrate, "table_study", lambda: None)
    calibrate.main("learned")
    assert list(Path("reports/table/calibration/learned").iterdir()) == []


def test_its_results_lie_apart():
    core = read_params(ROOT / "params.yaml")
    table = table_params(core)
    assert (core.reports, table.reports) == (Path("reports"), Path("reports/table"))
    assert calibration_file(table, "fly") == Path("reports/calibration/free/fly.json")
    assert calibration_file(table, "judge") == Path("reports/table/calibration/learned/judge.json")
    assert evaluation_folder(table, "sense") == Path("reports/table/evaluation/sense")
    assert evaluation_folder(table, "plain") == Path("reports/evaluation/plain")


@pytest.mark.parametrize("block", [{"skip": ["mras"]}, {"fixed": {"mras": {}}}, {"heads": {"mras": "mlp"}}])
def test_an_unknown_rule_is_refused(block):
    with pytest.raises(UserError, match="unknown rule 'mras'. Did you mean 'mars'?"):
        build(TableParams, block)


def test_a_table_without_the_rule_judge_reads_no_spans_and_trains_no_head(tmp_path, monkeypatch):
    """Nothing is decoded for it: the folder has no prompts, no labels and no models."""
    write_text(tmp_path / "params.yaml", (ROOT / "params.yaml").read_text())
    write_text(tmp_path / FILE, yaml.safe_dump({"skip": ["judge"]}))
    monkeypatch.chdir(tmp_path)
    assert not read_table_params().wants_judge and TableParams().wants_judge
    spans.main()
    judge.main()
    assert not any((tmp_path / SPANS).iterdir()) and not any((tmp_path / TABLE_MODELS / "judge").iterdir())


def test_who_is_right():
    nan = np.nan
    opinions = {"a": np.array([1, 1, 0, 0, 1, 1.0]), "b": np.array([1, 0, 1, 0, 0, nan])}
    found = compare(opinions, np.array([True, True, True, False, False, True]))
    assert (found["mismatches"], found["harmless"]) == (5, 3)
    assert found["methods"]["a"] == {"accepted": 3, "harmful_accepted": 1, "precision": 2 / 3, "recall": 2 / 3}
    assert found["methods"]["b"] == {"accepted": 2, "harmful_accepted": 0, "precision": 1.0, "recall": 2 / 3}
    assert found["disagreements"] == [
        {"a": "a", "b": "b", "only_a": 2, "only_a_harmless": 1, "only_b": 1, "only_b_harmless": 1}
    ]


def test_without_a_loose_method_nothing_is_judged():
    found = compare({}, np.array([True, False, True]))
    assert (found["mismatches"], found["harmless"], found["methods"], found["disagreements"]) == (3, 2, {}, [])


def test_a_method_with_a_drafter_of_its_own_is_no_judge(tmp_path, monkeypatch):
    """It proposes few of the recorded tokens, so that only those would be left for all methods."""
    points = {
        name: Operating(name, rule, drafter, 4)
        for name, rule, drafter in (("strict", "exact", "model"), ("a", "fly", "model"), ("b", "fly", "lookup"))
    }
    (tmp_path / "counts").write_text("")
    counted = {"counts": str(tmp_path / "counts")}  # of the very rows that are judged
    points["c"] = Operating("c", "csd", "model", 4, settings=counted)
    judged: list[str] = []

    def opinion(_params, _pair, point, table, _texts):
        judged.append(point.method)
        return np.ones(len(table["kept"]))

    monkeypatch.setattr(agreement, "table_params", lambda: SimpleNamespace(
        methods=points, train=None, seed=1, reports=tmp_path
    ))  # fmt: skip
    monkeypatch.setattr(agreement, "load_pair", lambda _params: None)
    table = {"problem": torch.arange(3), "kept": torch.tensor([1.0, 0.0, 1.0])}
    monkeypatch.setattr(agreement, "read_labels", lambda: (table, {}))
    everything = SimpleNamespace(test=torch.ones(3, dtype=torch.bool))
    monkeypatch.setattr(agreement, "split_by_problem", lambda *_: everything)
    monkeypatch.setattr(agreement, "operating_point", lambda _params, name: points[name])
    monkeypatch.setattr(agreement, "opinion", opinion)
    agreement.main()
    assert judged == ["a"] and set(read_json(tmp_path / "judgements.json")["methods"]) == {"a"}


def test_a_rule_that_accepts_nothing_has_no_precision():
    found = compare({"a": np.zeros(2)}, np.array([True, False]))
    assert found["methods"]["a"]["precision"] is None and found["methods"]["a"]["recall"] == 0


@pytest.fixture(scope="module")
def pair():
    return tiny_pair(noise=0.15)


@pytest.fixture(scope="module")
def mismatches(pair):
    """Every mismatch of strict decoding, as the stage `collect` records it, with the states it saw."""
    recorder = MismatchRecorder(4, lambda block: extract(block, ["h_tok:post"]), layers=["post"])
    decoder = Decoder(pair[0], ModelDrafter(pair[1]), make_rule("exact"), 4, observer=recorder)
    answers = decoder.generate([prompt["ids"] for prompt in PROMPTS], **REQUEST)
    tables = [stamped(table, i, Policy.STRICT) for i, table in enumerate(recorder.take(answers)) if table]
    texts = {(i, Policy.STRICT): AnswerText(i, Policy.STRICT, answer.ids) for i, answer in enumerate(answers)}
    return concatenated(tables), texts


def test_a_replay_shows_the_block_that_begins_with_the_mismatch(pair, mismatches):
    """The same token is proposed, the strict rule refuses it, and the target saw the same text in front of it."""
    table, texts = mismatches
    observer = FirstBlocks(layers_needed(["h_tok:post"]))
    decoder = Decoder(pair[0], ModelDrafter(pair[1]), make_rule("exact"), 4, observer=observer)
    seen = 0
    for part, block, acceptance in rounds(decoder, observer, table, texts, PROMPTS, 5, **REQUEST):
        assert block.draft_ids[:, 0].tolist() == part["draft_id"].tolist()
        assert block.top_ids[:, 0].tolist() == part["target_id"].tolist()
        assert acceptance.length.tolist() == [0] * len(part["problem"])
        state = extract(block, ["h_tok:post"])["h_tok:post"][:, 0].float()
        torch.testing.assert_close(state, part["h_tok:post"], atol=1e-3, rtol=1e-3)
        seen += len(part["problem"])
    assert seen == len(table["problem"]) >= 10


class Finds(PromptLookup):
    """Finds nothing but where a text has an even number of tokens, and there token 7."""

    def continuation(self, text, num_draft):
        return [] if len(text) % 2 else [7]


def test_batches_in_which_nothing_is_proposed_are_passed_over(pair, mismatches):
    table, texts = mismatches
    observer = FirstBlocks()
    decoder = Decoder(pair[0], Finds(), make_rule("exact"), 4, observer=observer)
    shown = {**table, "draft_id": torch.full_like(table["draft_id"], 7)}
    found = [part for part, _, _ in rounds(decoder, observer, shown, texts, PROMPTS, 1, **REQUEST)]
    assert 0 < len(found) < len(table["problem"])


def test_a_loose_rule_accepts_at_the_replay(pair, mismatches):
    table, texts = mismatches
    observer = FirstBlocks()
    decoder = Decoder(pair[0], ModelDrafter(pair[1]), make_rule("prob", r=1e-30), 4, observer=observer)
    lengths = [acceptance.length for _, _, acceptance in rounds(decoder, observer, table, texts, PROMPTS, 5, **REQUEST)]
    assert (torch.cat(lengths) > 0).all()


def test_a_span_shares_the_label_of_its_mismatch(pair, mismatches):
    table, texts = mismatches
    table = {**table, "kept": torch.arange(len(table["problem"])).float() / 100}
    observer = FirstBlocks(layers_needed(["h_tok:pre"]), wants_q=True)
    decoder = Decoder(pair[0], ModelDrafter(pair[1]), make_rule("exact"), 4, observer=observer)
    for part, block, _ in rounds(decoder, observer, table, texts, PROMPTS, 5, **REQUEST):
        spans = span_rows(part, block, ("h_tok:pre", "scalars"), 3)
        lengths = block.valid[:, :3].sum(-1)
        assert spans["kept"].tolist() == part["kept"].repeat_interleave(lengths).tolist()
        assert spans["problem"].tolist() == part["problem"].repeat_interleave(lengths).tolist()
        places = [int(at) + j for at, num in zip(part["position"], lengths, strict=True) for j in range(int(num))]
        assert spans["position"].tolist() == places
        assert torch.equal(spans["h_tok:pre"][0], block.hidden["pre"][0, 1].float())


def test_refused_pairs_are_counted_over_all_shards(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for index, pairs in enumerate([[(1, 2), (1, 2), (3, 4)], [(1, 2), (4, 3)]]):
        x, t = torch.tensor(pairs).T.contiguous()
        found = {
            "row": x,
            "position": x,
            "draft_id": x.clone(),
            "target_id": t.clone(),
            "accepted": (x * 0).to(torch.int8),
        }
        found["behind"] = torch.full((len(x), 3), -1, dtype=torch.int32)
        records = {name: column.clone() for name, column in stamped(found, 0, Policy.STRICT).items()}
        save_tensors(f"data/mismatches/strict/rows-{index:05d}.safetensors", pack(records, []))
    pair_counts.main()
    table = PairCounts.load(pair_counts.PAIRS)
    asked = torch.tensor([1, 3, 4, 2]), torch.tensor([2, 4, 3, 1])
    assert table.look_up(*asked).tolist() == [3, 1, 1, 0]
