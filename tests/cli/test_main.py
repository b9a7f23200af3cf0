"""The command line from end to end on a tiny pair: what it prints, and the one sentence it prints
otherwise.
"""

import json
import shutil
import warnings
from dataclasses import replace

import pytest

from gistgate.core.utils import UserError
from gistgate.coverage.certificate import read_certificate
from gistgate.gate import Gate
from gistgate.models.options import read_prompts
from tests.tiny import write_task


def test_strict_decoding_says_what_plain_decoding_says(run, pair):
    plain = run("generate", pair / "target", "Tom has", "--max-new-tokens", 24)
    strict = run(
        "generate", pair / "target", "Tom has", "--draft", pair / "draft", "--max-new-tokens", 24
    )
    assert plain[0] == strict[0] == 0
    assert plain[1] == strict[1] != "\n"
    assert "24 tokens in 24 target forwards (tau 1.00)" in plain[2]
    assert "tau 1.00" not in strict[2]


def test_a_gate_runs_at_its_certified_setting(run, pair):
    """Its operating point accepts everything, so looseness shows in the trace."""
    arguments = ("--draft", pair / "draft", "--gate", pair / "gate", "--max-new-tokens", 40)
    status, out, err = run("trace", pair / "target", "Tom has", *arguments, "--json")
    tokens = [json.loads(line) for line in out.strip().split("\n")]
    assert status == 0 and len(tokens) == 40
    assert {"loose", "own"} <= {token["reason"] for token in tokens}
    assert all((token["kept"] is None) == (token["reason"] == "own") for token in tokens)
    assert ", 0 loose" not in err
    assert "loose tokens:" in run("trace", pair / "target", "Tom has", *arguments)[1]


def test_what_the_certificate_beside_a_gate_does_not_cover_is_told(run, pair, tmp_path):
    shutil.copytree(pair / "gate", tmp_path / "gate")
    kept, prompting = (
        read_certificate(pair / "gate"),
        {"num_fewshot": 0, "chat_template": False, "system": None},
    )
    scope = {
        **kept.scope,
        "guards": [],
        "temperature": 0.0,
        "prompting": prompting,
        "stops": ["<other>"],
    }
    replace(kept, scope=scope).save(tmp_path / "gate")
    arguments = ("--draft", pair / "draft", "--gate", tmp_path / "gate", "--max-new-tokens", 8)
    asked = ("generate", pair / "target", "Tom has", *arguments)
    warm, stopped = (
        "the temperature is 0.7, but 0.0 was certified",
        r"answers end at the texts \['x'\]",
    )
    for option, value, said in (("--temperature", 0.7, warm), ("--stop", "x", stopped)):
        with pytest.warns(UserWarning, match=f"No certificate covers these requests.*{said}"):
            assert run(*asked, option, value)[0] == 0
    for covered in ((), ("--stop", "<other>"), ("--temperature", 0.7, "--rule", "exact")):
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message="No certificate covers")
            assert run(*asked, *covered)[0] == 0


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["generate", "{pair}/nowhere", "Tom"], "does not exist"),
        (["generate", "{pair}/target", "Tom", "--rule", "flyy"], "Did you mean"),
        (
            ["generate", "{pair}/target", "Tom", "--rule", "fly", "--set", "thetaa=1"],
            "Did you mean 'theta'?",
        ),
        (["generate", "{pair}/target", "Tom", "--set", "theta"], "is no setting"),
        (["generate", "{pair}/target", "Tom", "--chat"], "no chat template"),
        (
            ["generate", "{pair}/target", "Tom", "--system", "Be brief."],
            "belong to a chat. Add --chat",
        ),
        (["generate", "{pair}/target", "Tom", "--template", "rag"], "belong to a chat. Add --chat"),
        (["generate", "{pair}/target", "Tom \udcff"], "bytes that are no UTF-8"),
        (
            ["generate", "{pair}/target", "Tom", "--quantise-draft", "int8"],
            "There is no draft model to make lighter",
        ),
        (["generate", "{pair}/target", "Tom", "--dtype", "float8"], "There is no dtype"),
        (["generate", "{pair}/target", "Tom", "--max-new-tokens", "9999"], "exceed the context"),
        (["inspect", "{pair}/nowhere"], "missing"),
        (["inspect", "{pair}/draft"], "draft/config.json is not that of a gate"),
        (
            ["generate", "{pair}/target", "Tom", "--gate", "{pair}/draft/config.json"],
            "is no file",
        ),
        (
            [
                "generate",
                "{pair}/target",
                "Tom",
                "--draft",
                "{pair}/draft",
                "--stop-drafting",
                "{pair}",
            ],
            "is no file",
        ),
        (["bench", "{pair}/target", "{pair}/nothing.txt"], "missing"),
    ],
)
def test_bad_input_is_one_sentence(run, pair, arguments, sentence):
    status, out, err = run(*[argument.format(pair=pair) for argument in arguments])
    assert status == 1 and out == ""
    said = [line for line in err.splitlines() if "Loading weights" not in line and line.strip()]
    assert sentence in said[-1] and "Traceback" not in err


def test_guards_by_name(run, pair):
    arguments = ("--draft", pair / "draft", "--gate", pair / "gate", "--max-new-tokens", 8)
    status, _, said = run("generate", pair / "target", "Tom has", *arguments, "--guard", "loop")
    assert status == 0 and "guards: loop 0 alarms, 0 rounds stricter" in said
    assert (
        "does not know which prompts"
        in run("generate", pair / "target", "x", *arguments, "--guard", "domain")[2]
    )


