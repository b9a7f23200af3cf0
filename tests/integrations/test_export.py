"""An exported gate decodes with plain transformers exactly as the library does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    LogitsProcessorList,
    MaxTimeCriteria,
    StoppingCriteriaList,
)

from gistgate.block import Sampling
from gistgate.decoding.decoder import Decoder
from gistgate.drafters import ModelDrafter, PromptLookup
from gistgate.errors import UserError
from gistgate.gates import Gate, GateConfig, OperatingPoint
from gistgate.gates.identity import identify_model, identify_tokenizer
from gistgate.integrations.transformers.flatten import write_code
from gistgate.integrations.transformers.generate import generate
from gistgate.rules import make_rule
from tests.tiny import byte_tokenizer, tiny_pair, write_task

PROMPTS = ["Q: 12 + 1?\nA:", "Anna has three red apples and buys two.", "x"]
EOS, PAD = 2, 0
RISKS = {0.03: 0.2, 0.05: 0.3}
"""Certified budget -> knob."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """target/, draft/ and gate/, the last as it would be exported."""
    folder = tmp_path_factory.mktemp("export")
    target, draft = tiny_pair(noise=0.3)
    tokenizer = byte_tokenizer()
    for model, name in ((target, "target"), (draft, "draft")):
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    points = tuple(
        OperatingPoint(budget, 0.95, risk, n=1000, bound=budget - 0.001, block=4, certified=True)
        for budget, risk in RISKS.items()
    )
    torch.manual_seed(0)
    config = GateConfig(
        head={"type": "mlp", "hidden_size": 8},
        features={"h_tok:post": 32, "h_pred:layer:0": 32, "scalars": 8},
        target=identify_model(target, "target"),
        draft=identify_model(draft, "draft"),
        tokenizer=identify_tokenizer(tokenizer, "target"),
        operating_points=points,
        certificate={"rule": "autojudge", "drafter": "model", "block": 4, "fixed": {}, "headline_budget": 0.03},
    )
    gate = Gate(config)
    gate.map.a.fill_(12.0)  # a random head says nearly the same of every token: spread its opinions over (0, 1)
    gate.map.b.fill_(7.5)
    gate.save(folder / "gate", card="# A gate\n")
    write_code(folder / "gate")
    return folder


@pytest.fixture(scope="module")
def pair(place: Path) -> Any:
    return tuple(AutoModelForCausalLM.from_pretrained(place / name) for name in ("target", "draft"))


@pytest.fixture(scope="module")
def tokenizer(place: Path) -> Any:
    return AutoTokenizer.from_pretrained(place / "target", padding_side="left")


@pytest.fixture(scope="module")
def gate(place: Path, pair: Any) -> Gate:
    return Gate.load(place / "gate", *pair)


REQUESTS: dict[str, dict[str, Any]] = {
    "one": {"prompts": PROMPTS[:1], "arguments": {"max_new_tokens": 24}},
    "batch": {"prompts": PROMPTS, "arguments": {"max_new_tokens": 24}},
    "paths": {"prompts": PROMPTS, "arguments": {"max_new_tokens": 24, "draft_model": "{place}/draft"}},
    "loaded": {"prompts": PROMPTS, "arguments": {"max_new_tokens": 24}},
    "budget": {"prompts": PROMPTS, "arguments": {"max_length": 60, "budget": 0.05}},
    "by hand": {"prompts": PROMPTS, "arguments": {"max_new_tokens": 24, "risk": 0.25, "block": 7}},
    "too small a budget": {"prompts": PROMPTS, "arguments": {"max_new_tokens": 24, "budget": 0.01}},
    "sampled": {
        "prompts": PROMPTS,
        "arguments": {"max_new_tokens": 24, "do_sample": True, "temperature": 0.8, "top_k": 20, "top_p": 0.9},
    },
    "stops": {"prompts": PROMPTS, "arguments": {"max_new_tokens": 24, "stop_strings": ["m", "n", "#"]}},
    "lookup": {"prompts": PROMPTS, "arguments": {"max_new_tokens": 24, "drafter": "lookup", "draft_model": None}},
}


@pytest.fixture(scope="module")
def answers(place: Path) -> dict[str, Any]:
    """What plain transformers answered, in a process that cannot import gistgate."""
    requests = json.dumps(REQUESTS).replace("{place}", place.as_posix())
    (place / "requests.json").write_text(requests)
    run_plain(place, sys.executable, "-I", str(Path(__file__).with_name("plain.py")), str(place))
    read: dict[str, Any] = json.loads((place / "answers.json").read_text())
    return read


def run_plain(place: Path, *command: str) -> str:
    """A command in another folder, with a modules cache of its own and without our package on its path."""
    ours = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"}
    homes = {"HF_MODULES_CACHE": str(place / "modules"), "HF_DATASETS_CACHE": str(place / "datasets")}
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | ours | homes
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def library(pair: Any, tokenizer: Any, gate: Gate, name: str, rule: Any, block: int = 4, **request: Any) -> Any:
    """The same request to the library's own decoder, as rows that begin with the padded prompt."""
    drafter = PromptLookup() if name == "lookup" else ModelDrafter(pair[1])
    decoder = Decoder(pair[0], drafter, rule, block, gate=gate, tokenizer=tokenizer)
    encoded = tokenizer(REQUESTS[name]["prompts"], return_tensors="pt", padding=True)
    prompts = tokenizer(REQUESTS[name]["prompts"]).input_ids
    limit = REQUESTS[name]["arguments"]
    length = limit.get("max_new_tokens") or limit["max_length"] - encoded.input_ids.shape[1]
    found = decoder.generate(prompts, max_new_tokens=length, eos_ids=[EOS], **request)
    longest = max(len(answer.ids) for answer in found)
    new = [answer.ids + [PAD] * (longest - len(answer.ids)) for answer in found]
    return [[*row, *tail] for row, tail in zip(encoded.input_ids.tolist(), new, strict=True)]


