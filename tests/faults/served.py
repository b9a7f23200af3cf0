"""Many requests through a vLLM server: the plug-in adds no growth of memory, the last answers are a fresh server's.

    python -m tests.faults.served --python .venv-vllm/bin/python --requests 1000

Runs in the folder of a finished pipeline, whose pair and gate are served. Every request has its own length, strictness
and sampling, all drawn from its number; eight are under way at a time, but for the last hundred, which come one by one,
because vLLM's sums depend on what else is in the batch. vLLM's own caches fill for thousands of requests, so the growth
is compared with that of a server without the plug-in under the same requests.
"""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer
from openai import OpenAI

from benchmarks.servers import MODEL, Configuration, serving
from gistgate.errors import UserError
from gistgate.files import read_json_lines
from gistgate.integrations.vllm import client as plugin
from pipeline.common.entry import run
from tests.faults import results

LAST = 100
"""Answers that are compared with those of a fresh server."""
WARM = 0.2
"""Share of the requests after which memory is measured first."""
GROWTH = 64.0
"""MiB by which all processes of the server together may grow more than those of a server without the plug-in."""
AT_ONCE = 8
WISHES = (None, "strict", '{"risk": 0.001}')
"""What requests ask of the plug-in: the server's setting, strict verification, a stricter setting."""


def request(number: int, prompts: Sequence[str]) -> dict[str, Any]:
    """Request `number` as arguments of the OpenAI client."""
    chance = random.Random(number)
    wish = chance.choice(WISHES)
    text = chance.choice(prompts)
    return {
        "prompt": text[: chance.choice((8, 40, len(text)))],
        "max_tokens": chance.choice((1, 4, 16, 96)),
        "temperature": chance.choice((0.0, 0.0, 0.7)),
        "seed": number,
        "stop": ["Question:"] if chance.random() < 0.5 else None,
        "extra_body": {} if wish is None else {"vllm_xargs": {"gistgate": wish}},
    }


def answer(client: OpenAI, number: int, prompts: Sequence[str]) -> str:
    """The text that a server gives to request `number`."""
    return client.completions.create(model=MODEL, **request(number, prompts)).choices[0].text


@contextmanager
def server(python: Path, pair: Path, gate: Path | None, log: Path) -> Iterator[OpenAI]:
    """A client of a server with the gate; without the plug-in where there is none.

    Raises:
        UserError: the plug-in does not run in it.
    """
    speculation = {"method": "draft_model", "model": str(pair / "draft"), "num_speculative_tokens": 8}
    options = ["--enforce-eager", "--max-model-len", "448", "--max-num-seqs", str(AT_ONCE), "--seed", "0"]
    os.environ.update(VLLM_NO_USAGE_STATS="1", VLLM_LOGGING_LEVEL="WARNING")
    judged = None if gate is None else {"gate": str(gate.resolve())}
    configuration = Configuration(pair / "target", speculation, judged, python=str(python), options=options)
    with serving(configuration, log) as address:
        if judged:
            plugin.check(address, strict=False)
        yield OpenAI(base_url=f"{address}/v1", api_key="none", timeout=600)


def memory() -> float:
    """MiB that the server and its workers occupy together."""
    family = psutil.Process().children(recursive=True)
    return sum(process.memory_info().rss for process in family) / 2**20


def growth(client: OpenAI, texts: Sequence[str], warm: int, stop: int) -> float:
    """MiB by which a server grows while it answers the requests `warm` to `stop`, after those before."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda number: answer(client, number, texts), range(warm)))
        before = memory()
        list(pool.map(lambda number: answer(client, number, texts), range(warm, stop)))
    return memory() - before


def main(
    python: Annotated[Path, typer.Option(help="Interpreter with vLLM.")] = Path(".venv-vllm/bin/python"),
    pair: Annotated[Path, typer.Option(help="Folder of target and draft.")] = Path("models/embedded"),
    gate: Annotated[Path, typer.Option(help="Folder of the gate.")] = Path("models/export"),
    prompts: Annotated[Path, typer.Option(help="Prompts of the pair.")] = Path("data/prompts/test.jsonl"),
    requests: Annotated[int, typer.Option(help="Number of requests.", min=200)] = 1000,
) -> None:
    """Send the requests, then ask a fresh server for the last answers."""
    texts = [line["context"] for line in read_json_lines(prompts)]
    first, warm = requests - LAST, int(WARM * requests)
    with tempfile.TemporaryDirectory() as folder:
        with server(python, pair, gate, Path(folder) / "log") as client:
            grown = growth(client, texts, warm, first)
            ids = [answer(client, number, texts) for number in range(first, requests)]
        with server(python, pair, None, Path(folder) / "log") as client:
            plain = growth(client, texts, warm, first)
        with server(python, pair, gate, Path(folder) / "log") as client:
            fresh = [answer(client, number, texts) for number in range(first, requests)]
    differing = sum(one != other for one, other in zip(ids, fresh, strict=True))
    results.add(
        served_requests=requests,
        served_growth_mib=round(grown, 1),
        served_growth_without_mib=round(plain, 1),
        served_differing=differing,
    )
    told = (
        f"{requests} requests: the server grew by {grown:.1f} MiB, without the plug-in by {plain:.1f}; {differing} of "
        f"the last {LAST} answers differ."
    )
    if differing or grown - plain > GROWTH:
        raise UserError(told)
    print(told)


if __name__ == "__main__":
    run(main)
