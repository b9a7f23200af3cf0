"""What speculation costs and gains behind a server under load: vLLM plain, strict, and with rules
of this library.

python -m benchmarks.serving --python .venv-vllm/bin/python [--users 1,4,16,64] [--rates 1,4]
[--rounds 3]
"""

import asyncio
import json
import math
import os
import random
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate
from operator import truediv
from pathlib import Path
from statistics import fmean, median
from time import monotonic, perf_counter, sleep
from typing import Annotated, Any
from urllib.error import URLError
from urllib.request import urlopen

import torch
from openai import AsyncOpenAI, OpenAIError
from typer import Option

from benchmarks.speed import RESULTS, Workload, counts, names, save
from gistgate.core.utils import UserError, first_line
from gistgate.measure.statistics import over_rounds
from pipeline.pair.pair import read_pair
from pipeline.paths import EXPORT, SCRATCH
from pipeline.run import run

SECONDS = 300.0  # longest wait for one answer
START = 600  # longest wait for a server to answer, and to end when it is told to, in seconds
STOP = 60
MODEL = "target"  # name under which every server knows its model
PLAIN = "plain"
SERVABLE = ("fly", "ensemble", "prob-ratio", "typical")
"""Rules without a gate that the plug-in serves, as far as the run has certified them. The greedy
form of `ensemble` needs vLLM's second model runner, which wants a GPU."""
MOST = 1_000_000  # a number of running requests that no server reaches


@dataclass(frozen=True)
class Level:
    """How much is asked at once: `users` of a closed loop, or requests per second (`rate`) of an
    open loop.
    """

    users: int | None = None
    rate: float | None = None

    @property
    def name(self) -> str:
        """The level in a table."""
        return f"{self.users} users" if self.users is not None else f"{self.rate:g} per second"


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
    """All requests of one round at one level."""

    seconds: float  # from the first request to the last token
    waited: list[Waited]

    def as_dict(self) -> dict[str, float]:
        """Figures of the round: seconds, tokens, and the median and mean over its requests, in
        seconds.
        """
        return {
            "seconds": self.seconds,
            "tokens": sum(one.tokens for one in self.waited),
            "first_token": median(one.first for one in self.waited),
            "between_tokens": fmean(one.between for one in self.waited),
        }


def drive(
    address: str, model: str, prompts: Sequence[list[int]], level: Level, length: int, seed: int
) -> Round:
    """Send every prompt once at a level, for answers of at most `length` tokens; equal seeds give
    equal arrivals.
    """

    async def send() -> Round:
        free = asyncio.Semaphore(level.users or len(prompts))
        async with AsyncOpenAI(
            base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=SECONDS
        ) as client:

            async def ask(prompt: list[int], at: float) -> Waited:
                await asyncio.sleep(at)
                async with free:
                    return await answer(client, model, prompt, length)

            started = perf_counter()
            times = arrivals(len(prompts), level, seed)
            waited = await asyncio.gather(*map(ask, prompts, times))
            return Round(perf_counter() - started, list(waited))

    try:
        return asyncio.run(send())
    except OpenAIError as error:
        raise UserError(
            f"The server at {address} did not answer a request ({type(error).__name__}:"
            f" {first_line(error)}). Its log in .scratch says why; mend that, and start again."
        ) from error


async def answer(client: Any, model: str, prompt: list[int], length: int) -> Waited:
    """One streamed greedy answer."""
    started = perf_counter()
    first = None
    last = 0.0
    tokens = 0
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
    """Seconds after the start at which each request is sent: Poisson arrivals in an open loop."""
    if level.rate is None:
        return [0.0] * number
    draw = random.Random(seed)
    return [*accumulate((draw.expovariate(level.rate) for _ in range(number - 1)), initial=0.0)]


def levels_of(users: str, rates: str, each: int, most: int, seconds: float) -> dict[Level, int]:
    """Every level that is asked for, with its requests in a round."""
    found = {
        Level(users=one): min(each * one, most)
        for one in (counts(users, "--users") if users else [])
    }
    for one in filter(None, rates.split(",")):
        try:
            rate = float(one)
        except ValueError:
            rate = math.nan
        if not 0 < rate < math.inf:
            raise UserError(
                f"'{one}' in --rates is no positive number. Pass numbers such as 0.5,4."
            )
        found[Level(rate=rate)] = math.ceil(seconds * rate)
    if not found:
        raise UserError("No load is asked for. Name --users, --rates or both.")
    return found


