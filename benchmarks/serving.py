"""What speculation costs and gains behind a server under load: vLLM plain, strict, and with rules
of this library.

python -m benchmarks.serving --python .venv-vllm/bin/python [--users 1,4,16,64] [--rounds 3]
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median
from time import monotonic, perf_counter, sleep
from typing import Any
from urllib.request import urlopen

from openai import AsyncOpenAI, OpenAIError

from benchmarks.speed import RESULTS, Workload, names, save
from gistgate.core.utils import UserError, first_line
from pipeline.pair.pair import read_pair
from pipeline.paths import EXPORT, SCRATCH
from pipeline.run import run

SECONDS = 300.0
"""Longest wait for one answer."""
START = 600
"""Longest wait for a server to answer, in seconds."""
STOP = 60
"""Longest wait for a server to end when it is told to, in seconds."""
MODEL = "target"
"""Name under which every server knows its model."""
PLAIN = "plain"
SERVABLE = ("fly", "prob-ratio", "typical")
"""Rules without a gate that the plug-in serves, as far as the run has certified them."""


@dataclass(frozen=True)
class Waited:
    """One answer: its tokens, and the seconds until its first and its last token."""

    tokens: int
    first: float
    total: float

    @property
    def between(self) -> float:
        """Mean seconds from one token to the next."""
        return (self.total - self.first) / max(self.tokens - 1, 1)


@dataclass(frozen=True)
class Round:
    """All requests of one round at one number of users."""

    seconds: float  # from the first request to the last token
    waited: list[Waited]

    @property
    def tokens(self) -> int:
        """Tokens of all answers."""
        return sum(answer.tokens for answer in self.waited)

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds

    def as_dict(self) -> dict[str, float]:
        """Figures of the round: seconds, tokens, and the median and mean over its requests, in
        seconds.
        """
        return {
            "seconds": self.seconds,
            "tokens": self.tokens,
            "first_token": median(answer.first for answer in self.waited),
            "between_tokens": fmean(answer.between for answer in self.waited),
        }


def drive(address: str, prompts: Sequence[list[int]], users: int, length: int) -> Round:
    """Send every prompt once, `users` at a time, for answers of at most `length` tokens."""

    async def send() -> Round:
        free = asyncio.Semaphore(users)
        client = AsyncOpenAI(
            base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=SECONDS
        )

        async def ask(prompt: list[int]) -> Waited:
            async with free:
                return await answer(client, prompt, length)

        async with client:
            started = perf_counter()
            waited = await asyncio.gather(*map(ask, prompts))
            return Round(perf_counter() - started, waited)

    try:
        return asyncio.run(send())
    except OpenAIError as error:
        raise UserError(
            f"The server at {address} did not answer a request ({type(error).__name__}:"
            f" {first_line(error)}). Its log in .scratch says why; mend that, and start again."
        ) from error


async def answer(client: AsyncOpenAI, prompt: list[int], length: int) -> Waited:
    """One streamed greedy answer."""
    started = perf_counter()
    times = []
    tokens = 0
    stream = await client.completions.create(
        model=MODEL,
        prompt=prompt,
        max_tokens=length,
        temperature=0.0,
        stream=True,
        stream_options={"include_usage": True},
    )
    async for part in stream:
        if part.choices:
            times.append(perf_counter() - started)
        if part.usage is not None:
            tokens = part.usage.completion_tokens
    return Waited(tokens, times[0], times[-1])


@dataclass(frozen=True)
class Server:
    """How one server is started."""

    target: str  # folder or hub id of the target
    dtype: str
    python: str = sys.executable  # interpreter of an environment with vLLM and this package
    options: Sequence[str] = ()  # further options of vLLM's server
    speculation: Mapping[str, Any] | None = None  # vLLM's configuration; None decodes plainly
    gistgate: Mapping[str, Any] | None = None  # configuration of the plug-in; None leaves it out

    def command(self, port: int) -> list[str]:
        """The command that serves it on a port of this machine alone."""
        options = {
            "--model": self.target,
            "--served-model-name": MODEL,
            "--host": "127.0.0.1",
            "--port": str(port),
            "--dtype": self.dtype,
        }
        if self.speculation is not None:
            options["--speculative-config"] = json.dumps(self.speculation)
        if self.gistgate is not None:
            options["--additional-config"] = json.dumps({"gistgate": self.gistgate})
        words = [self.python, "-m", "vllm.entrypoints.openai.api_server"]
        for option in options.items():
            words += option
        return [*words, *self.options]

    @contextmanager
    def running(self, log: Path) -> Iterator[str]:
        """The address of the server, as long as it is needed."""
        with socket.socket() as free:  # a port that nobody uses at this moment
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        address = f"http://127.0.0.1:{port}"
        # In GiB; by itself a server wants most of the machine's memory.
        env = {"VLLM_CPU_KVCACHE_SPACE": "1", **os.environ}
        with log.open("w") as out:
            process = subprocess.Popen(
                self.command(port), stdout=out, stderr=subprocess.STDOUT, env=env
            )
            try:
                until = monotonic() + START
                while not is_ready(address):
                    if process.poll() is not None or monotonic() > until:
                        raise UserError(
                            f"The server did not start. Its log is {log} and ends:"
                            f" {log.read_text()[-2000:]}"
                        )
                    sleep(1)
                yield address
            finally:
                process.terminate()
                try:
                    process.wait(STOP)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def is_ready(address: str) -> bool:
    """Whether the server answers."""
    try:
        with urlopen(f"{address}/health", timeout=2):
            return True
    except OSError:
        return False


def servers_of(
    workload: Workload, python: str, block: int, gate: Path, options: list[str]
) -> dict[str, Server]:
    """Every server by name."""
    source = read_pair(workload.pair.name)
    if source.draft is None:
        raise UserError(
            "The pair of this run has no draft model, which the server would draft with. Choose"
            " another."
        )
    plain = Server(source.target.model, source.target.dtype, python, options)
    speculation = {
        "method": "draft_model",
        "model": source.draft.model,
        "num_speculative_tokens": block,
    }
    strict = replace(plain, speculation=speculation, gistgate={"strict": True})
    servers = {PLAIN: plain, "strict": strict}
    for name in SERVABLE:
        if name in workload.points:
            rule = {"rule": name, "settings": workload.points[name].settings}
            servers[name] = replace(strict, gistgate=rule)
    servers["gate"] = replace(strict, gistgate={"gate": str(gate)})
    return servers


def main(
    python: str = sys.executable,
    users: str = "1,4,16,64",
    rounds: int = 3,
    each: int = 4,
    block: int = 8,
    gate: Path = EXPORT,
    only: str = "",
    options: str = "",
    results: Path = RESULTS,
) -> None:
    """Measure every server, or `plain` and those that --only names, at every number of users.

    --python is the interpreter of an environment with vLLM and this package, --each the requests of
    every user in a round, --block the tokens in a draft, and --options go to vLLM's server. One
    more round than --rounds warms up.
    """
    workload = Workload.load()
    servers = servers_of(workload, python, block, gate, options.split())
    if only:
        chosen = [PLAIN, *names(only, servers, "is no server of this run")]
        servers = {name: servers[name] for name in chosen}
    about = {"pair": workload.pair.name, "block": block}
    SCRATCH.mkdir(exist_ok=True)
    levels = {}
    with ExitStack() as stack:
        addresses = {
            name: stack.enter_context(server.running(SCRATCH / f"server-{name}.log"))
            for name, server in servers.items()
        }
        for num in map(int, users.split(",")):
            levels[f"{num} users"] = measure(workload, addresses, num, rounds, each * num)
            save("serving", {**about, "levels": levels}, results)


def measure(
    workload: Workload, addresses: dict[str, str], users: int, rounds: int, requests: int
) -> dict[str, dict[str, Any]]:
    """All servers at one number of users, in turn; every round sends other prompts, as long as
    there are any.
    """
    length = workload.request["max_new_tokens"]
    ids = workload.ids
    measured: dict[str, list[Round]] = {name: [] for name in addresses}
    for number in range(rounds + 1):  # the first round warms everything up
        prompts = [ids[(number * requests + place) % len(ids)] for place in range(requests)]
        for name in addresses if number % 2 else reversed(addresses):
            measured[name].append(drive(addresses[name], prompts, users, length))
    figures = {}
    for name, (_, *later) in measured.items():
        figures[name] = against(later, measured[PLAIN][1:])
        speed = figures[name]["tokens_per_second"]
        print(f"{users:3} users {name:12} {speed:8.1f} tokens per second", flush=True)
    return figures


def rate_of(rounds: list[Round]) -> float:
    """Tokens per second over some rounds."""
    return sum(each.tokens for each in rounds) / sum(each.seconds for each in rounds)


def against(own: list[Round], plain: list[Round]) -> dict[str, Any]:
    """Figures of one server, and its ratio of tokens per second to the plain one with the lowest
    and the highest round.
    """
    ratios = [mine.rate / theirs.rate for mine, theirs in zip(own, plain, strict=True)]
    rate = rate_of(own)
    rounds = [each.as_dict() for each in own]
    return {
        "tokens_per_second": rate,
        "vs_plain": {"mean": rate / rate_of(plain), "low": min(ratios), "high": max(ratios)},
        "first_token": fmean(figures["first_token"] for figures in rounds),
        "between_tokens": fmean(figures["between_tokens"] for figures in rounds),
        "rounds": rounds,
    }


if __name__ == "__main__":
    run(main)
