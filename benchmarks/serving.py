"""What speculation costs and gains behind a server under load: vLLM plain, strict, and with rules of this library.

    python -m benchmarks.serving --python .venv-vllm/bin/python [--users 1,4,16,64] [--rates 1,4] [--rounds 3]

In the folder of a finished run whose pair has a draft model. One server for each method runs all the time; rounds
alternate between them, and every round sends the same prompts to each, other ones than the rounds before as long as
there are any. A ratio above 1 means that the server writes more tokens per second than vLLM without speculation at the
same level. It has the lowest and the highest round beside it, or from 8 rounds on a 90 % bootstrap over them (`kind`
says which). The result is written after every level. `--aside 16` adds a server with the gate that drafts nothing while
more than so many requests run.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean, median
from time import monotonic, perf_counter, sleep
from typing import TYPE_CHECKING, Any
from urllib.error import URLError
from urllib.request import urlopen

import torch
from openai import AsyncOpenAI, OpenAIError

from benchmarks.counts import names
from benchmarks.intervals import SAID, over_rounds
from benchmarks.levels import check_levels, levels_of
from benchmarks.speed import RESULTS, Workload, save
from gistgate.core.utils import UserError, first_line
from pipeline.pair.pair import read_pair
from pipeline.paths import SCRATCH
from pipeline.run import run

if TYPE_CHECKING:
    from pipeline.pair.pair import PairSource

# ---- Requests sent to an OpenAI-compatible server as users would send them, and the seconds that they wait.


SECONDS = 300.0
"""Longest wait for one answer."""


@dataclass(frozen=True)
class Level:
    """How much is asked at once: one of the two is given."""

    users: int | None = None
    """Users of a closed loop."""
    rate: float | None = None
    """Requests per second of an open loop."""

    @property
    def name(self) -> str:
        """The level in a table."""
        return f"{self.users} users" if self.users is not None else f"{self.rate:g} per second"


@dataclass(frozen=True)
class Waited:
    """One answer."""

    tokens: int
    """Tokens of the answer."""
    first: float
    """Seconds until its first token."""
    total: float
    """Seconds until its last token."""

    @property
    def between(self) -> float:
        """Mean seconds from one token to the next."""
        return (self.total - self.first) / max(self.tokens - 1, 1)


@dataclass(frozen=True)
class Round:
    """All requests of one round at one level."""

    seconds: float
    """From the first request to the last token."""
    waited: list[Waited]
    """One for each request."""

    @property
    def tokens(self) -> int:
        """Tokens of all answers."""
        return sum(one.tokens for one in self.waited)

    def as_dict(self) -> dict[str, float]:
        """Figures of the round: seconds, tokens, and the medians and means over its requests, in seconds."""
        return {
            "seconds": self.seconds,
            "tokens": self.tokens,
            "first_token": median(one.first for one in self.waited),
            "between_tokens": mean(one.between for one in self.waited),
        }


def drive(address: str, model: str, prompts: Sequence[list[int]], level: Level, length: int, seed: int) -> Round:
    """Send every prompt once at a level.

    Args:
        address: of the server, without the version.
        model: name of the model at the server.
        prompts: token ids of each request.
        level: how many at once, or how often.
        length: longest answer, in tokens.
        seed: draws the distances of an open loop; equal seeds give equal arrivals.

    Raises:
        UserError: the server did not answer one of them.
    """
    with answered(address):
        return asyncio.run(_drive(address, model, prompts, level, length, seed))


@contextmanager
def answered(address: str) -> Iterator[None]:
    """Around requests to a server: the first one that fails ends all of them.

    Raises:
        UserError: the server did not answer one of them.
    """
    try:
        yield
    except OpenAIError as error:
        raise UserError(
            f"The server at {address} did not answer a request ({type(error).__name__}: {first_line(error)}). Its log "
            "in .scratch says why; mend that, and start again."
        ) from error


async def _drive(address: str, model: str, prompts: Sequence[list[int]], level: Level, length: int, seed: int) -> Round:
    free = asyncio.Semaphore(level.users or len(prompts))
    async with AsyncOpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=SECONDS) as client:

        async def ask(prompt: list[int], at: float) -> Waited:
            await asyncio.sleep(at)
            async with free:
                return await answer(client, model, prompt, length)

        started = perf_counter()
        asked = [ask(prompt, at) for prompt, at in zip(prompts, arrivals(len(prompts), level, seed), strict=True)]
        waited = await asyncio.gather(*asked)
        return Round(perf_counter() - started, list(waited))


async def answer(client: Any, model: str, prompt: list[int], length: int) -> Waited:
    """One streamed greedy answer."""
    started, first, last, tokens = perf_counter(), None, 0.0, 0
    stream = await client.completions.create(
        model=model,
        prompt=prompt,
        max_tokens=length,
        temperature=0.0,
        stream=True,
        stream_options={"include_usage": True},
    )
    async for part in stream:
        if part.choices and part.choices[0].text:
            last = perf_counter() - started
            first = last if first is None else first
        if part.usage is not None:
            tokens = part.usage.completion_tokens
    return Waited(tokens, first or last, last)


def arrivals(number: int, level: Level, seed: int) -> list[float]:
    """Seconds after the start at which each request is sent."""
    if level.rate is None:
        return [0.0] * number
    draw, at = random.Random(seed), 0.0
    times = []
    for _ in range(number):
        times.append(at)
        at += draw.expovariate(level.rate)
    return times


# ---- vLLM servers on this machine, each with its own configuration, for benchmarks and for tests.


START, STOP = 600, 60
"""Longest wait for a server to answer, and to end when it is told to, in seconds."""
MODEL = "target"
"""Name under which every server knows its model."""


@dataclass(frozen=True)
class Configuration:
    """How one server is started."""

    target: Path
    """Folder of the target."""
    speculation: Mapping[str, Any] | None = None
    """vLLM's speculative configuration; None decodes plainly."""
    gistgate: Mapping[str, Any] | None = None
    """Configuration of the plug-in; None leaves it out."""
    dtype: str = "float32"
    python: str = sys.executable
    """Interpreter of an environment with vLLM and this package."""
    options: Sequence[str] = field(default_factory=list)
    """Further options of vLLM's server."""

    def command(self, port: int) -> list[str]:
        """The command that serves it on a port of this machine alone."""
        words = [self.python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(self.target)]
        words += ["--served-model-name", MODEL, "--host", "127.0.0.1", "--port", str(port), "--dtype", self.dtype]
        if self.speculation is not None:
            words += ["--speculative-config", json.dumps(dict(self.speculation))]
        if self.gistgate is not None:
            words += ["--additional-config", json.dumps({"gistgate": dict(self.gistgate)})]
        return [*words, *self.options]

    def described(self) -> dict[str, Any]:
        """What a result says of the server."""
        parts = {"speculation": self.speculation, "gistgate": self.gistgate, "dtype": self.dtype}
        return {**parts, "options": list(self.options)}


