"""Every command: its help, one real call, JSON where machines read, Ctrl-C; and prompts from
standard input.
"""

import io
import json
import shlex
import shutil
import subprocess
import sys
from unittest.mock import Mock

import pytest
from typer.testing import CliRunner

import gistgate
from gistgate.cli.main import COMMANDS, app
from tests.tiny import write_task

PAIR = "{pair}/target --draft {pair}/draft"
DECODED = "--draft {pair}/draft --max-new-tokens 24"
GATED = f"{DECODED} --gate {{pair}}/gate"
FILE = "{pair}/target {here}/prompts.txt"
CALLS = {
    "init": (f"{{here}}/new --target {PAIR}", "The project is written."),
    "doctor": (f"{FILE} {DECODED}", "strict tau"),
    "tune": (f"{FILE} {GATED}", "speed when deciding"),
    "generate": (f"{{pair}}/target 'Tom has' {GATED}", "\n"),
    "trace": (f"{{pair}}/target 'Tom has' {GATED}", "loose"),
    "inspect": ("{pair}/gate", "budget 3 %  risk 1.0: within the budget"),
    "bench": (f"{FILE} {GATED}", "strict"),
    "export": ("{pair}/gate {here}/out", "out is written."),
    "fit-draft": (
        f"{FILE} --draft {{pair}}/draft --max-new-tokens 60 --out {{here}}/stop.json",
        "stop.json is written",
    ),
    "draft-vocabulary": (
        f"{FILE} --draft {{pair}}/draft --size 60 --out {{here}}/words.json",
        "60 tokens, which make up",
    ),
}
"""Arguments of a call, and a part of what it prints."""
TESTED_ELSEWHERE = {
    "calibrate": "--task sums --gate {pair}/gate",
    "certify": "--task sums --gate {pair}/gate --strict http://a/v1 --loose http://b/v1",
    "eval": "run",
}
"""Arguments of the commands that have tests of their own."""
KEYS = {"doctor": "advice", "tune": "winner", "generate": "text", "inspect": "certificate"}
"""Commands whose --json is one object, with a key of it; bench gives a list, and trace a line per
token."""
MODEL = "transformers.AutoModelForCausalLM.from_pretrained"
GATE = "gistgate.gate.Gate.load"
INNERMOST = {
    "init": "gistgate.cli.init.contents_of",
    "eval": "gistgate.lm_eval.__main__.main",
    **dict.fromkeys(("inspect", "export", "calibrate", "certify"), GATE),
}
"""What runs when Ctrl-C is pressed; elsewhere it is the loading of the target."""


@pytest.fixture
def place(pair, tmp_path, monkeypatch):
    """Fills folders into a line and splits it as a shell does; the working directory is empty but
    for prompts.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts.txt").write_text("Tom has\nAnna gave\nIt is\nOne and\n")
    shutil.copytree(pair, tmp_path / "pair")
    return lambda line: shlex.split(line.format(pair=tmp_path / "pair", here=tmp_path))


@pytest.mark.parametrize("command", sorted(set(COMMANDS) - {"eval"}))
def test_help_has_an_example(run, command):
    """`eval` hands --help to lm-eval, which has its own."""
    status, out, _ = run(command, "--help")
    assert status == 0 and f"Example: gistgate {command} " in " ".join(out.split())


def test_python_runs_the_package():
    command = [sys.executable, "-m", "gistgate", "--help"]
    done = subprocess.run(command, capture_output=True, text=True)
    text = " ".join(done.stdout.split())
    assert done.returncode == 0 and "generate" in text and "130 interrupted" in text


@pytest.mark.parametrize("command", CALLS)
def test_a_call(run, place, command):
    line, part = CALLS[command]
    status, out, _ = run(command, *place(line))
    assert status == 0 and part in out


@pytest.mark.parametrize("command", [*KEYS, "bench"])
def test_json_is_one_value(run, place, command):
    status, out, _ = run(command, *place(CALLS[command][0]), "--json")
    value = json.loads(out)
    assert status == 0
    if command == "bench":
        assert [row["name"] for row in value] == ["plain", "strict", "autojudge"]
    else:
        assert KEYS[command] in value


def test_calibrate_writes_a_certificate_that_generate_keeps(run, place, tmp_path):
    (tmp_path / "data").mkdir()
    write_task(tmp_path, num_train=90).rename(tmp_path / "data/tasks")
    line = (
        f"--target {PAIR} --task sums --rule prob-ratio --budget 0.2 --prompts 60 --development 20"
        " --out {here}/proof --json"
    )
    status, out, err = run("calibrate", *place(line))
    assert status == 0 and "a budget of 20.00%" in err
    assert json.loads(out)["certificate"]["rule"] == "prob-ratio"
    status, out, _ = run("generate", *place(f"{PAIR} 'Tom has' --certificate {{here}}/proof"))
    assert status == 0 and out.strip("\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_ctrl_c_is_one_line_and_status_130(run, place, monkeypatch, command):
    monkeypatch.setattr(INNERMOST.get(command, MODEL), Mock(side_effect=KeyboardInterrupt))
    line = TESTED_ELSEWHERE.get(command) or CALLS[command][0]
    status, _, err = run(command, *place(line))
    assert status == 130 and "Traceback" not in err
    assert err.strip().splitlines()[-1] == "Interrupted."


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("[enforce fail] can't allocate memory")]
)
def test_memory_that_runs_out_is_named_with_what_helps(run, place, monkeypatch, error):
    monkeypatch.setattr(MODEL, Mock(side_effect=error))
    status, _, err = run("generate", *place("{pair}/target Tom"))
    assert status == 1 and "Memory ran out" in err and "--dtype bfloat16" in err


def test_a_dash_reads_standard_input(run, place, monkeypatch):
    target, *draft = place(f"{{pair}}/target {DECODED}")
    text = run("generate", target, "Tom has", *draft)[1]
    monkeypatch.setattr("sys.stdin", io.StringIO("Tom has\n"))  # as `echo` writes it
    assert run("generate", target, "-", *draft)[1] == text
    monkeypatch.setattr("sys.stdin", io.StringIO("Tom has\n\nAnna\n"))
    assert json.loads(run("doctor", target, "-", *draft, "--json")[1])["prompts"] == 2


def test_the_version_is_said_and_wrong_options_are_status_2(run):
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.output.strip()) == (0, gistgate.__version__)
    assert run("generate", "--nonsense")[0] == 2
