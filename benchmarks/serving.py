"""What speculation costs and gains behind a server under load: vLLM plain, strict, and with rules of this library.

    python -m benchmarks.serving --python .venv-vllm/bin/python [--users 1,4,16,64] [--rates 1,4] [--rounds 3]

In the folder of a finished run. One server for each method runs all the time; rounds alternate between them, and every
round sends the same prompts to each, other ones than the rounds before. A ratio above 1 means that the server writes
more tokens per second than vLLM without speculation at the same level. Intervals are over rounds. `--aside 16` adds a
server with the gate that drafts nothing while more than so many requests run.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from math import ceil
from pathlib import Path
from typing import Any

import torch

from benchmarks.bench import RESULTS, save
from benchmarks.load import Level, Round, drive
from benchmarks.servers import MODEL, Configuration, serving
from benchmarks.workload import Workload
from gistgate.errors import UserError
from gistgate.observing.intervals import over_prompts
from pipeline.common.entry import run
from pipeline.common.paths import SCRATCH
from pipeline.pairs.source import read_pair

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
    workload = Workload.load(MOST)
    levels = [Level(users=int(one)) for one in users.split(",") if one]
    levels += [Level(rate=float(one)) for one in rates.split(",") if one]
    fields = configurations(workload, python, block, gate, aside, options.split())
    fields = {name: one for name, one in fields.items() if name == PLAIN or not only or name in only.split(",")}
    SCRATCH.mkdir(exist_ok=True)
    known = dict(one.split("=", 1) for one in running.split(",") if one)
    with ExitStack() as stack:
        addresses = {
            name: known.get(name) or stack.enter_context(serving(one, SCRATCH / f"server-{name}.log"))
            for name, one in fields.items()
        }
        found = {}
        for level in levels:
            number = min(each * level.users, most) if level.users is not None else ceil(seconds * (level.rate or 0))
            found[level.name] = measure(workload, addresses, level, rounds, number)
    servers = {name: one.described() for name, one in fields.items()}
    payload = {"pair": workload.pair.name, "block": block, "rounds": rounds, "servers": servers, "levels": found}
    if conditions:
        payload["conditions"] = conditions
    save("serving", payload, results, lambda: figure(found))


def configurations(
    workload: Workload, python: str, block: int, gate: Path, aside: int, options: list[str]
) -> dict[str, Configuration]:
    """Every server by name."""
    source = read_pair(workload.pair.name)
    target = Path(source.target.model)
    speculation = {"method": "draft_model", "model": source.draft.model, "num_speculative_tokens": block}

    def server(drafts: dict[str, Any] | None, rule: dict[str, Any] | None) -> Configuration:
        return Configuration(target, drafts, rule, source.target.dtype, python, options)

    found = {PLAIN: server(None, None), "strict": server(speculation, {"strict": True})}
    for name in SERVABLE:
        if name in workload.points and (name != "ensemble" or torch.cuda.is_available()):
            rule = {"rule": name, "settings": workload.points[name].settings}
            probabilistic = {"draft_sample_method": "probabilistic"} if name == "ensemble" else {}
            found[name] = server({**speculation, **probabilistic}, rule)
    found["gate"] = server(speculation, {"gate": str(gate)})
    if aside:
        schedule = [[1, aside, block], [aside + 1, MOST, 0]]
        found["gate-aside"] = server(
            {**speculation, "num_speculative_tokens_per_batch_size": schedule}, {"gate": str(gate)}
        )
    return found


def measure(
    workload: Workload, addresses: dict[str, str], level: Level, rounds: int, requests: int
) -> dict[str, dict[str, Any]]:
    """All servers at one level, in turn, with `requests` new prompts in every round.

    Raises:
        UserError: the run has too few test prompts for one round.
    """
    if requests > len(workload.ids):
        raise UserError(f"The run has {len(workload.ids)} test prompts, and a round at {level.name} asks {requests}.")
    length = workload.request["max_new_tokens"]
    names = list(addresses)
    done: dict[str, list[Round]] = {name: [] for name in names}
    for number in range(rounds + 1):  # the first round warms everything up
        asked = [workload.ids[(number * requests + place) % len(workload.ids)] for place in range(requests)]
        for name in names if number % 2 else reversed(names):
            measured = drive(addresses[name], MODEL, asked, level, length, seed=number)
            if number:
                done[name].append(measured)
    found = {name: against(done[name], done[PLAIN]) for name in names}
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
    ratio = over_prompts(
        lambda seen: {
            "": seen["tokens"].sum(-1)
            / seen["seconds"].sum(-1)
            / (seen["plain_tokens"].sum(-1) / seen["plain_seconds"].sum(-1))
        },
        columns,
    )[""]
    means = {key: sum(one[key] for one in rounds) / len(rounds) for key in ("first_token", "between_tokens")}
    rate = sum(columns["tokens"]) / sum(columns["seconds"])
    best = max(one.tokens / one.seconds for one in own)
    speeds = {"tokens_per_second": rate, "best_tokens_per_second": best, "vs_plain": ratio.as_dict()}
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
    axes.set(ylabel="tokens per second, ratio to vLLM without speculation", xlabel="load")
    axes.legend()
    return drawing


if __name__ == "__main__":
    run(main)
