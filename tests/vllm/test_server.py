"""Servers with the plug-in: metrics, lm-eval as a client, and the commands of docs/serving.md on a
tiny pair.
"""

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import yaml
from prometheus_client.core import CollectorRegistry

from gistgate.vllm import metrics
from tests.tiny import write_task
from tests.vllm.engine import prepare
from tests.vllm.rules import BLOCK, OPEN

pytestmark = pytest.mark.vllm

PAGE = (Path(__file__).parents[2] / "docs/serving.md").read_text()
SMALL = ["--enforce-eager", "--max-model-len", "256", "--max-num-seqs", "8"]
FEW = ["--prompts", "60", "--budget", "0.4", "--claim", "agreement"]
"""Options behind those of the page, which keep the test short; no answer of a random model is
right.
"""
STRICTLY = '{"vllm_xargs": {"gistgate": "strict"}}'


@pytest.fixture(scope="module", autouse=True)
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What vLLM reads, for the programs that these tests start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "environ", os.environ.copy())
        prepare({"cache": str(tmp_path_factory.mktemp("cache")), "alone": False})
        yield


@contextmanager
def served(words: list[str], log: Path) -> Iterator[str]:
    """The address of a server of `words`, the model and options, as long as it is needed."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        *words,
        *SMALL,
    ]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    with (
        log.open("w") as out,
        subprocess.Popen(command, stdout=out, stderr=out, env=os.environ) as process,
    ):
        try:
            until = monotonic() + 600
            while True:
                assert process.poll() is None and monotonic() < until, log.read_text()[-3000:]
                try:
                    urlopen(f"http://127.0.0.1:{port}/health", timeout=2).close()
                    break
                except OSError:
                    sleep(1)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(60)


def output_of(command: list[Any]) -> str:
    """What a program prints that ends well."""
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def address(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of the pair whose gate is open."""
    speculation = {
        "method": "draft_model",
        "model": str(place / "draft"),
        "num_speculative_tokens": BLOCK,
    }
    options = [
        "--served-model-name",
        "target",
        "--dtype",
        "float32",
        "--speculative-config",
        json.dumps(speculation),
    ]
    options += ["--additional-config", json.dumps({"gistgate": OPEN})]
    with served(
        [str(place / "target"), *options], tmp_path_factory.mktemp("open") / "log"
    ) as found:
        yield found


def test_workers_report_and_the_server_adds_them_up(tmp_path: Path):
    about = {"rule": "prob", "setting": "r=0.3", "runner": "V1", "source": "explicit setting"}
    for name, loose in (("1.json", 2.0), ("2.json", 3.0)):
        (tmp_path / name).write_text(json.dumps({"about": about, "totals": {"loose": loose}}))
    registry = CollectorRegistry()
    registry.register(metrics.Collector(tmp_path))
    assert registry.get_sample_value("gistgate_loose_total") == 5.0
    assert registry.get_sample_value("gistgate_active", about) == 2.0


def test_a_server_counts_loose_tokens_and_a_strict_request_adds_none(address: str):
    def complete(**options: Any) -> str:
        body = {
            "model": "target",
            "prompt": [60, 61, 62] * 6,
            "max_tokens": 40,
            "temperature": 0,
            "ignore_eos": True,
        }
        sent = json.dumps({**body, **options}).encode()
        with urlopen(
            Request(f"{address}/v1/completions", sent, {"Content-Type": "application/json"})
        ) as answer:
            return str(json.loads(answer.read())["choices"][0]["text"])

    def loose() -> float:
        sleep(2.5 * metrics.INTERVAL)  # until the workers have written it
        with urlopen(f"{address}/metrics") as page:
            return float(re.search(r"^gistgate_loose_total (\S+)", page.read().decode(), re.M)[1])  # type: ignore[index]

    assert metrics.check(address)["rule"] == "prob"
    before = loose()
    strict = complete(**json.loads(STRICTLY))
    assert loose() == before
    opened = complete()
    assert loose() > before and strict != opened
    assert complete(vllm_xargs={"gistgate": "thinking"}) == strict
    with pytest.raises(HTTPError, match="400") as refused:
        complete(vllm_xargs={"gistgate": '{"scope": "poetry"}'})
    assert (
        "There is no scope 'poetry'. Known: prose, thinking, all." in refused.value.read().decode()
    )


