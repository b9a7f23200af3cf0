"""What speculation costs and gains behind a server under load: vLLM plain, strict, and with rules of this library.

    python -m benchmarks.serving --python .venv-vllm/bin/python [--users 1,4,16,64] [--rates 1,4] [--rounds 5]

In the folder of a finished run. One server for each method runs all the time; rounds alternate between them, and every
round sends the same prompts to each. A ratio above 1 means that the server writes more tokens per second than vLLM
without speculation at the same level. Intervals are over rounds.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

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
"""Rules without a gate that the plug-in serves, as far as the run has certified them."""


def main(
    python: str = sys.executable,
    users: str = "1,4,16,64",
    rates: str = "",
    rounds: int = 5,
    requests: int = 64,
    block: int = 4,
    gate: Path = Path("models/export"),
    results: Path = RESULTS,
) -> None:
    workload = Workload.load(requests)
    if len(workload.prompts) < requests:
        raise UserError(f"The run has {len(workload.prompts)} test prompts. Ask for at most so many --requests.")
    levels = [Level(users=int(one)) for one in users.split(",") if one]
    levels += [Level(rate=float(one)) for one in rates.split(",") if one]
    fields = configurations(workload, python, block, gate)
    SCRATCH.mkdir(exist_ok=True)
    with ExitStack() as stack:
        addresses = {
            name: stack.enter_context(serving(one, SCRATCH / f"server-{name}.log")) for name, one in fields.items()
        }
        measured = {level.name: measure(workload, addresses, level, rounds) for level in levels}
    payload = {"pair": workload.pair.name, "block": block, "requests": requests, "rounds": rounds, "levels": measured}
    save("serving", payload, results, lambda: figure(measured))


def configurations(workload: Workload, python: str, block: int, gate: Path) -> dict[str, Configuration]:
    """Every server by name."""
    source = read_pair(workload.pair.name)
    target = Path(source.target.model)
    speculation = {"method": "draft_model", "model": source.draft.model, "num_speculative_tokens": block}
    found = {
        PLAIN: Configuration(target, python=python),
        "strict": Configuration(target, speculation, {"strict": True}, python=python),
    }
    for name in SERVABLE:
        if name in workload.points:
            rule = {"rule": name, "settings": workload.points[name].settings}
            probabilistic = {"draft_sample_method": "probabilistic"} if name == "ensemble" else {}
            found[name] = Configuration(target, {**speculation, **probabilistic}, rule, python=python)
    found["gate"] = Configuration(target, speculation, {"gate": str(gate)}, python=python)
    return found


def measure(workload: Workload, addresses: dict[str, str], level: Level, rounds: int) -> dict[str, Any]:
    """All servers at one level, in turn."""
    length = workload.request["max_new_tokens"]
    names = list(addresses)
    done: dict[str, list[Round]] = {name: [] for name in names}
    for number in range(rounds + 1):  # the first round warms everything up
        for name in names if number % 2 else reversed(names):
            measured = drive(addresses[name], MODEL, workload.ids, level, length, seed=number)
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
    return {"tokens_per_second": rate, "vs_plain": ratio.as_dict(), **means, "n": len(rounds), "rounds": rounds}


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