@pytest.mark.parametrize("name", ["one", "batch", "paths", "loaded"])
def test_plain_transformers_gives_the_librarys_ids(
    name: str, answers: Any, pair: Any, tokenizer: Any, gate: Gate
) -> None:
    assert answers[name]["ids"] == library(pair, tokenizer, gate, name, make_rule("autojudge", risk=RISKS[0.03]))
    assert answers[name]["loose"] > 0
    assert not answers[name]["warnings"]


def test_a_budget_chooses_its_own_setting(answers: Any, pair: Any, tokenizer: Any, gate: Gate) -> None:
    found, rule = answers["budget"], make_rule("autojudge", risk=RISKS[0.05])
    assert found["ids"] == library(pair, tokenizer, gate, "budget", rule)
    assert found["ids"] != answers["batch"]["ids"]
    assert not found["warnings"]


def test_a_setting_by_hand_is_taken_with_a_warning(answers: Any, pair: Any, tokenizer: Any, gate: Gate) -> None:
    found = answers["by hand"]
    assert found["ids"] == library(pair, tokenizer, gate, "by hand", make_rule("autojudge", risk=0.25), block=7)
    assert found["warnings"] == ["No certificate covers this: risk 0.25 is not among the certified values (0.2, 0.3)."]


def test_without_a_certificate_it_decodes_strictly_and_says_so(answers: Any, pair: Any, tokenizer: Any) -> None:
    found = answers["too small a budget"]
    inputs = tokenizer(PROMPTS, return_tensors="pt", padding=True, return_token_type_ids=False)
    assert found["ids"] == pair[0].generate(**inputs, max_new_tokens=24, do_sample=False).tolist()
    assert "no setting certified for a budget of 0.01" in found["warnings"][0]
    assert found["loose"] == 0


