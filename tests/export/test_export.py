"""An exported gate decodes with plain transformers exactly as the library does."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from gistgate.core.block import Sampling
from gistgate.core.decoder import Decoder
from gistgate.drafters.model import ModelDrafter
from gistgate.gate import Gate
from gistgate.rules import make_rule
from tests.export.exported import EOS, PAD, PROMPTS, RISKS
from tests.tiny import write_task

REQUESTS: dict[str, dict[str, Any]] = {
    "one": {},
    "batch": {},
    "paths": {"draft_model": "{place}/draft"},
    "loaded": {},
    "budget": {"max_new_tokens": None, "max_length": 60, "budget": 0.05},
    "by hand": {"risk": 0.25, "block": 7},
    "too small a budget": {"budget": 0.01},
    "sampled": {"do_sample": True, "temperature": 0.8, "top_k": 20, "top_p": 0.9},
    "stops": {"stop_strings": ["m", "n", "#"]},
    "lookup": {"drafter": "lookup", "draft_model": None},
    "suffix": {"drafter": "suffix", "draft_model": None},
    "top-k": {"rule": "top-k"},
    "guarded": {"guards": ["loop"]},
    "compiled": {"engine": "compiled"},
}
"""Arguments of `generate` besides the prompts and, where nothing is said, `max_new_tokens=24`."""


def prompts_of(name: str) -> list[str]:
    return PROMPTS[:1] if name == "one" else PROMPTS


@pytest.fixture(scope="module")
def answers(place: Path) -> dict[str, Any]:
    """What plain transformers answered, in a process that cannot import gistgate."""
    requests = {
        name: {"prompts": prompts_of(name), "arguments": {"max_new_tokens": 24, **arguments}}
        for name, arguments in REQUESTS.items()
    }
    (place / "requests.json").write_text(json.dumps(requests).replace("{place}", place.as_posix()))
    run_plain(place, sys.executable, "-I", str(Path(__file__).with_name("plain.py")), str(place))
    read: dict[str, Any] = json.loads((place / "answers.json").read_text())
    return read


def run_plain(place: Path, *command: str) -> str:
    """A command in another folder, with a modules cache of its own and without our package on its
    path.
    """
    ours = {
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONSAFEPATH": "1",
    }
    homes = {
        "HF_MODULES_CACHE": str(place / "modules"),
        "HF_DATASETS_CACHE": str(place / "datasets"),
    }
    environment = (
        {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | ours | homes
    )
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def library(
    pair: Any, tokenizer: Any, gate: Gate, name: str, rule: Any, block: int = 4, **request: Any
) -> Any:
    """The same request to the library's own decoder, as rows that begin with the padded prompt."""
    decoder = Decoder(pair[0], ModelDrafter(pair[1]), rule, block, gate=gate, tokenizer=tokenizer)
    encoded = tokenizer(prompts_of(name), return_tensors="pt", padding=True)
    limit = REQUESTS[name].get("max_length")
    length = limit - encoded.input_ids.shape[1] if limit else 24
    prompts = tokenizer(prompts_of(name)).input_ids
    found = decoder.generate(prompts, max_new_tokens=length, eos_ids=[EOS], **request)
    longest = max(len(answer.ids) for answer in found)
    new = [answer.ids + [PAD] * (longest - len(answer.ids)) for answer in found]
    return [[*row, *tail] for row, tail in zip(encoded.input_ids.tolist(), new, strict=True)]


EXPECTED: dict[str, tuple[float, dict[str, Any], str]] = {
    **dict.fromkeys(("one", "batch", "paths", "loaded"), (RISKS[0.03], {}, "")),
    "budget": (RISKS[0.05], {}, ""),
    "by hand": (
        0.25,
        {"block": 7},
        "risk 0.25 is not among the certified values (0.2, 0.3); block is 7, but 4 was",
    ),
    "sampled": (
        RISKS[0.03],
        {"sampling": Sampling(0.8, 20, 0.9)},
        "the temperature is 0.8, but 0.0 was certified",
    ),
    "stops": (RISKS[0.03], {"stops": REQUESTS["stops"]["stop_strings"]}, ""),
}
"""The risk that a request decodes with, what the library's own decoder is asked for, and a part of
the warning.
"""