def server_of(source: PairSource, block: int, python: str, options: Sequence[str]) -> Configuration:
    """A server without the plug-in that drafts with the pair's own draft.

    Raises:
        UserError: the pair has none.
    """
    if source.draft is None:
        raise UserError(
            "The pair of this run has no draft model, which the server would draft with. Choose a pair with a draft "
            "model."
        )
    speculation = {"method": "draft_model", "model": source.draft.model, "num_speculative_tokens": block}
    return Configuration(Path(source.target.model), speculation, None, source.target.dtype, python, options)


@contextmanager
def serving(configuration: Configuration, log: Path) -> Iterator[str]:
    """The address of a server, as long as it is needed.

    Raises:
        UserError: it ends or does not answer in time; its log says why.
    """
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    env = {"VLLM_CPU_KVCACHE_SPACE": "1", **os.environ}  # GiB; by itself a server wants most of the machine's memory
    with log.open("w") as out:
        process = subprocess.Popen(configuration.command(port), stdout=out, stderr=subprocess.STDOUT, env=env)
        try:
            until_ready(process, address, log)
            yield address
        finally:
            stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a server; one that does not end in time is killed."""
    process.terminate()
    try:
        process.wait(STOP)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def until_ready(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
    """Wait until a server answers.

    Raises:
        UserError: it ends or does not answer in time; its log says why.
    """
    until = monotonic() + START
    while not answers(address):
        if process.poll() is not None or monotonic() > until:
            raise UserError(f"The server did not start. Its log is {log} and ends with: {log.read_text()[-2000:]}")
        sleep(1)


def free_port() -> int:
    """A port that nobody uses at this moment."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


