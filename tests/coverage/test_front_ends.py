"""One table of questions to every front end: what a certificate covers is the same in all."""

import copy
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from lm_eval.api.instance import Instance

from gistgate.build import build
from gistgate.cli.decode import load
from gistgate.cli.options import Asking
from gistgate.core.identity import identify_model, model_scope, tokenizer_scope
from gistgate.core.request import eos_ids
from gistgate.core.utils import UserError
from gistgate.coverage.ask import Ask
from gistgate.export.generate import generate
from gistgate.lm_eval.model import GatedLM
from gistgate.models.options import DecodeOptions, EncodedPrompt
from gistgate.vllm.policy import Served, Settings, make_policy
from tests.certificates.proofs import certificate, point
from tests.tiny import byte_tokenizer, tiny_pair

TOKENIZER = byte_tokenizer()
TARGET, DRAFT = tiny_pair()
OTHER = copy.deepcopy(TARGET)  # other weights
with torch.no_grad():
    OTHER.model.layers[1].mlp.down_proj.weight.add_(0.01)
MODELS = {"target": TARGET, "draft": DRAFT, "other": OTHER}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of the pair, of a target with other weights, and of a certificate of `prob`."""
    folder = tmp_path_factory.mktemp("fronts")
    for name, model in MODELS.items():
        model.save_pretrained(folder / name)
        TOKENIZER.save_pretrained(folder / name)
    scope = {
        "target": model_scope(identify_model(TARGET)),
        "draft": model_scope(identify_model(DRAFT)),
        **tokenizer_scope(TOKENIZER, ("encoding",)),
        "ends": eos_ids(TARGET, TOKENIZER),
        "gate": None,
        "guards": [],
        "engine": "eager",
        "temperature": 0.0,
        "prompting": {"chat_template": False, "system": None},
        "stops": ["Q:"],
    }
    points = (point(0.03, settings={"r": 0.4}),)
    certificate(*points, rule="prob", knob="r", block=5, scope=scope).save(folder / "proof")
    return folder


QUESTIONS: dict[str, tuple[dict[str, Any], str | None]] = {
    "as certified": ({}, None),
    "another K": ({"block": 6}, "block is 6, but 5 was certified"),
    "another drafter": ({"drafter": "lookup"}, "drafter is lookup, but model was certified"),
    "another target": ({"target": "other"}, "the target is another one"),
    "another draft": ({"draft": "other"}, "the draft model is another one"),
    "a smaller budget": ({"budget": 0.01}, "no setting certified for a budget of 0.01"),
    "sampling": ({"temperature": 0.7}, "the temperature is 0.7, but 0.0 was certified"),
    "other stops": ({"stops": ["A:"]}, "answers end at the texts ['A:']"),
}
"""What is asked under the named certificate, and the clause that refuses it (None: covered)."""
Question = dict[str, Any]


def options_of(place: Path, question: Question) -> dict[str, Any]:
    """The options of a decoder that the question names, with the certificate."""
    names = {name: question[name] for name in ("block", "drafter", "budget") if name in question}
    return {"certificate": str(place / "proof"), **names}


def by_library(place: Path, question: Question) -> None:
    target = MODELS[question.get("target", "target")]
    draft = MODELS[question.get("draft", "draft")]
    built = build(target, TOKENIZER, DecodeOptions(draft=draft, **options_of(place, question)))
    temperature = question.get("temperature", 0.0)
    built.coverage.meet(Ask(temperature=temperature, stops=question.get("stops", ["Q:"])))


def by_command_line(place: Path, question: Question) -> None:
    draft = str(place / question.get("draft", "draft"))
    options = DecodeOptions(draft=draft, **options_of(place, question))
    asking = Asking(dtype="float32", max_new_tokens=4, stop=question.get("stops", []))
    target = str(place / question.get("target", "target"))
    temperature = question.get("temperature", 0.0)
    load(target, asking, options, [EncodedPrompt("Tom has")], temperature)


def by_lm_eval(place: Path, question: Question) -> None:
    target = MODELS[question.get("target", "target")]
    draft = MODELS[question.get("draft", "draft")]
    parts = options_of(place, question)
    model = GatedLM(target, draft=draft, tokenizer=TOKENIZER, batch_size=1, **parts)
    arguments: dict[str, Any] = {"until": question.get("stops", ["Q:"]), "max_gen_toks": 4}
    if "temperature" in question:
        arguments |= {"do_sample": True, "temperature": question["temperature"]}
    request = Instance("generate_until", {}, ("Tom has", arguments), 0)
    model.generate_until([request], disable_tqdm=True)


def by_transformers(place: Path, question: Question) -> None:
    target = MODELS[question.get("target", "target")]
    draft = MODELS[question.get("draft", "draft")]
    arguments: dict[str, Any] = {"input_ids": torch.tensor([[5, 6, 7]]), "max_new_tokens": 4}
    if "temperature" in question:
        arguments |= {"do_sample": True, "temperature": question["temperature"]}
    stops = question.get("stops", ["Q:"])
    parts = options_of(place, question)
    generate(target, draft, tokenizer=TOKENIZER, stop_strings=stops, **parts, **arguments)


def by_vllm(place: Path, question: Question) -> None:
    method = "ngram" if question.get("drafter") == "lookup" else "draft_model"
    target = place / question.get("target", "target")
    identity = {**asdict(identify_model(TARGET)), "name": str(target), "fingerprint": None}
    served = Served(
        method,
        question.get("block", 5),
        False,
        type(identify_model(TARGET))(**identity),
        TOKENIZER,
        tuple(eos_ids(TARGET, TOKENIZER)),
        draft=str(place / question.get("draft", "draft")),
    )
    settings = Settings(certificate=str(place / "proof"), budget=question.get("budget"))
    policy = make_policy(settings, served)
    # Requests arrive later: sampled ones and those with other stops are verified strictly.
    assert not policy.sampled and policy.covered_only and policy.stops == ["Q:"]


FRONT_ENDS: dict[str, Callable[[Path, Question], None]] = {
    "library": by_library,
    "command line": by_command_line,
    "lm-eval": by_lm_eval,
    "transformers": by_transformers,
    "vLLM": by_vllm,
}


@pytest.mark.parametrize("front_end", FRONT_ENDS)
@pytest.mark.parametrize("asked", QUESTIONS)
def test_every_front_end_gives_the_same_verdict(place: Path, front_end: str, asked: str) -> None:
    question, clause = QUESTIONS[asked]
    if clause is None or (front_end == "vLLM" and asked in ("sampling", "other stops")):
        FRONT_ENDS[front_end](place, question)
        return
    with pytest.raises(UserError) as refusal:
        FRONT_ENDS[front_end](place, question)
    assert clause in str(refusal.value)
