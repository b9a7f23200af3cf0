"""The five commands of docs/serving.md, from a finished run to a served gate with a certificate, on a tiny pair."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from benchmarks.serving import free_port, until_ready
from tests.tiny import write_task
from tests.vllm.engine import prepare

pytestmark = pytest.mark.vllm

PAGE = Path(__file__).parents[2] / "docs/serving.md"
ELSEWHERE = {"make": "tests/test_smoke.py runs every stage", "pip": "tests/project/test_wheel.py installs the wheel"}
SMALL = ["--enforce-eager", "--max-model-len", "256", "--max-num-seqs", "8"]
FEW = ["--prompts", "60", "--budget", "0.4"]
"""Options behind those of the page, which keep the run short."""


def commands() -> list[list[str]]:
    """The lines of the page's first block."""
    block = re.search(r"^```\n(.*?)^```$", PAGE.read_text(), flags=re.S | re.M)
    assert block is not None
    return [shlex.split(line) for line in block.group(1).splitlines()]


@pytest.fixture
def folder(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What `make repro` leaves behind, as far as the other commands read it."""
    monkeypatch.setattr(os, "environ", os.environ.copy())
    monkeypatch.chdir(tmp_path)
    prepare({"cache": str(tmp_path / "cache"), "alone": False})
    for role in ("target", "draft"):
        shutil.copytree(place / role, tmp_path / "models/embedded" / role)
    shutil.copytree(place / "gate", tmp_path / "models/export")
    tasks = write_task(tmp_path, num_train=90)
    task = yaml.safe_load((tasks / "sums.yaml").read_text())
    Path("data/tasks").mkdir(parents=True)
    Path("data/tasks/wordproblems.yaml").write_text(yaml.safe_dump({**task, "task": "wordproblems"}))
    return tmp_path


@contextmanager
def served(words: list[str], port: int, log: Path) -> Iterator[None]:
    """Run `vllm serve` as CPU builds want it."""
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", *words[2:]]
    with log.open("w") as out:
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", "--port", str(port), *SMALL],
            stdout=out,
            stderr=subprocess.STDOUT,
            env=os.environ,
        )
        try:
            until_ready(process, f"http://127.0.0.1:{port}", log)
            yield
        finally:
            process.terminate()
            process.wait(60)


def test_the_five_commands_of_the_page_lead_to_a_served_gate_with_a_certificate(folder: Path):
    port, lines = free_port(), commands()
    assert [words[0] for words in lines] == ["make", "pip", "vllm", "python", "gistgate"]
    assert {words[0] for words in lines[:2]} == set(ELSEWHERE)
    serve, client, calibrate = ([word.replace(":8000", f":{port}") for word in words] for words in lines[2:])
    with served(serve, port, folder / "log"):
        asked = subprocess.run([sys.executable, *client[1:]], capture_output=True, text=True, env=os.environ)
        assert asked.returncode == 0 and "rule=autojudge" in asked.stdout, asked.stderr
        command = [Path(sys.executable).parent / "gistgate", *calibrate[1:], *FEW]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    assert (folder / "served-certificate.json").exists()