def answers(address: str) -> bool:
    """Whether the server is ready."""
    try:
        with urlopen(f"{address}/health", timeout=2):
            return True
    except (URLError, OSError):
        return False


PLAIN = "plain"
SERVABLE = ("fly", "ensemble", "prob-ratio", "typical")
"""Rules without a gate that the plug-in serves, as far as the run has certified them. The greedy form of `ensemble`
needs vLLM's second model runner, which wants a GPU."""
MOST = 1_000_000
"""A number of running requests that no server reaches."""


def main(
    python: str = sys.executable,
    users: str = "1,4,16,64",
    rates: str = "",
    rounds: int = 3,
    each: int = 4,
    most: int = 256,
    seconds: float = 10.0,
    block: int = 8,
    gate: Path = Path("models/export"),
    aside: int = 0,
    only: str = "",
    running: str = "",
    options: str = "",
    conditions: str = "",
    results: Path = RESULTS,
) -> None:
    """Measure every server at every level.

    Args:
        python: interpreter of an environment with vLLM and this package.
        users: sizes of the closed loops, with commas between them.
        rates: requests per second of the open loops, with commas between them.
        rounds: measured rounds; one more, which warms up, is thrown away.
        each: requests of every user in a round.
        most: requests of a closed loop in a round, whatever the number of users.
        seconds: of arrivals in a round of an open loop.
        block: K, tokens in a draft.
        gate: folder of the exported gate.
        aside: adds a server that drafts nothing while more than so many requests run; 0 adds none.
        only: methods beside `plain`, with commas between them; empty takes all.
        running: addresses of servers that run already with these configurations, as `plain=URL,strict=URL`; the others
            are started.
        options: further options of vLLM's server, with spaces between them.
        conditions: what else the result should say of the measurement, such as other programs on the machine.
        results: folder of the result.
    """
    asked = levels_of(users, rates, each, most, seconds)
    workload = Workload.load(MOST)
    check_levels(asked, len(workload.ids))
    fields = configurations(workload, python, block, gate, aside, options.split())
    chosen = [PLAIN, *names(only, fields, "is no server of this run")] if only else list(fields)
    fields = {name: one for name, one in fields.items() if name in chosen}
    servers = {name: one.described() for name, one in fields.items()}
    about = {"pair": workload.pair.name, "block": block, "rounds": rounds, "servers": servers}
    about |= {"conditions": conditions} if conditions else {}
    SCRATCH.mkdir(exist_ok=True)
    known = dict(one.split("=", 1) for one in running.split(",") if one)
    with ExitStack() as stack:
        addresses = {
            name: known.get(name) or stack.enter_context(serving(one, SCRATCH / f"server-{name}.log"))
            for name, one in fields.items()
        }
        found: dict[str, Any] = {}
        for level, requests in asked.items():
            found[level.name] = measure(workload, addresses, level, rounds, requests)
            save("serving", {**about, "levels": found}, results, lambda: figure(found))


