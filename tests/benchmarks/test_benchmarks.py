"""The benchmarks' own parts, on tiny models: they measure what they say, and write what they promise."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from matplotlib.text import Text
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks import block, figures, sampled, scripted, speed
from benchmarks.bench import ratios, save, side_by_side
from benchmarks.limit import figures_of, limit
from benchmarks.parts import DraftStep, Forward, read_per_step, seconds_of
from gistgate.decoding.decoder import Decoder
from gistgate.drafters.model import ModelDrafter
from gistgate.errors import UserError
from gistgate.observing.intervals import over_prompts
from gistgate.rules import make_rule
from pipeline.speed.clock import Contender
from tests.architectures import tiny_model

ROOT = Path(__file__).parents[2]
TINY = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(scripted.SHAPES, "tiny", TINY)


def test_all_contenders_see_all_batches_in_turn():
    seen: list[tuple[str, int]] = []

    def contender(name: str) -> Contender:
        return Contender(name, lambda batch: (seen.append((name, batch[0][0])), ([[1, 2]], 1))[1], 0)

    times = side_by_side([contender("a"), contender("b")], [[[1]], [[2]]], say=False)
    assert seen == [("a", 1), ("b", 1), ("a", 1), ("b", 1), ("b", 2), ("a", 2)]
    assert times["a"]["tokens"] == [2, 2] and len(times["b"]["seconds"]) == 2


def test_a_prompt_that_one_contender_answers_with_a_loop_counts_for_none():
    def contender(name: str, looping: int) -> Contender:
        return Contender(name, lambda batch: ([[7] * 4 if batch[0][0] == looping else [1, 2, 3]], 1), 0)

    times = side_by_side([contender("a", 0), contender("b", 2)], [[[1]], [[2]], [[3]]], say=False)
    assert all((one["tokens"], len(one["seconds"]), one["loops"]) == ([3, 3], 2, 1) for one in times.values())
    times = side_by_side([contender("a", 2)], [[[2]], [[2]]], say=False)
    assert (times["a"]["tokens"], times["a"]["loops"]) == ([4, 4], 2)  # nothing else would be left


def test_every_size_has_batches_enough_for_an_interval():
    prompts = [[1], [2], [3], [4], [5]]
    assert speed.batches_of(prompts, 1, 5) == [[ids] for ids in prompts]
    assert speed.batches_of(prompts, 1, 1) == [[[1]], [[2]], [[3]], [[4]]]
    with pytest.raises(UserError, match="do not fill 4 batches of 2, none of which comes twice"):
        speed.batches_of(prompts, 2, 4)


def test_a_batch_is_compared_with_its_rows_in_turn():
    seen: list[list[list[int]]] = []
    contender = Contender("a", lambda batch: (seen.append(batch), ([[7, 8, 9]] * len(batch), 1))[1], 4)
    times = side_by_side([contender, speed.row_by_row(contender)], [[[1], [2]], [[3], [4]]], say=False)
    assert seen[3:] == [[[1], [2]], [[1]], [[2]], [[3]], [[4]], [[3], [4]]]
    assert [one["tokens"] for one in times.values()] == [[6, 6], [6, 6]]
    for (name, entry), seconds in zip(times.items(), ([1.0, 2.0], [4.0, 8.0]), strict=True):
        times[name] = {**entry, "seconds": seconds}
    found = speed.against_rows(times)
    assert set(found) == {"a"} and found["a"]["vs_batch_1"] == {"mean": 4, "low": 4, "high": 4} and found["a"]["n"] == 2


def test_ratios_are_of_summed_seconds():
    times = {
        "slow": {"block": 0, "seconds": [2.0, 4.0], "tokens": [3, 3], "loops": 0},
        "fast": {"block": 4, "seconds": [1.0, 1.0], "tokens": [3, 3], "loops": 0},
    }
    found = ratios(times, ("slow",))
    assert found["fast"]["vs_slow"]["mean"] == 3.0 and found["fast"]["tokens_per_second"] == 3.0
    assert 2.0 <= found["fast"]["vs_slow"]["low"] <= 3.0 <= found["fast"]["vs_slow"]["high"] <= 4.0
    assert "vs_slow" not in found["slow"]


def test_results_name_the_machine(tmp_path: Path):
    path = save("x", {"a": 1}, tmp_path)
    written = json.loads(path.read_text())
    assert written["a"] == 1 and written["machine"]["torch"] == torch.__version__


def test_a_script_is_said_whatever_the_weights(tiny: None):
    """The target says its text; the draft is wrong where its script is, and there alone."""
    text, draft_text = scripted.scripts(60, 50, 0.2, seed=3)
    target = scripted.scripted("tiny", text, 50, torch.float32, "cpu")
    draft = scripted.scripted("tiny", draft_text, 50, torch.float32, "cpu")
    prompt = text[:10].tolist()
    answer = Decoder(target, ModelDrafter(draft), make_rule("exact"), 4).generate([prompt], max_new_tokens=40)[0]
    assert answer.ids == text[10:50].tolist()
    assert 1 < answer.statistics.mean_accepted_length < 5
    wrong = (text != draft_text).float().mean()
    assert 0.05 < wrong < 0.4


def test_an_accepted_length_follows_the_error(tiny: None):
    lengths = []
    for error in (0.0, 0.5, 1.0):
        text, draft_text = scripted.scripts(80, 50, error, seed=1)
        target = scripted.scripted("tiny", text, 50, torch.float32, "cpu")
        draft = scripted.scripted("tiny", draft_text, 50, torch.float32, "cpu")
        decoder = Decoder(target, ModelDrafter(draft), make_rule("exact"), 4)
        answer = decoder.generate([text[:10].tolist()], max_new_tokens=50)[0]
        lengths.append(answer.statistics.mean_accepted_length)
    assert lengths[0] == 5.0 > lengths[1] > lengths[2] == 1.0


def test_a_closed_gate_changes_nothing_and_is_asked(tiny: None):
    """What `shapes` times as the price of a gate decodes as strict decoding does."""
    text, draft_text = scripted.scripts(60, 50, 0.3, seed=2)
    target = scripted.scripted("tiny", text, 50, torch.float32, "cpu")
    draft = scripted.scripted("tiny", draft_text, 50, torch.float32, "cpu")
    gate = scripted.random_gate(target)
    asked = []
    gate.register_forward_hook(lambda *call: asked.append(call[-1]))
    decoder = Decoder(target, ModelDrafter(draft), make_rule("autojudge", risk=-1.0), 4, gate=gate)
    strict = Decoder(target, ModelDrafter(draft), make_rule("exact"), 4)
    prompt = text[:10].tolist()
    with_gate, without = (one.generate([prompt], max_new_tokens=40)[0] for one in (decoder, strict))
    assert with_gate.ids == without.ids
    assert with_gate.statistics.mean_accepted_length == without.statistics.mean_accepted_length
    assert len(asked) == with_gate.statistics.forwards > 1


def test_limits_are_medians_over_prompts_with_intervals():
    columns = {
        "step": [1.0, 2.0, 1.0],
        "verify": [2.0, 2.0, 4.0],
        "draft": [2.0, 2.0, 2.0],
        "judged": [3.0, 3.0, 3.0],
        "round": [5.0, 5.0, 8.0],
        "tokens": [6, 8, 10],
        "forwards": [2, 2, 2],
    }
    found = over_prompts(partial(figures_of, 4), columns)
    middle = {"c": 0.5, "v": 2.0, "tau": 4.0, "possible": 1.0, "reached": 0.8, "attained": 0.8, "judging": 0.2}
    assert {name: found[name].mean for name in middle} == pytest.approx(middle)
    assert (found["v"].low, found["v"].high) == (1.0, 4.0)
    assert (found["tau"].low, found["tau"].high) == pytest.approx((20 / 6, 28 / 6))


def test_a_limit_has_its_intervals_beside_the_figures():
    model, request = tiny_model("llama"), {"max_new_tokens": 12}
    pair = SimpleNamespace(target=model, draft_model=model)
    workload = SimpleNamespace(pair=pair, ids=[[1, 2], [3], [4]], request=request)
    found = limit(workload, Decoder(model, ModelDrafter(model), make_rule("exact"), 3), 1)
    assert found["tau"] == 4 and found["intervals"]["tau"] == {"mean": 4, "low": 4, "high": 4}
    for name in ("c", "v", "reached"):
        one = found["intervals"][name]
        assert 0 < one["low"] <= one["mean"] == found[name] <= one["high"]
    figures.limit_figure({"engines": {"eager": {"strict": found}}}).draw_without_rendering()


@pytest.mark.parametrize("name", ["limit", "block"])
def test_figures_of_published_results(name: str):
    payload = json.loads((ROOT / f"benchmarks/results/{name}-cpu.json").read_text())
    drawn = getattr(figures, f"{name}_figure")(payload)
    drawn.draw_without_rendering()
    shown = {text.get_text() for axes in drawn.axes for text in axes.findobj(Text)}
    methods = payload["methods"] if name == "block" else next(iter(payload["engines"].values()))
    assert all(any(method in line for line in shown) for method in methods)


def test_sampled_arms_draw_apart_and_are_compared_by_the_token():
    prompts = [[1, 2], [3]]
    seeds = [seed for arm in ("plain", "one chain, exact") for seed in sampled.seeds_of(arm, prompts)]
    assert len(set(seeds)) == 4 and seeds[:2] == sampled.seeds_of("plain", prompts)
    plain = {"block": 0, "seconds": [4.0, 4.0], "tokens": [2, 4]}
    tree = {"block": 8, "seconds": [2.0, 4.0], "tokens": [2, 8]}
    found = sampled.speeds({"plain": plain, "tree": tree})
    assert found["tree"]["vs_plain"]["mean"] == 2.0 and found["tree"]["tokens_per_second"] == 10 / 6


def test_the_page_about_trees_shows_the_published_result():
    arms = json.loads((ROOT / "benchmarks/results/sampled-cpu.json").read_text())["arms"]
    page = (ROOT / "docs/trees.md").read_text()
    shown = [arm[key] for arm in arms.values() for key in ("tau", "vs_plain") if "vs_plain" in arm]
    assert len(shown) == 12
    assert all(f"| {one['mean']:.2f} [{one['low']:.2f}, {one['high']:.2f}] |" in page for one in shown)


def test_parts_leave_the_cache_as_it_was():
    model = tiny_model("llama")
    assert seconds_of(Forward(model, 3), "eager", 3, room=8) > 0
    assert seconds_of(DraftStep(model, 2), "eager", 3, room=8) > 0
    with torch.no_grad():
        call = Forward(model, 3).eager(8)
        assert torch.equal(call(), call())


@pytest.mark.parametrize("tied", [False, True])
def test_a_step_reads_an_embedding_that_the_output_layer_shares(tied: bool):
    config = LlamaConfig(**TINY, vocab_size=50, tie_word_embeddings=tied)
    model = LlamaForCausalLM(config)
    every = 4 * sum(one.numel() for one in model.parameters())
    assert read_per_step(model) == every - (0 if tied else 4 * 50 * 16)


@pytest.mark.parametrize("engines", ["eager", "compiled, eager"])
def test_one_run_sweeps_every_engine_on_development_prompts(
    engines: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """Everything is real but the engine, which is the eager one under either name."""
    model, loaded, proposed, asked = tiny_model("llama"), [], {}, []

    def strict(k: int, engine: str) -> Decoder:
        asked.append((engine, k))
        return Decoder(model, ModelDrafter(model), make_rule("exact"), k)

    def load(num: int, split: str) -> SimpleNamespace:
        loaded.append((num, split))
        pair, request = SimpleNamespace(name="tiny"), {"max_new_tokens": 6, "eos_ids": []}
        about = {"pair": pair, "request": request, "points": {}, "headline": []}
        return SimpleNamespace(ids=[[1, 2], [3], [4]], strict=strict, **about)

    monkeypatch.setattr(block.Workload, "load", load)
    monkeypatch.setattr(block, "propose", proposed.update)
    block.main(ks="2, 3", engine=engines, prompts=3, write=True, results=tmp_path)
    named = engines.split(", ")
    assert loaded == [(3, "development")]
    assert asked == [(engine, k) for engine in named for k in (2, 3)]
    payloads = [json.loads((tmp_path / f"{block.result(engine)}-cpu.json").read_text()) for engine in named]
    assert [payload["engine"] for payload in payloads] == named
    for payload in payloads:
        (found,) = payload["methods"].values()
        assert found["tokens_per_second"].keys() == {"2", "3"} and min(found["tokens_per_second"].values()) > 0
        best = str(found["fastest"])
        assert found["vs_fastest"][best] == {"mean": 1.0, "low": 1.0, "high": 1.0}
        assert found["tokens_per_second"][best] == max(found["tokens_per_second"].values())
    assert proposed == {"strict": payloads[0]["methods"]["strict"]["proposed"]}
    assert {path.name for path in tmp_path.glob("*.json")} == {f"{block.result(engine)}-cpu.json" for engine in named}
    with pytest.raises(UserError, match="'fly' is not certified here"):
        block.main(methods="fly", results=tmp_path)
    with pytest.raises(UserError, match="'compile' is no engine. Did you mean 'compiled'"):
        block.main(engine="compile", results=tmp_path)


def test_proposals_keep_the_comments(tmp_path: Path):
    """Strict decoding's K goes to the run's parameters, every other K to those of the study of speed."""
    files = {tmp_path / "params.yaml": "params.yaml", tmp_path / "speed.yaml": "pipeline/studies/speed/params.yaml"}
    for copy, name in files.items():
        copy.write_text((ROOT / name).read_text())
    block.propose({"strict": 7, "fly": 9, "wisv": 6}, *files)
    run, speed = (yaml.safe_load(copy.read_text()) for copy in files)
    before = yaml.safe_load((ROOT / "pipeline/studies/speed/params.yaml").read_text())
    assert run["decoding"]["strict_block"] == 7 and speed["blocks"] == {**before["blocks"], "fly": 9, "wisv": 6}
    for (copy, name), changed in zip(files.items(), (1, 2), strict=True):
        old = (ROOT / name).read_text().splitlines()
        assert len([line for line in copy.read_text().splitlines() if line not in old]) == changed
