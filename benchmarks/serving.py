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

import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.bench import RESULTS, save
from benchmarks.counts import names
from benchmarks.intervals import SAID, over_rounds
from benchmarks.levels import check_levels, levels_of
from benchmarks.load import Level, Round, drive
from benchmarks.servers import MODEL, Configuration, server_of, serving
from benchmarks.workload import Workload
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
