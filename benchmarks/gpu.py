"""All that was never run on a GPU, checked and measured there within ten minutes: `make gpu`.

    python -m benchmarks.gpu [--seconds 570] [--questions ids,...] [--results FOLDER]

Every question of `benchmarks.gpu_checks` is asked in a process of its own, so that a crash or a hang of one leaves the
others. The result is one JSON file, gpu.json, and one sentence for each question.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from time import monotonic
from typing import Any

import torch

from benchmarks.bench import RESULTS
from benchmarks.counts import names
from benchmarks.gpu_checks import QUESTIONS
from gistgate.errors import UserError
from gistgate.files import read_json
from pipeline.common.code import running, write_result
from pipeline.common.entry import run
from pipeline.speed.clock import machine

GENEROUS = 1.5
"""How many times its equal share of the time that is left a question may take, so that one alone cannot use up all."""


def main(
    seconds: float = 570.0,
    questions: str = ",".join(QUESTIONS),
    results: Path = RESULTS,
    without_gpu: bool = False,
) -> None:
    """Ask the questions and write the answers; the exit status is 1 where one failed."""
    asked = names(questions, QUESTIONS, "is no question")
    if not torch.cuda.is_available() and not without_gpu:
        raise UserError(
            "This machine has no GPU that PyTorch can use, and `make gpu` measures one. With --without-gpu the same "
            "questions are asked of the CPU."
        )
    until, found = monotonic() + seconds, {}
    for number, name in enumerate(asked):
        left = until - monotonic()
        found[name] = ask(name, min(left, GENEROUS * left / (len(asked) - number)))
        print(f"{name}: {said(found[name])}", flush=True)
    path = results / ("gpu.json" if torch.cuda.is_available() else "gpu-questions-cpu.json")
    write_result(path, {"questions": found, "machine": machine()}, running())
    print(f"Written: {path}")
    if any(answer["state"] == "failed" for answer in found.values()):
        raise SystemExit(1)


def ask(name: str, seconds: float) -> dict[str, Any]:
    """The answer to one question, within what is left of the time."""
    if seconds <= 0:
        return {"state": "not asked", "why": "the time was used up by the questions before"}
    started = monotonic()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "answer.json"
        command = [sys.executable, "-m", "benchmarks.gpu_checks", name, str(out)]
        try:
            done = subprocess.run(command, timeout=seconds, capture_output=True, text=True)
        except subprocess.TimeoutExpired:
            return {"state": "failed", "why": f"it did not end within the {seconds:.0f} seconds that it had"}
        if not out.exists():
            return {"state": "failed", "why": f"its process ended with {done.returncode}: {done.stderr[-500:]}"}
        return {**read_json(out), "seconds": monotonic() - started}


def said(answer: dict[str, Any]) -> str:
    """One sentence about an answer."""
    if answer["state"] == "answered":
        return f"answered in {answer['seconds']:.0f} seconds."
    return f"{answer['state']}, because {answer['why'].rstrip('.')}."


if __name__ == "__main__":
    run(main, kept=False)