@pytest.mark.parametrize("name", EXPECTED)
def test_plain_transformers_gives_the_librarys_ids(
    name: str, answers: Any, pair: Any, tokenizer: Any, gate: Gate
) -> None:
    risk, request, warning = EXPECTED[name]
    if name == "sampled":  # as `plain.py` does
        torch.manual_seed(7)
        request = {**request, "seeds": torch.randint(2**62, (3,)).tolist()}
    found = answers[name]
    assert found["ids"] == library(
        pair, tokenizer, gate, name, make_rule("autojudge", risk=risk), **request
    )
    assert found["loose"] > 0
    assert [warning in said for said in found["warnings"]] == ([True] if warning else [])


def test_budgets_and_stop_strings_change_answers(answers: Any) -> None:
    assert answers["batch"]["ids"] not in (answers["budget"]["ids"], answers["stops"]["ids"])


def test_without_a_certificate_it_decodes_strictly_and_says_so(
    answers: Any, pair: Any, tokenizer: Any
) -> None:
    found = answers["too small a budget"]
    inputs = tokenizer(PROMPTS, return_tensors="pt", padding=True, return_token_type_ids=False)
    assert found["ids"] == pair[0].generate(**inputs, max_new_tokens=24, do_sample=False).tolist()
    assert "no setting certified for a budget of 0.01" in found["warnings"][0]
    assert found["loose"] == 0


@pytest.mark.parametrize("name", ["top-k", "compiled"])
def test_what_the_folder_does_not_carry_is_had_by_installing_the_package(
    name: str, answers: Any
) -> None:
    assert "This folder carries what its gate was certified with" in answers[name]["error"]
    assert "`pip install .` in its clone" in answers[name]["error"]


@pytest.mark.parametrize("name", ["lookup", "guarded"])
def test_guards_and_the_lookup_of_repetitions_are_carried_in_a_small_folder(
    name: str, answers: Any, place: Path
) -> None:
    """Whoever passes trust_remote_code=True has to be able to read it."""
    assert answers[name]["ids"]
    assert len(list((place / "gate" / "custom_generate").iterdir())) <= 48


@pytest.mark.slow
def test_stock_lm_eval_serves_the_exported_gate(
    place: Path, pair: Any, tokenizer: Any, gate: Gate
) -> None:
    tasks = write_task(place, num_test=4)
    code = (
        "import sys; sys.modules['gistgate'] = None; from lm_eval.__main__ import cli_evaluate;"
        " cli_evaluate()"
    )
    model = ["--model", "hf", "--model_args", "pretrained=target,dtype=float32", "--device", "cpu"]
    task = ["--tasks", "sums", "--include_path", str(tasks), "--batch_size", "2", "--log_samples"]
    shared = [sys.executable, "-c", code, "run", *model, *task]
    gated = [
        "custom_generate=gate",
        "trust_remote_code=True",
        "gate=gate",
        "draft_model=draft",
        "risk=0.3",
    ]
    log = run_plain(place, *shared, "--output_path", "loose", "--gen_kwargs", *gated)
    assert "No certificate covers" not in log  # the task asks for nothing that was not certified
    logs = (place / "loose").rglob("samples_*.jsonl")
    rows = [json.loads(line) for path in logs for line in path.read_text().splitlines()]
    found = {row["arguments"]["gen_args_0"]["arg_0"]: row["resps"][0][0] for row in rows}
    decoder = Decoder(
        pair[0],
        ModelDrafter(pair[1]),
        make_rule("autojudge", risk=0.3),
        4,
        gate=gate,
        tokenizer=tokenizer,
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
