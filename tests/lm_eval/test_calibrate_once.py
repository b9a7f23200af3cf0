"""What makes a certificate of `gistgate calibrate` mean something: prompts judged once, and the answers compared."""

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}

from gistgate.certificates.judged import LOCAL, read_looks
from gistgate.cli.calibrate import Options
from gistgate.core.decoder import Decoder
from gistgate.core.files import fingerprint
from gistgate.core.gate import Gate
from gistgate.core.utils import UserError
from gistgate.drafters.model import ModelDrafter
from gistgate.lm_eval import calibrate
from gistgate.lm_eval import task as task_files
from gistgate.lm_eval.calibrate import certify, method_of, outcomes_of, prompts_of, spec_of
from gistgate.lm_eval.task import load_task
from gistgate.rules import make_rule
from tests.certificates.proofs import gate_with
from tests.lm_eval.test_calibrate import folders
from tests.tiny import byte_tokenizer, write_task

__all__ = ["folders"]


def sums(folder: Path, monkeypatch: pytest.MonkeyPatch, folders: Any, **changes: Any) -> Options:
    """Options for a task of 90 documents in a folder."""
    monkeypatch.chdir(folder)
    tasks = write_task(folder, num_train=90)
    monkeypatch.setattr(task_files.find_task, "__defaults__", (None, tasks, False))
    given = {"rule": "prob-ratio", "target": str(folders[0]), "draft": str(folders[1]), "out": folder / "proof"}
    return Options(**{"task": "sums", "budget": 0.2, "prompts": 30, "development": 20, **given, **changes})


def test_prompts_are_judged_once_and_planned_looks_divide_the_error(tmp_path, monkeypatch, folders):
    options = sums(tmp_path, monkeypatch, folders, batch_size=16, looks=2)
    kept, _ = certify(options)
    assert kept.confidence == pytest.approx(0.975)
    (look,) = read_looks(LOCAL)[1]
    assert look["spent"] == pytest.approx(0.025) and look["error"] == pytest.approx(0.05)
    again, _ = certify(options)  # the same choice is no new look
    assert again.points == kept.points and len(read_looks(LOCAL)[1]) == 1
    for changes in ({"stop": "clear", "looks": 1}, {"block": 3, "looks": 1}):
        with pytest.raises(UserError, match=r"already been judged.*--draw 2"):
            certify(replace(options, **changes))


def test_no_prompt_chooses_a_setting_and_certifies_it(tmp_path, monkeypatch, folders):
    options = sums(tmp_path, monkeypatch, folders)
    models = SimpleNamespace(
        tokenizer=byte_tokenizer(), target=SimpleNamespace(config=LlamaConfig()), draft=None, gate=None
    )

    def drawn(draw: int) -> dict[str, set[str]]:
        found = prompts_of(replace(options, draw=draw), models, load_task(spec_of(options, None)), True)
        return {split: {prompt["doc"]["question"] for prompt in prompts} for split, prompts in found.items()}

    first, second = drawn(1), drawn(2)
    assert [len(first[split]) for split in ("development", "calibration")] == [20, 30]
    assert first["development"] == second["development"]
    assert not first["development"] & (first["calibration"] | second["calibration"])
    assert not first["calibration"] & second["calibration"]


def test_what_is_compared_is_what_the_rule_and_the_strict_rule_decode(tmp_path, monkeypatch, folders):
    options = sums(tmp_path, monkeypatch, folders, batch_size=4)
    target, draft = (LlamaForCausalLM.from_pretrained(folder) for folder in folders)
    models = SimpleNamespace(tokenizer=byte_tokenizer(), target=target, draft=draft, gate=None)
    method, prompts = method_of(options, models), prompts_of(options, models, load_task(spec_of(options, None)), True)
    some = prompts["development"][:6]
    outcomes = outcomes_of(options, models, method, prompts, None)
    strict, loose = outcomes.strict(some, 0), outcomes.loose({"r": 0.01}, some, 0)
    for prompt, ids, answer in zip(some, strict, loose, strict=True):
        request = {"max_new_tokens": prompt["max_new_tokens"], "eos_ids": [2], "stops": prompt["stops"]}
        for rule, wanted in ((make_rule("exact"), ids), (make_rule("prob-ratio", r=0.01), answer.ids)):
            decoder = Decoder(target, ModelDrafter(draft), rule, method.block, tokenizer=byte_tokenizer())
            assert decoder.generate([prompt["ids"]], **request)[0].ids == wanted
    assert sum(answer.statistics.loose for answer in loose) > 0 and [answer.ids for answer in loose] != strict


def test_answers_of_another_gate_are_not_taken_over(tmp_path, monkeypatch, folders):
    options = sums(tmp_path, monkeypatch, folders, rule="autojudge")
    target, draft = (LlamaForCausalLM.from_pretrained(folder) for folder in folders)
    monkeypatch.setattr(calibrate, "cached", lambda decode, folder, name, *depends: fingerprint(*depends))

    def place_of(gate: Gate) -> str:
        models = SimpleNamespace(tokenizer=byte_tokenizer(), target=target, draft=draft, gate=gate)
        return str(outcomes_of(options, models, method_of(options, models), {}, None).loose)

    gate, other = gate_with(1.0), gate_with(2.0)
    assert place_of(gate) == place_of(gate) != place_of(other)
