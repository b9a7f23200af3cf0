"""Speed is compared on the same prompts with the better strict decoder, and published with every way of judging."""

import copy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from gistgate.errors import UserError
from gistgate.files import read_json, write_json
from pipeline.pairs.pair import Pair
from pipeline.params import read_params
from pipeline.studies.segments import benchmark
from pipeline.studies.segments.bench_shapes import RATES, STYLES, by_kind, decoders, worse
from pipeline.studies.segments.benchmark import timed
from pipeline.studies.segments.publish import summarise
from pipeline.studies.segments.tables import content
from tests.architectures import pair
from tests.tiny import byte_tokenizer

ROOT = Path(__file__).parents[4]
PARAMS = read_params(ROOT / "params.yaml")
PROMPTS = [{"ids": [5, 6, 7]}, {"ids": [9, 30, 31]}]
REQUEST = {"max_new_tokens": 6}


def tiny():
    return Pair(*copy.deepcopy(pair("llama", noise=0.06)), byte_tokenizer(), "tiny")  # noise is added in place


def raced():
    params = replace(PARAMS, benchmark=replace(PARAMS.benchmark, repeats=1))
    return timed(decoders(tiny()), PROMPTS, REQUEST, params)


def test_the_better_strict_decoder_is_the_reference():
    found = raced()
    strict = {name: one["tokens_per_second"] for name, one in found["decoders"].items() if name.startswith("strict")}
    assert found["reference"] == max(strict, key=strict.get)
    same = found["decoders"][found["reference"]]
    assert same["faster_per_answer"]["mean"] == same["faster_per_token"]["mean"] == 1
    shown = by_kind(found)
    assert shown["segments"].keys() == STYLES.keys() and shown["prompts"] == found["prompts"] <= len(PROMPTS)
    assert all(list(one) == [f"{rate:g}" for rate in RATES] for one in shown["segments"].values())


def decoder_on(device):
    return SimpleNamespace(block=4, target=SimpleNamespace(device=torch.device(device)))


def test_prompts_that_were_dropped_for_their_loops_are_not_counted(monkeypatch):
    measured = {"block": 4, "seconds": [[1.0]], "tokens": [8], "target_forwards": [2], "loops": 1}
    monkeypatch.setattr(benchmark, "race", lambda *_: {"strict, K = 4": measured})
    found = timed({"strict, K = 4": decoder_on("cpu")}, PROMPTS, REQUEST, PARAMS)
    assert (found["prompts"], found["loops"]) == (1, 1)


def test_seconds_of_the_processor_are_not_those_of_a_gpu(monkeypatch):
    monkeypatch.setattr(benchmark, "race", lambda *_: pytest.fail("it was timed"))
    with pytest.raises(UserError, match="the target is on cuda:0. Hide the GPU"):
        timed({"strict, K = 4": decoder_on("cpu"), "plain": decoder_on("cuda:0")}, PROMPTS, REQUEST, PARAMS)


def test_the_stage_runs_with_one_thread_whatever_the_parameters_say(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    threads = []

    def segments(_params):
        threads.append(torch.get_num_threads())
        return SimpleNamespace(pair=None)

    params = replace(PARAMS, benchmark=replace(PARAMS.benchmark, threads=2))
    names = {"read_params": lambda: params, "Segments": segments, "read_prompts": lambda _: PROMPTS}
    names |= {"token_decoders": lambda *_: {}, "segment_decoders": lambda _: {}, "request_of": lambda *_: REQUEST}
    for name, value in {**names, "timed": lambda *_: {"prompts": 1}}.items():
        monkeypatch.setattr(benchmark, name, value)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        benchmark.main()
    finally:
        torch.set_num_threads(before)
    assert threads == [1] and read_json(Path("reports/segments/benchmark.json"))["prompts"] == 1


def test_noise_changes_the_draft_alone():
    clean, noisy = tiny(), worse(tiny(), 0.5, 1)
    parts = zip(clean.target.parameters(), noisy.target.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in parts)
    changed = zip(clean.draft.parameters(), noisy.draft.parameters(), strict=True)
    assert any(not torch.equal(a, b) for a, b in changed)


def test_what_the_stages_report_becomes_the_page(tmp_path):
    quality = {"brier": 0.1, "brier_constant": 0.2, "ece": 0.03, "correlation": 0.5, "reliability": []}
    speed = {"tau": 4.0, "faster_per_answer": {"mean": 1.2, "low": 1.1, "high": 1.3}}
    one = {"value": 0.9, "n": 1000, "loss": 0.01, "passed": 0.5, "tau": 4.2, "draft_forwards_per_token": 1.5}
    tested = {"certified": 0.9, "calibration": [{**one, "bound": {"value": 0.021}}]}
    write_json(tmp_path / "calibration/probe.json", tested)
    write_json(tmp_path / "calibration/ratio.json", {"certified": None, "development": [one]})
    test = {"difference": {"mean": -0.01, "low": -0.02, "high": 0.0}}
    write_json(tmp_path / "evaluation/probe.json", test)
    write_json(
        tmp_path / "agreement.json",
        {
            "agreement": {"answer, truth": {"agree": 0.9, "kappa": 0.8}},
            "pairs_alike": {"answer": 0.7},
            "prefixes": 2,
            "segments": 9,
        },
    )
    write_json(tmp_path / "probes.json", {"target": {"mean, bce": {"draft": quality}}})
    names = ("strict, K = 4", "segments: probe", "segments: ratio")
    write_json(
        tmp_path / "benchmark.json",
        {"prompts": 3, "reference": names[0], "decoders": dict.fromkeys(names, speed)},
    )
    page = content(summarise(tmp_path, {"by_draft": {"noise 0": by_kind(raced())}}))
    assert "| **probe** | 0.9 | 1000 | 1.00 | **2.10** | -1.0 (-2.0 to +0.0) | 0.50 | 4.20 | 1.50 |" in page
    assert "| ratio | 0.9 | 1000 | 1.00 | - | - |" in page and "| answer, truth | 0.900 | 0.800 |" in page
    assert "| target | mean, bce | draft | 0.100 | 0.200 | 0.030 | 0.500 |" in page
