"""lm-eval scores a server by the command of docs/serving.md, and gets the strict answers of one process."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.serving import MODEL, Configuration, serving
from tests.tiny import write_task
from tests.vllm.engine import prepare
from tests.vllm.rules import RULES, configuration

pytestmark = pytest.mark.vllm

PAGE = Path(__file__).parents[2] / "docs/serving.md"
BLOCK = 5
BROKEN = "\ufffd"
"""What half a character becomes; vLLM does not send one at the end of a text."""
STRICTLY = '{"vllm_xargs": {"gistgate": "strict"}}'
SMALL = ["--enforce-eager", "--max-model-len", "256", "--max-num-seqs", "8"]


def of_the_page(address: str, target: Path, tasks: Path) -> list[str]:
    """The page's command, for this server and this task."""
    found = re.search(r"^python -m (lm_eval --model local-completions .*)$", PAGE.read_text(), flags=re.M)
    assert found is not None
    line = found.group(1).replace("model=NAME", f"model={MODEL}").replace("http://127.0.0.1:8000", address)
    words = shlex.split(line.replace("TARGET", str(target)))
    words[words.index("--tasks") + 1] = "sums"
    words[words.index("--include_path") + 1] = str(tasks)
    return words


def in_one_process(place: Path, tasks: Path) -> list[str]:
    """The same evaluation of the target alone with this library's decoder."""
    pair = f"pretrained={place / 'target'},dtype=float32,draft={place / 'draft'},rule=exact,block={BLOCK}"
    return ["lm_eval", "--model", "gistgate", "--model_args", pair, "--tasks", "sums", "--include_path", str(tasks)]


def samples(words: list[str], folder: Path) -> dict[int, str]:
    """What lm-eval was answered, by document."""
    start = "import gistgate.lm_eval.model; from lm_eval.__main__ import cli_evaluate; cli_evaluate()"
    command = [sys.executable, "-c", start, *words[1:], "--log_samples", "--output_path", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    (file,) = folder.rglob("samples_sums_*.jsonl")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    return {row["doc_id"]: row["resps"][0][0].rstrip(BROKEN) for row in rows}


def test_lm_eval_gets_the_answers_of_one_process_from_a_server(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Strict answers are compared: loose ones depend on where blocks begin, which is one token later in vLLM."""
    monkeypatch.setattr(os, "environ", os.environ.copy())
    prepare({"cache": str(tmp_path / "cache"), "alone": False})
    tasks = write_task(tmp_path, num_test=12, limit=24)
    speculation = {"method": "draft_model", "model": str(place / "draft"), "num_speculative_tokens": BLOCK}
    value = configuration("prob", RULES["prob"], place)
    with serving(Configuration(place / "target", speculation, value, options=SMALL), tmp_path / "log") as address:
        words = of_the_page(address, place / "target", tasks)
        loose = samples(words, tmp_path / "loose")
        strict = samples([*words, "--gen_kwargs", STRICTLY], tmp_path / "strict")
    assert samples(in_one_process(place, tasks), tmp_path / "alone") == strict != loose