def samples(words: list[str], tasks: Path, folder: Path) -> dict[int, str]:
    """What lm-eval was answered on the task `sums`, by document; vLLM sends no half a character at
    a text's end.
    """
    start = (
        "import gistgate.lm_eval.model; from lm_eval.__main__ import cli_evaluate; cli_evaluate()"
    )
    task = ["--tasks", "sums", "--include_path", tasks, "--log_samples", "--output_path", folder]
    output_of([sys.executable, "-c", start, *words, *task])
    (file,) = folder.rglob("samples_sums_*.jsonl")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    return {row["doc_id"]: row["resps"][0][0].rstrip("\ufffd") for row in rows}


def test_lm_eval_gets_the_answers_of_one_process_from_a_server(
    address: str, place: Path, tmp_path: Path
):
    """Strict answers are compared: loose ones depend on where blocks begin, which is one token
    later in vLLM.
    """
    tasks = write_task(tmp_path, num_test=12, limit=24)
    line = re.search(
        r"^\$ python -m lm_eval (--model local-completions .*) --tasks", PAGE, flags=re.M
    )[1]  # type: ignore[index]
    folder = "models/embedded/target"
    given = {
        f" model={folder}": " model=target",
        "http://127.0.0.1:8000": address,
        folder: str(place / "target"),
    }
    for old, new in given.items():
        assert old in line
        line = line.replace(old, new)
    words = shlex.split(line)
    loose = samples(words, tasks, tmp_path / "loose")
    strict = samples([*words, "--gen_kwargs", STRICTLY], tasks, tmp_path / "strict")
    models = f"pretrained={place / 'target'},dtype=float32,draft={place / 'draft'}"
    pair = f"{models},rule=exact,block={BLOCK}"
    alone = samples(["--model", "gistgate", "--model_args", pair], tasks, tmp_path / "alone")
    assert alone == strict != loose


def test_the_commands_of_the_page_lead_to_a_served_gate_with_a_certificate(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The first three make a run and an environment, whose results lie here already."""
    monkeypatch.chdir(tmp_path)
    for role in ("target", "draft"):
        shutil.copytree(place / role, tmp_path / "models/embedded" / role)
    shutil.copytree(place / "gate", tmp_path / "models/export")
    task = yaml.safe_load((write_task(tmp_path, num_train=90) / "sums.yaml").read_text())
    (tmp_path / "data/tasks").mkdir(parents=True)
    (tmp_path / "data/tasks/wordproblems.yaml").write_text(
        yaml.safe_dump({**task, "task": "wordproblems"})
    )

    section = PAGE.split("\n## ")[2]
    commands = section.split("```")[1] + "".join(re.findall(r"^\$ (.*\n)", section, flags=re.M)[:2])
    lines = [shlex.split(line) for line in commands.strip().splitlines()]
    assert [words[0] for words in lines] == ["make", "python3", "pip", "vllm", "python", "gistgate"]
    with served(lines[3][2:], tmp_path / "log") as address:
        client, calibrate = (
            [word.replace("http://127.0.0.1:8000", address) for word in words]
            for words in lines[4:]
        )
        assert "rule=autojudge" in output_of([sys.executable, *client[1:]])
        done = subprocess.run(
            [Path(sys.executable).parent / "gistgate", *calibrate[1:], *FEW], capture_output=True
        )
    assert done.returncode in (0, 1, 3) and (tmp_path / "served-certificate.json").exists(), (
        done.stderr
    )