def test_sampling_repeats_with_the_seed_and_is_not_certified(
    answers: Any, pair: Any, tokenizer: Any, gate: Gate
) -> None:
    torch.manual_seed(7)
    request = {"sampling": Sampling(0.8, 20, 0.9), "seeds": torch.randint(2**62, (3,)).tolist()}
    rule = make_rule("autojudge", risk=RISKS[0.03])
    assert answers["sampled"]["ids"] == library(pair, tokenizer, gate, "sampled", rule, **request)
    assert "sampled at temperature 0.8" in answers["sampled"]["warnings"][0]


def test_stop_strings_end_answers(answers: Any, pair: Any, tokenizer: Any, gate: Gate) -> None:
    stops = REQUESTS["stops"]["arguments"]["stop_strings"]
    rule = make_rule("autojudge", risk=RISKS[0.03])
    found = answers["stops"]
    assert found["ids"] == library(pair, tokenizer, gate, "stops", rule, stops=stops)
    assert found["ids"] != answers["batch"]["ids"]


def test_prompt_lookup_needs_no_draft_and_is_not_certified(answers: Any, pair: Any, tokenizer: Any, gate: Gate) -> None:
    rule = make_rule("autojudge", risk=RISKS[0.03])
    assert answers["lookup"]["ids"] == library(pair, tokenizer, gate, "lookup", rule)
    assert "drafter is lookup, but model was certified" in answers["lookup"]["warnings"][0]


@pytest.fixture(scope="module")
def inputs(tokenizer: Any) -> dict[str, Any]:
    return dict(tokenizer(PROMPTS, return_tensors="pt", padding=True, return_token_type_ids=False))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_beams": 2}, "greedy decoding and sampling .* but got beam search"),
        ({"assistant_model": "draft"}, "Pass the draft as draft_model="),
        ({"streamer": object()}, "streamer=, which this decoder does not support"),
        ({"inputs_embeds": torch.zeros(1, 1, 32)}, "Pass input_ids="),
        ({"repetition_penalty": 1.3}, "asks for a RepetitionPenaltyLogitsProcessor"),
        ({"min_new_tokens": 5}, "asks for a MinLengthLogitsProcessor"),
        ({"logits_processor": LogitsProcessorList([lambda ids, z: z])}, "asks for a function"),
        ({"stopping_criteria": StoppingCriteriaList([MaxTimeCriteria(1.0)])}, "MaxTimeCriteria, which cannot look"),
        ({"output_scores": True, "return_dict_in_generate": True}, "output_scores=True"),
        ({"stop_strings": ["x"]}, "no tokenizer was given"),
        ({"rule": "autojugde"}, "Did you mean 'autojudge'"),
        ({"budget": 0.03, "risk": 0.1}, "both say how loose"),
        ({"gate": None, "budget": 0.03}, "Pass gate=<folder> as well"),
        ({"gate": None, "rule": "autojudge"}, "needs a gate"),
        ({"draft_model": None}, "There is no draft. Pass draft_model="),
        ({"draft_model": "/nowhere/at/all"}, "The draft '/nowhere/at/all' could not be loaded"),
        ({"gate": "/nowhere/at/all"}, "neither a folder nor a reachable hub id"),
        ({"drafter": "oracle"}, "There is no drafter 'oracle'"),
    ],
)
def test_what_it_cannot_do_is_refused_with_a_sentence(
    arguments: Any, message: str, pair: Any, gate: Gate, inputs: Any
) -> None:
    target, draft = pair
    with pytest.raises(UserError, match=message):
        generate(target, **{"draft_model": draft, "gate": gate, "max_new_tokens": 8, **inputs, **arguments})


def test_a_mistyped_argument_is_named(pair: Any, gate: Gate, inputs: Any) -> None:
    with pytest.raises(ValueError, match="thrreshold"):
        generate(pair[0], pair[1], gate, thrreshold=0.1, **inputs)


def test_a_gate_of_another_target_is_refused(place: Path, pair: Any, inputs: Any) -> None:
    target, draft = pair
    with pytest.raises(UserError, match="does not fit the target"):
        generate(draft, target, place / "gate", max_new_tokens=8, **inputs)


