"""A folder of probes decodes alike in plain transformers, lm-eval's model, the command line and the
library.
"""

import copy
import json
import os
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from gistgate.build import build as build_decoder
from gistgate.build import options_from
from gistgate.cli.main import app
from gistgate.core.identity import identify_model, identify_tokenizer
from gistgate.core.utils import UserError
from gistgate.export.generate import generate
from gistgate.export.write import SEGMENTS, write_code
from gistgate.gate import Gate, GateConfig
from gistgate.models.options import DecodeOptions
from gistgate.segments.build import choose_segments
from gistgate.segments.probes import GATE, Probe, Probes, load_probes
from tests.tiny import byte_tokenizer, save_pair, tiny_pair

PROMPTS = ["Q: 12 + 1?\nA:", "Anna has three red apples and buys two.", "x"]
LENGTH = 24
CERTIFIED = {"threshold": 0.5, "opinion": "ratio", "risk": 0.3}
REQUESTS = {
    "certified": {},
    "by hand": {"opinion": "probe", "threshold": 0.4, "risk": 0.2},
    "drawn": {"rule": "segment-draw"},
    "replaced": {"replacement": "segment"},
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """target/, draft/ and probes/, the last as it would be exported."""
    folder = tmp_path_factory.mktemp("segments")
    target, draft = tiny_pair(noise=0.3)
    tokenizer = byte_tokenizer()
    save_pair(folder, target, draft, tokenizer)
    torch.manual_seed(0)
    certificate = {
        "rule": "segment",
        "settings": CERTIFIED,
        "budget": 0.03,
        "confidence": 0.95,
        "bound": 0.029,
    }
    Probes(Probe(32, 8), Probe(32, 8, "last"), "re:[a-z]$", 8, certificate).save(
        folder / "probes", target, draft
    )
    identities = {
        "target": identify_model(target, "target"),
        "draft": identify_model(draft, "draft"),
    }
    identities["tokenizer"] = identify_tokenizer(tokenizer, "target")
    head, features = {"type": "mlp", "hidden_size": 8}, {"h_tok:post": 32}
    gate = Gate(GateConfig(head=head, features=features, **identities))
    gate.map.a.fill_(
        12.0
    )  # a random head says nearly the same of every token: spread its opinions over (0, 1)
    gate.map.b.fill_(3.0)
    gate.save(folder / "probes" / GATE, card="# A gate\n")
    write_code(folder / "probes", SEGMENTS)
    return folder


@pytest.fixture(scope="module")
def parts(place):
    models = [AutoModelForCausalLM.from_pretrained(place / name) for name in ("target", "draft")]
    return *models, AutoTokenizer.from_pretrained(place / "target", padding_side="left")


@pytest.fixture(scope="module")
def answers(place):
    """What plain transformers answered, in a process that cannot import gistgate."""
    requests = {
        name: {
            "prompts": PROMPTS,
            "arguments": {"max_new_tokens": LENGTH, "do_sample": False, **settings},
        }
        for name, settings in REQUESTS.items()
    }
    (place / "requests.json").write_text(json.dumps(requests))
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= {
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "HF_MODULES_CACHE": str(place / "modules"),
    }
    command = [sys.executable, "-I", str(Path(__file__).with_name("plain.py")), str(place)]
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((place / "answers.json").read_text())


def build(place, parts, policy="warn", **wishes):
    """The library's decoder of the probes."""
    options = DecodeOptions(**{"draft": parts[1], "segments": place / "probes", **wishes})
    return build_decoder(parts[0], parts[2], options, policy=policy).decoder


def decoded(decoder, parts):
    return [
        one.ids
        for one in decoder.generate(parts[2](PROMPTS).input_ids, max_new_tokens=LENGTH, eos_ids=[2])
    ]


def library(place, parts, name):
    settings = dict(REQUESTS[name])
    return decoded(build(place, parts, rule=settings.pop("rule", None), settings=settings), parts)


def warned(call):
    """What a call warns of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(warning.message) for warning in caught if "certificate" in str(warning.message)]


def command(place, *more):
    """The command line with these probes."""
    paths = [
        "--draft",
        str(place / "draft"),
        "--segments",
        str(place / "probes"),
        "--dtype",
        "float32",
    ]
    return CliRunner().invoke(app, ["generate", str(place / "target"), PROMPTS[1], *paths, *more])


@pytest.mark.slow
@pytest.mark.parametrize("name", REQUESTS)
def test_plain_transformers_gives_the_librarys_ids(name, answers, place, parts):
    assert answers[name]["ids"] == library(place, parts, name)
    assert answers[name]["prompts_kept"]


def test_settings_matter_and_those_without_a_certificate_are_said(answers):
    assert (
        answers["certified"]["loose"] > 0
        and len({str(answer["ids"]) for answer in answers.values()}) > 1
    )
    assert answers["certified"]["warnings"] == []
    assert "threshold is 0.4, but 0.5 was certified" in answers["by hand"]["warnings"][0]
    assert "rule is segment-draw, but segment was certified" in answers["drawn"]["warnings"][0]


def test_lm_evals_model_decodes_by_segments(place, parts):
    pytest.importorskip("lm_eval")
    from gistgate.lm_eval.model import GatedLM

    names = {
        name: str(place / folder) for name, folder in (("pretrained", "target"), ("draft", "draft"))
    }
    settings = {"threshold": 0.4, "risk": 0.2, "opinion": "probe"}
    lm = GatedLM(**names, **settings, segments=str(place / "probes"), device="cpu", max_length=256)
    ids = parts[2](PROMPTS[:1], return_tensors="pt").input_ids
    out = lm._model_generate(ids, ids.shape[1] + LENGTH, [])
    assert out[0, ids.shape[1] :].tolist() == library(place, parts, "by hand")[0]
    assert lm.get_model_info()["gistgate"]["settings"]["threshold"] == 0.4
    assert lm.statistics.draft_forwards > 0


def test_the_command_line_decodes_by_segments(place, parts):
    done = command(place, "--max-new-tokens", str(LENGTH))
    assert done.exit_code == 0, done.output
    wanted = parts[2].decode(library(place, parts, "certified")[1], skip_special_tokens=True)
    assert done.stdout.rstrip("\n") == wanted.rstrip("\n")


def test_serving_says_what_no_certificate_covers_which_holds_for_the_folders_own_gate_only(
    place, parts
):
    def said(gate=None, **settings):
        return warned(lambda: build(place, parts, gate=gate, settings=settings))

    own, other = (Gate.load(place / "probes" / GATE, *parts) for _ in range(2))
    other.map.b.fill_(1.0)
    assert said() == said(own) == []
    assert said(threshold=0.4) == [
        "No certificate covers this: threshold is 0.4, but 0.5 was certified."
    ]
    assert said(other) == ["No certificate covers this: the token gate is not the folder's own."]
    assert "own" not in said(other, risk=None)[0]  # no token gate speaks
    request = {
        "input_ids": parts[2](PROMPTS[1], return_tensors="pt").input_ids,
        "max_new_tokens": 2,
    }
    request |= {"draft_model": parts[1], "segments": place / "probes", "tokenizer": parts[2]}
    for gate, num in ((own, 0), (other, 1)):
        found = warned(lambda gate=gate: generate(parts[0], gate=gate, **request))
        assert sum("the token gate is not the folder's own" in message for message in found) == num


def test_a_token_gate_of_other_weights_keeps_no_risk(place, parts, tmp_path):
    """Where a gate may not decide, segments whose risk it keeps are verified token by token; others
    stay.
    """
    other = copy.deepcopy(parts[0])
    other.model.norm.weight.data += 0.01
    made = Gate.load(place / "probes" / GATE, *parts)
    Gate(replace(made.config, target=identify_model(other))).save(tmp_path / "gate")
    wishes = {"gate": tmp_path / "gate", "rule": "segment-draw"}
    with pytest.warns(UserWarning, match=r"other weights of the same architecture \(target\)"):
        decoder = build(place, parts, **wishes)
    assert decoder.rule.id == "segment" and decoder.rule.threshold > 1
    strict = build_decoder(
        parts[0], parts[2], DecodeOptions(draft=parts[1], drafter="none")
    ).decoder
    assert decoded(decoder, parts) == decoded(strict, parts)
    with pytest.raises(UserError, match="gistgate calibrate"):
        build(place, parts, "refuse", **wishes)
    assert build(place, parts, **wishes, settings={"risk": None}).rule.id == "segment-draw"


def test_sampling_and_another_dtype_are_told(place, parts):
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="No certificate covers")
        assert command(place, "--max-new-tokens", "8").exit_code == 0
    with pytest.warns(UserWarning, match="the temperature is 0.8, but 0.0 was certified"):
        assert command(place, "--max-new-tokens", "8", "--temperature", "0.8").exit_code == 0
    target, draft = (copy.deepcopy(model).to(torch.bfloat16) for model in parts[:2])
    with pytest.warns(UserWarning, match="The draft computes in bfloat16"):
        load_probes(place / "probes", target, draft)


def test_without_a_certificate_it_is_strict_until_somebody_says_otherwise(place, parts):
    probes = Probes(Probe(32, 8), Probe(32, 8), "step", 8)
    closed = choose_segments(probes, None, {})
    assert closed.settings["threshold"] > 1 and closed.doubts
    assert choose_segments(probes, None, {"threshold": 0.7}).settings["threshold"] == 0.7
    again = choose_segments(load_probes(place / "probes", *parts[:2]), None, {})
    assert (again.rule, again.doubts) == ("segment", ())
    assert {"threshold": 0.5, "opinion": "ratio", "risk": 0.3}.items() <= again.settings.items()


def test_bad_requests_are_refused_with_a_remedy(place, parts):
    probes = load_probes(place / "probes", *parts[:2])
    for rule, settings, said in (
        ("word", {}, "no segment rule"),
        (None, {"opinion": "vote"}, "no segment opinion"),
        (None, {"theta": 1}, "no setting 'theta'"),
    ):
        with pytest.raises(UserError, match=said):
            choose_segments(probes, rule, settings)
    for wish, said in (
        ({"draft": None}, "written by a draft model"),
        ({"budget": 0.01}, "certified for a budget of 0.03 with confidence 0.95 alone"),
        ({"block": 4}, "Segments have no block"),
        ({"stop_drafting": "stop.json"}, "Segments have no stop_drafting"),
    ):
        with pytest.raises(UserError, match=said):
            build(place, parts, **wish)
    build(place, parts, budget=0.05, confidence=0.9)
    with pytest.raises(UserError, match="A tokenizer tells where segments end"):
        generate(parts[0], draft_model=parts[1], segments=place / "probes")
    arguments = {"threshold": 0.4, "dtype": "auto", "segments": "somewhere"}
    assert options_from(arguments).settings == {"threshold": 0.4} and arguments == {"dtype": "auto"}
