"""`gistgate calibrate` from a task to certificate.json on a tiny pair, without the pipeline."""

import os
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}

from gistgate.build import Builder
from gistgate.certificates import decoder as decoders
from gistgate.certificates.bounds import BETTING
from gistgate.certificates.decoder import OwnDecoder, method_of
from gistgate.certificates.ledger import Ledger, Look, hash_of, read_looks
from gistgate.cli.calibrate import PARTS, Options
from gistgate.cli.calibration import (
    certify,
    make_scorer,
    prompts_of,
    warn_of_little_to_lose,
)
from gistgate.cli.options import decode_options, needing
from gistgate.cli.show import proved
from gistgate.cli.tools import inspect
from gistgate.core.decoder import Decoder
from gistgate.core.files import fingerprint, write_json_lines
from gistgate.core.utils import UserError
from gistgate.coverage.certificate import read_certificate
from gistgate.coverage.covers import covers
from gistgate.coverage.setup import Setup
from gistgate.drafters.model import ModelDrafter
from gistgate.gate import Gate
from gistgate.lm_eval.task import load_task
from gistgate.models.options import DecodeOptions
from gistgate.rules import make_rule
from gistgate.tasks.prompts import hashes_of
from gistgate.tasks.task import TASKS
from tests.certificates.proofs import gate_with, linear_gate
from tests.tiny import byte_tokenizer, tiny_pair, write_task

