"""Every command: its help, one real call, JSON where machines read, Ctrl-C; and prompts from
standard input.
"""

import io
import json
import shutil
import subprocess
import sys
from unittest.mock import Mock

import pytest
from typer.testing import CliRunner

import gistgate
from gistgate.cli.main import COMMANDS, app
from tests.tiny import write_task

DRAFT = ("--draft", "{pair}/draft", "--max-new-tokens", "24")
GATE = (*DRAFT, "--gate", "{pair}/gate")
CALLS = {
    "init": (
        ["{here}/new", "--target", "{pair}/target", "--draft", "{pair}/draft"],
        "The project is written.",
    ),
    "doctor": (["{pair}/target", "{here}/prompts.txt", *DRAFT], "strict tau"),
    "tune": (["{pair}/target", "{here}/prompts.txt", *GATE], "speed when deciding"),
    "generate": (["{pair}/target", "Tom has", *GATE], "\n"),
    "trace": (["{pair}/target", "Tom has", *GATE], "loose"),
    "inspect": (["{pair}/gate"], "budget 3 %  risk 1.0: within the budget"),
    "bench": (["{pair}/target", "{here}/prompts.txt", *GATE], "strict"),
    "export": (["{pair}/gate", "{here}/out"], "out is written."),
    "fit-draft": (
        [
            "{pair}/target",
            "{here}/prompts.txt",
            *DRAFT[:2],
            "--max-new-tokens",
            "60",
            "--out",
            "{here}/stop.json",
        ],
        "stop.json is written",
    ),
    "draft-vocabulary": (
        [
            "{pair}/target",
            "{here}/prompts.txt",
            *DRAFT[:2],
            "--size",
            "60",
            "--out",
            "{here}/words.json",
        ],
        "60 tokens, which make up",
    ),
}
"""Arguments of a call, and a part of what it prints."""
OTHERS = {
    "calibrate": ["--task", "sums", "--gate", "{pair}/gate"],
    "certify": [
        "--task",
        "sums",
        "--gate",
        "{pair}/gate",
        "--strict",
        "http://a/v1",
        "--loose",
        "http://b/v1",
    ],
    "eval": ["run"],
    "demo": ["{pair}/target", *GATE, "--no-browser", "--port", "0"],
}
"""Arguments of the commands that have tests of their own."""
# Commands whose --json is one value, with a key of it; trace writes a line per token.
MACHINES = {
    "doctor": "advice",
    "tune": "winner",
    "generate": "text",
    "inspect": "certificate",
    "bench": None,
}
MODEL, GATE_FOLDER = (
    "transformers.AutoModelForCausalLM.from_pretrained",
    "gistgate.gate.Gate.load",
)
INNERMOST = {
    "init": "gistgate.cli.init.contents_of",
    "eval": "gistgate.lm_eval.__main__.main",
    **dict.fromkeys(("inspect", "export", "calibrate", "certify"), GATE_FOLDER),
}
"""What runs when Ctrl-C is pressed; elsewhere it is the loading of the target."""


@pytest.fixture
def place(pair, tmp_path, monkeypatch):
    """Fills folders into arguments; the working directory is empty but for prompts."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts.txt").write_text("Tom has\nAnna gave\nIt is\nOne and\n")
    shutil.copytree(pair, tmp_path / "pair")
    return lambda arguments: [
        one.format(pair=tmp_path / "pair", here=tmp_path) for one in arguments
    ]


@pytest.mark.parametrize("command", sorted(set(COMMANDS) - {"eval"}))
def test_help_has_an_example(run, command):
    """`eval` hands --help to lm-eval, which has its own."""
    status, out, _ = run(command, "--help")
    assert status == 0 and f"Example: gistgate {command} " in " ".join(out.split())


def test_python_runs_the_package():
    done = subprocess.run(
        [sys.executable, "-m", "gistgate", "--help"], capture_output=True, text=True
    )
    said = " ".join(done.stdout.split())
    assert done.returncode == 0 and "generate" in said and "130 interrupted" in said


@pytest.mark.parametrize("command", CALLS)
def test_a_call(run, place, command):
    arguments, part = CALLS[command]
    status, out, _ = run(command, *place(arguments))
    assert status == 0 and part in out


@pytest.mark.parametrize("command", MACHINES)
def test_json_is_one_value(run, place, command):
    status, out, _ = run(command, *place(CALLS[command][0]), "--json")
    found = json.loads(out)
    assert status == 0
    if command == "bench":
        assert [one["name"] for one in found] == ["plain", "strict", "autojudge"]
    else:
        assert MACHINES[command] in found


def test_calibrate_writes_a_certificate_that_generate_keeps(run, place, tmp_path):
    (tmp_path / "data").mkdir()
    write_task(tmp_path, num_train=90).rename(tmp_path / "data/tasks")
    pair = place(["--draft", "{pair}/draft"])
    asked = ("--task", "sums", "--rule", "prob-ratio", "--target", *place(["{pair}/target"]), *pair)
    sizes = (
        "--budget",
        0.2,
        "--prompts",
        60,
        "--development",
        20,
        "--out",
        tmp_path / "proof",
        "--json",
    )
    status, out, err = run("calibrate", *asked, *sizes)
    assert (
        status == 0
        and json.loads(out)["certificate"]["rule"] == "prob-ratio"
        and "A budget of 20.00%" in err
    )
    status, out, _ = run(
        "generate", *place(["{pair}/target"]), "Tom has", *pair, "--certificate", tmp_path / "proof"
    )
    assert status == 0 and out.strip("\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_ctrl_c_is_one_line_and_status_130(run, place, monkeypatch, command):
    monkeypatch.setattr(INNERMOST.get(command, MODEL), Mock(side_effect=KeyboardInterrupt))
    status, _, err = run(command, *place(OTHERS.get(command) or CALLS[command][0]))
    assert (status, err.strip().splitlines()[-1:]) == (
        130,
        ["Interrupted."],
    ) and "Traceback" not in err


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("[enforce fail] can't allocate memory")]
)
def test_memory_that_runs_out_is_named_with_what_helps(run, place, monkeypatch, error):
    monkeypatch.setattr(
        "transformers.AutoModelForCausalLM.from_pretrained", Mock(side_effect=error)
    )
    status, _, err = run("generate", *place(["{pair}/target"]), "Tom")
    assert status == 1 and "Memory ran out" in err and "--dtype bfloat16" in err


def test_a_dash_reads_standard_input(run, place, monkeypatch):
    target, *rest = place(["{pair}/target", *DRAFT])
    said = run("generate", target, "Tom has", *rest)[1]
    monkeypatch.setattr("sys.stdin", io.StringIO("Tom has\n"))  # as `echo` writes it
    assert run("generate", target, "-", *rest)[1] == said
    monkeypatch.setattr("sys.stdin", io.StringIO("Tom has\n\nAnna\n"))
    assert run("doctor", target, "-", *rest, "--json")[1].count('"prompts": 2') == 1


def test_the_version_is_said_and_wrong_options_are_status_2(run):
    found = CliRunner().invoke(app, ["--version"])
    assert (found.exit_code, found.output.strip()) == (0, gistgate.__version__)
    assert run("generate", "--nonsense")[0] == 2