@dataclass(frozen=True)
class Configuration:
    """How one server is started."""

    target: Path  # folder of the target
    speculation: Mapping[str, Any] | None = (
        None  # vLLM's speculative configuration; None decodes plainly
    )
    gistgate: Mapping[str, Any] | None = None  # configuration of the plug-in; None leaves it out
    dtype: str = "float32"
    python: str = sys.executable  # interpreter of an environment with vLLM and this package
    options: Sequence[str] = field(default_factory=list)  # further options of vLLM's server

    def command(self, port: int) -> list[str]:
        """The command that serves it on a port of this machine alone."""
        words = [
            self.python,
            "-m",
            "vllm.entrypoints.openai.api_server",
            "--model",
            str(self.target),
        ]
        words += [
            "--served-model-name",
            MODEL,
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--dtype",
            self.dtype,
        ]
        if self.speculation is not None:
            words += ["--speculative-config", json.dumps(dict(self.speculation))]
        if self.gistgate is not None:
            words += ["--additional-config", json.dumps({"gistgate": dict(self.gistgate)})]
        return [*words, *self.options]

    def described(self) -> dict[str, Any]:
        """What a result says of the server."""
        return {
            name: value for name, value in asdict(self).items() if name not in ("target", "python")
        }


@contextmanager
def serving(configuration: Configuration, log: Path) -> Iterator[str]:
    """The address of a server, as long as it is needed."""
    with socket.socket() as free:  # a port that nobody uses at this moment
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    env = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        **os.environ,
    }  # GiB; by itself a server wants most of the machine's memory
    with log.open("w") as out:
        process = subprocess.Popen(
            configuration.command(port), stdout=out, stderr=subprocess.STDOUT, env=env
        )
        try:
            until = monotonic() + START
            while not answers(address):
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


def answers(address: str) -> bool:
    """Whether the server is ready."""
    try:
        with urlopen(f"{address}/health", timeout=2):
            return True
    except (URLError, OSError):
        return False


def main(
    python: Annotated[
        str, Option(help="Interpreter of an environment with vLLM and this package.")
    ] = sys.executable,
    users: Annotated[
        str, Option(help="Sizes of the closed loops, with commas between them.")
    ] = "1,4,16,64",
    rates: Annotated[
        str, Option(help="Requests per second of the open loops, with commas between them.")
    ] = "",
    rounds: Annotated[
        int, Option(help="Measured rounds; one more, which warms up, is thrown away.", min=1)
    ] = 3,
    each: Annotated[int, Option(help="Requests of every user in a round.", min=1)] = 4,
    most: Annotated[
        int, Option(help="Requests of a closed loop in a round, whatever the number of users.")
    ] = 256,
    seconds: Annotated[
        float, Option(help="Seconds of arrivals in a round of an open loop.")
    ] = 10.0,
    block: Annotated[int, Option(help="K, tokens in a draft.", min=1)] = 8,
    gate: Annotated[Path, Option(help="Folder of the exported gate.")] = EXPORT,
    aside: Annotated[
        int, Option(help="Adds a server that does not draft while more requests run; 0: none.")
    ] = 0,
    only: Annotated[
        str, Option(help="Methods beside `plain`, with commas between them; empty takes all.")
    ] = "",
    running: Annotated[str, Option(help="Servers that run already, as plain=URL,strict=URL.")] = "",
    options: Annotated[
        str, Option(help="Further options of vLLM's server, with spaces between them.")
    ] = "",
    conditions: Annotated[
        str, Option(help="What else the result should say of the measurement.")
    ] = "",
    results: Annotated[Path, Option(help="Folder of the result.")] = RESULTS,
) -> None:
    """Measure every server at every level."""
    levels = levels_of(users, rates, each, most, seconds)
    workload = Workload.load()
    level, num = max(levels.items(), key=lambda one: one[1])
    if num > len(workload.ids):
        lower = "--each, --most or --users" if level.users is not None else "--seconds or --rates"
        raise UserError(
            f"A round at {level.name} asks {num} of {len(workload.ids)} test prompts. Lower"
            f" {lower}."
        )
    servers = configurations(workload, python, block, gate, aside, options.split())
    if only:
        servers = {
            name: servers[name]
            for name in (PLAIN, *names(only, servers, "is no server of this run"))
        }
    about = {
        "pair": workload.pair.name,
        "block": block,
        "rounds": rounds,
        "servers": {name: one.described() for name, one in servers.items()},
        **({"conditions": conditions} if conditions else {}),
    }
    SCRATCH.mkdir(exist_ok=True)
    known = dict(one.split("=", 1) for one in running.split(",") if one)
    found = {}
    with ExitStack() as stack:
        addresses = {
            name: (
                known.get(name) or stack.enter_context(serving(one, SCRATCH / f"server-{name}.log"))
            )
            for name, one in servers.items()
        }
        for level, num in levels.items():
            found[level.name] = measure(workload, addresses, level, rounds, num)
            save("serving", {**about, "levels": found}, results)