def test_another_rule_runs_with_a_warning(pair: Any, gate: Gate, inputs: Any) -> None:
    with pytest.warns(UserWarning, match="calibrated with the rule 'autojudge', not with 'prob'"):
        generate(*pair, gate, rule="prob", r=0.5, max_new_tokens=8, **inputs)


def test_it_serves_generates_other_habits(pair: Any, inputs: Any, recwarn: pytest.WarningsRecorder) -> None:
    """Settings in a GenerationConfig, a dictionary as result, several answers per prompt, padding found by itself."""
    target, draft = pair
    config = GenerationConfig(max_new_tokens=8, pad_token_id=PAD, eos_token_id=EOS)
    expected = target.generate(**inputs, max_new_tokens=8, do_sample=False)
    found = generate(target, draft, inputs=inputs["input_ids"], generation_config=config, return_dict_in_generate=True)
    assert torch.equal(found.sequences, expected)
    torch.manual_seed(0)
    several = generate(target, draft, max_new_tokens=8, do_sample=True, num_return_sequences=3, **inputs)
    assert several.shape[0] == 9
    assert len({tuple(row) for row in several.tolist()}) > 3
    assert not [warning for warning in recwarn if "certificate" in str(warning.message)]


def test_a_second_gate_in_the_same_folder_is_read_again(place: Path, pair: Any, gate: Gate, inputs: Any) -> None:
    first: list[Any] = []
    generate(*pair, place / "gate", max_new_tokens=8, report=first, **inputs)
    config = place / "gate" / "config.json"
    text = config.read_text()
    try:
        config.write_text(text.replace('"knob": 0.2', '"knob": -1.0'))
        os.utime(config, ns=(1, 1))
        second: list[Any] = []
        generate(*pair, place / "gate", max_new_tokens=8, report=second, **inputs)
    finally:
        config.write_text(text)
    assert sum(answer.statistics.loose for answer in first) > 0
    assert sum(answer.statistics.loose for answer in second) == 0


def test_stock_lm_eval_serves_the_exported_gate(place: Path, pair: Any, tokenizer: Any, gate: Gate) -> None:
    tasks = write_task(place, num_test=4)
    code = "import sys; sys.modules['gistgate'] = None; from lm_eval.__main__ import cli_evaluate; cli_evaluate()"
    shared = [
        sys.executable, "-c", code, "run", "--model", "hf", "--model_args", "pretrained=target,dtype=float32",
        "--tasks", "sums", "--include_path", str(tasks), "--batch_size", "2", "--device", "cpu", "--log_samples",
    ]  # fmt: skip
    gated = ["custom_generate=gate", "trust_remote_code=True", "gate=gate", "draft_model=draft", "risk=0.3"]
    log = run_plain(place, *shared, "--output_path", "loose", "--gen_kwargs", *gated)
    assert "No certificate covers" not in log  # the task asks for nothing that was not certified
    found = served(place / "loose")
    decoder = Decoder(
        pair[0], ModelDrafter(pair[1]), make_rule("autojudge", risk=0.3), 4, gate=gate, tokenizer=tokenizer
    )
    loose = 0
    for prompt, text in found.items():
        ids = tokenizer(prompt).input_ids
        answer = decoder.generate([ids], max_new_tokens=12, eos_ids=[EOS], stops=["\n", "Q:"])[0]
        expected = tokenizer.decode(answer.ids, skip_special_tokens=True)
        assert text == expected.split("\n")[0].split("Q:")[0]
        loose += answer.statistics.loose
    assert len(found) == 4
    assert loose > 0


def served(folder: Path) -> dict[str, str]:
    """Prompt -> answer, as lm-eval logged them."""
    rows = [json.loads(line) for path in folder.rglob("samples_*.jsonl") for line in path.read_text().splitlines()]
    return {row["arguments"]["gen_args_0"]["arg_0"]: row["resps"][0][0] for row in rows}