def configurations(
    workload: Workload, python: str, block: int, gate: Path, aside: int, options: list[str]
) -> dict[str, Configuration]:
    """Every server by name.

    Raises:
        UserError: the pair has no draft model.
    """
    drafting = server_of(read_pair(workload.pair.name), block, python, options)

    def server(rule: dict[str, Any], **drafts: Any) -> Configuration:
        return replace(drafting, gistgate=rule, speculation={**(drafting.speculation or {}), **drafts})

    found = {PLAIN: replace(drafting, speculation=None), "strict": server({"strict": True})}
    for name in SERVABLE:
        if name in workload.points and (name != "ensemble" or torch.cuda.is_available()):
            rule = {"rule": name, "settings": workload.points[name].settings}
            probabilistic = {"draft_sample_method": "probabilistic"} if name == "ensemble" else {}
            found[name] = server(rule, **probabilistic)
    found["gate"] = server({"gate": str(gate)})
    if aside:
        schedule = [[1, aside, block], [aside + 1, MOST, 0]]
        found["gate-aside"] = server({"gate": str(gate)}, num_speculative_tokens_per_batch_size=schedule)
    return found


def measure(
    workload: Workload, addresses: dict[str, str], level: Level, rounds: int, requests: int
) -> dict[str, dict[str, Any]]:
    """All servers at one level, in turn, with `requests` prompts in every round."""
    length = workload.request["max_new_tokens"]
    order = list(addresses)
    done: dict[str, list[Round]] = {name: [] for name in order}
    for number in range(rounds + 1):  # the first round warms everything up
        asked = [workload.ids[(number * requests + place) % len(workload.ids)] for place in range(requests)]
        for name in order if number % 2 else reversed(order):
            measured = drive(addresses[name], MODEL, asked, level, length, seed=number)
            if number:
                done[name].append(measured)
    found = {name: against(done[name], done[PLAIN]) for name in order}
    for name, entry in found.items():
        print(f"{level.name:16} {name:12} {entry['tokens_per_second']:8.1f} tokens per second", flush=True)
    return found


def against(own: list[Round], plain: list[Round]) -> dict[str, Any]:
    """Figures of one server, and its ratio of tokens per second to the plain one."""
    rounds = [one.as_dict() for one in own]
    columns = {
        "tokens": [one.tokens for one in own],
        "seconds": [one.seconds for one in own],
        "plain_tokens": [one.tokens for one in plain],
        "plain_seconds": [one.seconds for one in plain],
    }
    ratio = over_rounds(
        lambda seen: (
            seen["tokens"].sum(-1)
            / seen["seconds"].sum(-1)
            / (seen["plain_tokens"].sum(-1) / seen["plain_seconds"].sum(-1))
        ),
        columns,
    )
    means = {key: sum(one[key] for one in rounds) / len(rounds) for key in ("first_token", "between_tokens")}
    rate = sum(columns["tokens"]) / sum(columns["seconds"])
    best = max(one.tokens / one.seconds for one in own)
    speeds = {"tokens_per_second": rate, "best_tokens_per_second": best, "vs_plain": ratio}
    return {**speeds, **means, "n": len(rounds), "rounds": rounds}


def figure(measured: dict[str, Any]) -> Any:
    """Ratio to plain over the levels, one line for each server."""
    import matplotlib.pyplot as plt

    drawing, axes = plt.subplots(figsize=(7, 4))
    levels = list(measured)
    for name in next(iter(measured.values())):
        ratios = [measured[level][name]["vs_plain"] for level in levels]
        axes.plot(levels, [one["mean"] for one in ratios], marker="o", label=name)
        axes.fill_between(levels, [one["low"] for one in ratios], [one["high"] for one in ratios], alpha=0.15)
    axes.set_title(f"shaded: {SAID[ratios[0]['kind']]}", fontsize=8)
    axes.set(ylabel="tokens per second, ratio to vLLM without speculation", xlabel="load")
    axes.legend()
    return drawing


if __name__ == "__main__":
    run(main, kept=False)