def configurations(
    workload: Workload, python: str, block: int, gate: Path, aside: int, options: list[str]
) -> dict[str, Configuration]:
    """Every server by name."""
    source = read_pair(workload.pair.name)
    if source.draft is None:
        raise UserError(
            "The pair of this run has no draft model, which the server would draft with. Choose"
            " another."
        )
    speculation = {
        "method": "draft_model",
        "model": source.draft.model,
        "num_speculative_tokens": block,
    }
    plain = Configuration(
        Path(source.target.model), dtype=source.target.dtype, python=python, options=options
    )

    def server(rule: dict[str, Any], **drafts: Any) -> Configuration:
        return replace(plain, gistgate=rule, speculation={**speculation, **drafts})

    found = {PLAIN: plain, "strict": server({"strict": True})}
    for name in SERVABLE:
        if name in workload.points and (name != "ensemble" or torch.cuda.is_available()):
            rule = {"rule": name, "settings": workload.points[name].settings}
            found[name] = server(
                rule, **({"draft_sample_method": "probabilistic"} if name == "ensemble" else {})
            )
    found["gate"] = server({"gate": str(gate)})
    if aside:
        schedule = [[1, aside, block], [aside + 1, MOST, 0]]
        found["gate-aside"] = server(
            {"gate": str(gate)}, num_speculative_tokens_per_batch_size=schedule
        )
    return found


def measure(
    workload: Workload, addresses: dict[str, str], level: Level, rounds: int, requests: int
) -> dict[str, dict[str, Any]]:
    """All servers at one level, in turn; every round sends `requests` other prompts, as long as
    there are any.
    """
    length = workload.request["max_new_tokens"]
    ids = workload.ids
    done = {name: list[Round]() for name in addresses}
    for number in range(rounds + 1):  # the first round warms everything up
        asked = [ids[(number * requests + place) % len(ids)] for place in range(requests)]
        for name in addresses if number % 2 else reversed(addresses):
            measured = drive(addresses[name], MODEL, asked, level, length, seed=number)
            if number:
                done[name].append(measured)
    found = {name: against(own, done[PLAIN]) for name, own in done.items()}
    for name, entry in found.items():
        print(
            f"{level.name:16} {name:12} {entry['tokens_per_second']:8.1f} tokens per second",
            flush=True,
        )
    return found


def against(own: list[Round], plain: list[Round]) -> dict[str, Any]:
    """Figures of one server, and its ratio of tokens per second to the plain one."""

    def ratio(n: Any, s: Any, m: Any, t: Any, axis: int) -> Any:
        return n.sum(axis) / s.sum(axis) / (m.sum(axis) / t.sum(axis))

    rounds, others = ([one.as_dict() for one in side] for side in (own, plain))
    tokens, seconds, *theirs = (
        [one[key] for one in side] for side in (rounds, others) for key in ("tokens", "seconds")
    )
    return {
        "tokens_per_second": sum(tokens) / sum(seconds),
        "best_tokens_per_second": max(map(truediv, tokens, seconds)),
        "vs_plain": over_rounds(ratio, tokens, seconds, *theirs),
        **{key: fmean(one[key] for one in rounds) for key in ("first_token", "between_tokens")},
        "n": len(rounds),
        "rounds": rounds,
    }


if __name__ == "__main__":
    run(main)