FEW = {f"{number} + 1?" for number in range(60)}  # questions of 60 of the 90 documents


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Folders of a tiny target and draft."""
    place = tmp_path_factory.mktemp("pair")
    for name, model in zip(("target", "draft"), tiny_pair(), strict=True):
        model.save_pretrained(place / name)
        byte_tokenizer().save_pretrained(place / name)
    return place / "target", place / "draft"


@pytest.fixture
def sums(tmp_path, monkeypatch, folders):
    """Options for a task of 90 documents, in an empty working directory."""
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    write_task(tmp_path / "data", num_train=90)
    given = {
        "rule": "prob-ratio",
        "target": str(folders[0]),
        "draft": str(folders[1]),
        "out": tmp_path / "proof",
    }
    usual = {
        "task": "sums",
        "budget": 0.2,
        "prompts": 30,
        "development": 20,
        "batch_size": 16,
        **given,
    }
    return lambda **changes: made(**{**usual, **changes})


def made(**named: Any) -> Options:
    """The options of a command, those of the decoder among them."""
    named.setdefault("settings", ())
    decoding = decode_options(named, [name for name in PARTS if name in named])
    return Options(**named, decoding=replace(decoding, gate=named.get("gate")))


def parts_of(draft: Any = None, gate: Any = None) -> Any:
    """Stand-ins for the parts of a decoder."""
    target = SimpleNamespace(config=LlamaConfig())
    return SimpleNamespace(target=target, draft=draft, tokenizer=byte_tokenizer(), gate=gate)


def drawn(options: Options, gate: Any = None) -> dict[str, set[str]]:
    """The questions that the command would decode, by split."""
    task = load_task(options.spec(None), TASKS)
    taken = Ledger().taken_marks(gate)
    splits = prompts_of(options, parts_of(), task, options.plan(), taken)
    questions = {}
    for split, prompts in splits.items():
        questions[split] = {prompt["doc"]["question"] for prompt in prompts}
    return questions


def chosen(options: Options, gate: Any = None) -> set[str]:
    return set().union(*drawn(options, gate).values())


def test_the_command_writes_a_certificate_that_fits_what_was_calibrated(sums, folders, capsys):
    kept, path = certify(sums(prompts=60))
    assert "a budget of 20.00%" in capsys.readouterr().out
    assert path.parts[-2:] == ("proof", "certificate.json") and read_certificate(path) == kept
    found = kept.operating_point(0.2)
    assert (kept.rule, found.n, kept.score) == ("prob-ratio", 60, "task") and found.bound <= 0.2
    assert "certificate rule prob-ratio" in proved(kept)
    model = LlamaForCausalLM.from_pretrained(folders[0])
    assert not covers(kept, Setup.of(model))
    model.model.norm.weight.data += 1
    assert [difference.kind for difference in covers(kept, Setup.of(model))] == ["target"]


@pytest.mark.parametrize(
    "stop, score, kind", [("clear", "task", BETTING), ("lost", "logprob", BETTING)]
)
def test_it_lies_beside_its_gate_and_inspect_shows_it(sums, folders, capsys, stop, score, kind):
    target, draft = (LlamaForCausalLM.from_pretrained(folder) for folder in folders)
    linear_gate(target, draft).save("gate")
    options = {"budget": 0.4, "gate": "gate", "prompts": 60, "stop": stop, "score": score}
    certify(sums(**options, fluency=0.9, rule=None, out=None))
    kept = read_certificate(Path("gate"))
    assert kept is not None and (kept.rule, kept.score) == ("autojudge", score)
    found = kept.operating_point()
    assert found.bound_kind == kind and found.loss <= found.bound <= 0.4 and len(kept.sequence) >= 1
    capsys.readouterr()
    inspect(Path("gate"))
    bound = f"within the budget with 95 % confidence, bound {100 * found.bound:.2f}"
    shown = capsys.readouterr().out
    for said in (
        "certificate rule autojudge",
        kind,
        "budget 40 %",
        f"{bound} {'points' if score == 'task' else '%'}",
        f"nats less probable, at most {found.fluency_bound:.3f} (allowed: 0.9)",
    ):
        assert said in shown
    replace(kept, scope=kept.scope | {"task": "another"}).save("gate")
    certify(sums(**options, fluency=0.9, rule=None, out=None))
    assert read_certificate(Path("gate")).scope["task"] == kept.scope["task"]
    inspect(Path("gate"))
    assert (
        f"--certificate gate/certificates/another\ncertificate rule autojudge, K {kept.block}"
        in capsys.readouterr().out
    )


def test_the_knob_is_not_set_by_hand(sums):
    with pytest.raises(UserError, match="Calibration chooses r itself"):
        certify(sums(settings=("r=0.4",)))


def test_prompts_are_judged_once_and_planned_looks_divide_the_error(sums):
    options = sums(looks=2)
    kept, _ = certify(options)
    assert kept.confidence == pytest.approx(0.975)
    (look,) = read_looks(Ledger().local)[1]
    assert look["spent"] == pytest.approx(0.025) and look["error"] == pytest.approx(0.05)
    again, _ = certify(options)  # the same choice is no new look
    assert again.points == kept.points and len(read_looks(Ledger().local)[1]) == 1
    for changes in ({"stop": "clear", "looks": 1}, {"block": 3, "looks": 1}):
        with pytest.raises(UserError, match=r"already been judged.*--draw 2"):
            certify(sums(**changes))


def test_no_prompt_chooses_a_setting_and_certifies_it(sums):
    first, second = drawn(sums(draw=1)), drawn(sums(draw=2))
    assert [len(first[split]) for split in ("development", "calibration")] == [20, 30]
    assert first["development"] == second["development"]
    assert not first["development"] & (first["calibration"] | second["calibration"])
    assert not first["calibration"] & second["calibration"]


def test_what_is_compared_is_what_the_rule_and_the_strict_rule_decode(sums, folders):
    options = sums(batch_size=4)
    target, draft = (LlamaForCausalLM.from_pretrained(folder) for folder in folders)
    parts = Builder(target, byte_tokenizer(), replace(options.decoding, draft=draft))
    method = method_of(parts)
    task = load_task(options.spec(None), TASKS)
    prompts = prompts_of(options, parts, task, options.plan(), set())
    some = prompts["development"][:6]
    outcomes = OwnDecoder(parts, method, 4).outcomes(prompts, None, Path("scratch"))
    strict, loose = outcomes.strict(some, 0), outcomes.loose({"r": 0.01}, some, 0)
    for prompt, ids, answer in zip(some, strict, loose, strict=True):
        request = {
            "max_new_tokens": prompt["max_new_tokens"],
            "eos_ids": [2],
            "stops": prompt["stops"],
        }
        for rule, wanted in (
            (make_rule("exact"), ids),
            (make_rule("prob-ratio", r=0.01), answer.ids),
        ):
            decoder = Decoder(
                target, ModelDrafter(draft), rule, method.block, tokenizer=byte_tokenizer()
            )
            assert decoder.generate([prompt["ids"]], **request)[0].ids == wanted
    assert (
        sum(answer.statistics.loose for answer in loose) > 0
        and [answer.ids for answer in loose] != strict
    )


def test_answers_of_another_gate_are_not_taken_over(sums, monkeypatch, folders):
    options = sums(rule="autojudge")
    pair = [LlamaForCausalLM.from_pretrained(folder) for folder in folders]
    monkeypatch.setattr(
        decoders, "cached", lambda decode, folder, name, *depends: fingerprint(*depends)
    )

    def place_of(gate: Gate) -> str:
        decoding = replace(options.decoding, draft=pair[1], gate=gate)
        parts = Builder(pair[0], byte_tokenizer(), decoding)
        decoder = OwnDecoder(parts, method_of(parts), 4)
        return str(decoder.outcomes({}, None, Path("scratch")).loose)

    gate, other = gate_with(1.0), gate_with(2.0)
    assert place_of(gate) == place_of(gate) != place_of(other)


@pytest.mark.parametrize(
    ("certified", "draft", "drafter"),
    [
        (None, "d", "model"),
        (None, None, "lookup"),
        ("suffix", None, "suffix"),
        ("tree", None, "lookup"),
    ],
)
def test_a_gate_drafts_as_it_was_certified(certified, draft, drafter):
    known = SimpleNamespace(certificate=certified and SimpleNamespace(drafter=certified, block=3))
    parts = parts_of(draft=draft, gate=known)
    parts.options = DecodeOptions(gate="g")
    assert method_of(parts).drafter == drafter


@pytest.mark.parametrize(("right", "warns"), [(0, True), (1, True), (8, False)])
def test_a_target_that_solves_next_to_nothing_is_told(right, warns):
    """Of 20 development prompts."""
    scorer = SimpleNamespace(score=lambda prompt, ids: float(prompt < right))
    outcomes = SimpleNamespace(
        prompts={"development": range(20)}, strict=lambda prompts, start: [[]] * 20
    )
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        warn_of_little_to_lose(0.05, scorer, outcomes)
    assert ["promises nothing" in str(one.message) for one in told] == [True] * warns


@pytest.mark.parametrize("split", ["train", "development", "calibration", "guard", "test"])
def test_no_prompt_of_a_finished_run_is_judged(sums, split):
    """A gate that the pipeline refused must not be looked at on the same prompts again; other tasks
    do not matter.
    """
    Path("data/prompts").mkdir(parents=True)
    other = [{"doc": {"prompt": "Write f."}}, {"context": "Hello"}]
    write_json_lines(
        Path(f"data/prompts/{split}.jsonl"), [*other, *({"doc": {"question": one}} for one in FEW)]
    )
    found = chosen(sums(prompts=10))
    assert found and not found & FEW


def test_no_problem_that_the_gate_was_trained_on_is_judged(sums):
    """Wherever its run lies, and however prompts were built there; a gate that does not say its
    problems is told.
    """
    gate = SimpleNamespace(
        config=SimpleNamespace(problems=hashes_of(f"q {number} 1 a" for number in range(60)))
    )
    found = chosen(sums(prompts=10), gate)
    assert found and not found & FEW
    gate.config.problems = ""
    with pytest.warns(UserWarning, match="does not say which problems it was trained on"):
        chosen(sums(prompts=10), gate)


@pytest.mark.parametrize("place", ["local", "published"])
def test_no_prompt_that_a_pipeline_judged_in_an_earlier_draw_is_judged(sums, place):
    ledger = Ledger()
    hashes = [hash_of(byte_tokenizer().encode(f"Q: {one}\nA:")) for one in FEW]
    for choice, is_free in (("", True), ("of the pipeline", False)):
        ledger.record(Look("claim", hashes, 0.05, 0.05, choice, tested="sequence"))
        file = getattr(ledger, place)
        file.parent.mkdir(parents=True, exist_ok=True)
        ledger.local.rename(file)
        assert bool(chosen(sums(prompts=10)) & FEW) is is_free
        file.unlink()


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, (True, "Be short.")),
        ({"system": "Write a program."}, (True, "Write a program.")),
        ({"system": ""}, (True, None)),
        ({"chat": False}, (False, None)),
    ],
)
def test_prompts_are_built_as_the_user_says_else_as_the_gate_was_trained(said, expected):
    trained = {"num_fewshot": 0, "chat_template": True, "system": "Be short."}
    gate = SimpleNamespace(config=SimpleNamespace(prompting=trained, labels={}))
    found = Options(task="sums", gate="g", **said).prompting(gate)
    assert (found.chat_template, found.system) == expected
    assert not Options(task="sums", gate="g").prompting(None).chat_template


def test_solved_examples_are_the_gates_or_those_of_the_user_or_of_the_task(sums, tmp_path):
    write_task(tmp_path / "data", output_type="num_fewshot: 2\noutput_type")
    trained = SimpleNamespace(config=SimpleNamespace(prompting={"num_fewshot": 1}, labels={}))

    def examples(gate, **said):
        return load_task(sums(**said).spec(gate), TASKS).harness.config.num_fewshot

    assert (examples(None), examples(trained), examples(trained, num_fewshot=0)) == (2, 1, 0)


def test_metric_and_limit_are_the_users_else_those_that_the_gate_was_trained_with():
    labels = {"task": "sums", "metric": "exact_match,loose", "max_new_tokens": 30}
    gate = SimpleNamespace(config=SimpleNamespace(prompting={"num_fewshot": 0}, labels=labels))

    def found(task="sums", gate=gate, **said):
        spec = Options(task=task, gate="g", **said).spec(gate)
        return spec.metric, spec.max_new_tokens

    assert found() == ("exact_match,loose", 30)
    assert found(metric="exact_match", max_new_tokens=7) == ("exact_match", 7)
    assert found(task="others") == found(gate=None) == (None, 256)


def drafter_of(options: Options) -> Any:
    parts = Builder(None, None, options.decoding)
    return OwnDecoder(parts, method_of(parts), 4).drafter()


@pytest.mark.parametrize(
    ("refuses", "said", "message"),
    [
        (certify, {}, "Without --gate"),
        (Options.plan, {"budget": 0.0}, "cannot be certified"),
        (Options.plan, {"stop": "earlier"}, "no way to stop called 'earlier'"),
        (Options.plan, {"looks": 600}, "Lower the confidence or the looks"),
        (lambda said: make_scorer(said, None, None), {"judge": "a/model"}, "belong together"),
        (drafter_of, {"rule": "fly", "drafter": "sen"}, "reads data; the pipeline certifies it"),
        # No request could ever match such a certificate.
        (lambda said: said.spec(None), {"system": "Be short."}, "Add --chat, or leave --system"),
    ],
)
def test_options_that_cannot_be_are_refused(refuses, said, message):
    with pytest.raises(UserError, match=message):
        refuses(made(task="sums", **said))


def test_without_its_libraries_the_command_says_what_to_install():
    with pytest.raises(UserError, match=r"needs 'scipy'.*'\.\[calibrate\]'"), needing("calibrate"):
        raise ModuleNotFoundError("No module named 'scipy'", name="scipy")


@pytest.mark.parametrize(
    ("target", "draft", "expected"), [(4096, 2048, 2048), (512, 2048, 512), (4096, None, 4096)]
)
def test_prompts_have_to_fit_the_draft_too(sums, target, draft, expected):
    """A document that the draft cannot read would end the calibration when its chunk is decoded."""
    models = [
        length and SimpleNamespace(config=LlamaConfig(max_position_embeddings=length))
        for length in (target, draft)
    ]
    task = load_task(sums().spec(None), TASKS)
    maker = decoders.maker_for(task, byte_tokenizer(), models)
    assert maker.room == expected - task.max_new_tokens