def test_doctor_says_what_each_block_promises_and_gives_one_recommendation(run, pair, tmp_path):
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("Tom has\n\nAnna has five\n")
    arguments = (
        "doctor",
        pair / "target",
        prompts,
        "--draft",
        pair / "draft",
        "--max-new-tokens",
        24,
    )
    status, out, _ = run(*arguments)
    assert (
        status == 0
        and "strict tau" in out
        and "Labels for a gate" in out
        and "score" not in out.split("r = 0.9")[0]
    )
    assert out.splitlines()[-1].startswith(("Yes, ", "No, ", "Too noisy to say: "))
    assert "2 of 2 answers reached the limit of 24 tokens" in out and "--max-new-tokens 96" in out
    status, told, _ = run(*arguments, "--json")
    found = json.loads(told)
    lengths = found["lengths"]
    assert (lengths["answers"], lengths["cut"], lengths["longest"], lengths["limit"]) == (
        2,
        2,
        0,
        24,
    )
    assert lengths["advice"] in out
    assert status == 0 and found["prompts"] == 2
    assert all(0 < one["strict"] <= one["ceiling"] for some in found["outlooks"] for one in some)
    written = run("generate", pair / "target", "Tom has", *arguments[3:])[1]
    prompts.write_text("Tom has\n")  # a text of the task ends answers before the limit
    assert json.loads(run(*arguments, "--stop", written[18:20], "--json")[1])["lengths"]["cut"] == 0


def test_doctor_asks_and_judges_the_documents_of_a_task(run, pair, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    write_task(tmp_path, num_train=9, limit=30).rename(tmp_path / "data/tasks")
    arguments = ("doctor", pair / "target", "--draft", pair / "draft", "--task", "sums")
    status, told, _ = run(*arguments, "--documents", 3, "--json")
    found = json.loads(told)
    assert status == 0 and found["prompts"] == 3 and found["lengths"]["limit"] == 30
    assert found["pays"] is False and "the target scores 0.00 only" in found["advice"]
    _, out, _ = run(*arguments, "--documents", 3, "--budget", 0.05)
    assert (
        "A budget of 5.00% at 95% confidence needs about 59 calibration prompts" in out
        and "gained" in out
    )
    status, _, err = run(*arguments, "prompts.txt")
    assert status == 1 and "Name one of both" in err
    assert (
        "need a chat"
        in run("doctor", tmp_path / "nowhere", "--task", "sums", "--system", "Sum up.")[2]
    )


def test_doctor_calls_answers_too_short(run, pair, tmp_path):
    (tmp_path / "prompts.txt").write_text("Tom has\n")
    arguments = ("doctor", pair / "target", tmp_path / "prompts.txt", "--draft", pair / "draft")
    status, out, _ = run(*arguments, "--max-new-tokens", 3)
    assert status == 0 and out.splitlines()[-1].startswith(
        "No: answers are too short to draft, 3.0 tokens"
    )


def test_ends_of_drafts_and_their_vocabulary_are_measured_and_change_no_strict_text(
    run, pair, tmp_path
):
    prompts, stop, words = (tmp_path / name for name in ("prompts.txt", "stop.json", "words.json"))
    prompts.write_text("Tom has\nAnna has five\nWe buy\n")
    measured = (pair / "target", prompts, "--draft", pair / "draft")
    assert run("fit-draft", *measured, "--block", 4, "--max-new-tokens", 90, "--out", stop)[0] == 0
    assert json.loads(stop.read_text())["measured"]["block"] == 4
    assert run("draft-vocabulary", *measured, "--size", 60, "--out", words)[0] == 0
    asked = ("generate", pair / "target", "Tom has", "--max-new-tokens", 24)
    plain, lighter = (
        run(*asked)[1],
        ("--draft", pair / "draft", "--draft-vocabulary", words, "--stop-drafting", stop),
    )
    for drafter, bits in (("model", "int4"), ("hybrid", "int8")):
        assert run(*asked, *lighter, "--drafter", drafter, "--quantise-draft", bits)[1] == plain


def test_lines_that_are_no_prompts_are_named(tmp_path):
    (tmp_path / "prompts.jsonl").write_text('{"context": 1}\n')
    with pytest.raises(UserError, match="entry 1, holds no prompt"):
        read_prompts(str(tmp_path / "prompts.jsonl"))


def test_a_mark_in_front_of_a_file_is_no_part_of_its_first_prompt_and_only_a_line_feed_ends_one(
    tmp_path,
):
    """Other characters that Python takes for line ends may stand inside a prompt."""
    (tmp_path / "prompts.txt").write_bytes("\ufeffTom\u2028has\r\n\r\nAnna\fgave\r\n".encode())
    assert [one.text for one in read_prompts(str(tmp_path / "prompts.txt"))] == [
        "Tom\u2028has",
        "Anna\fgave",
    ]


def test_doctor_refuses_what_it_would_ignore(run, pair, tmp_path):
    (tmp_path / "prompts.txt").write_text("Tom has\n")
    arguments = ("doctor", pair / "target", tmp_path / "prompts.txt", "--draft", pair / "draft")
    for option in (
        ("--block", 4),
        ("--rule", "fly"),
        ("--stop-drafting", "stop.json"),
        ("--guard", "loop"),
    ):
        status, _, said = run(*arguments, *option)
        assert status == 1 and f"{option[0]} is no part of what is measured" in said


def test_inspect_and_export_write_a_hostile_gate_as_escapes(run, pair, tmp_path):
    gate = Gate.load(pair / "gate")
    target = replace(gate.config.target, name="\x1b[2J\x9bnice")
    Gate(replace(gate.config, target=target)).save(tmp_path / "gate")
    for command in (
        ("inspect", tmp_path / "gate"),
        ("export", tmp_path / "gate", tmp_path / "served"),
    ):
        status, out, err = run(*command)
        assert status == 0 and "\\x1b[2J\\x9bnice" in out and not {"\x1b", "\x9b"} & {*out, *err}
