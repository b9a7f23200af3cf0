"""What each way to a cheaper draft gives to each rule, side by side in one run.

    python -m benchmarks.drafting [--prompts 50] [--methods strict,NAME,...] [--steps STEP,...] [--results FOLDER]

In the folder of a finished run whose pair has a draft model; batch 1, eager engine. Every rule climbs the same steps,
each added to those before it: the draft as it is with K tokens, quantised weights, a part of the vocabulary (counted on
the reference answers of training prompts), ends of drafts, texts beside the model. The certificates of the settings
speak of the draft of the run alone. Costs, the policies for ends of drafts and the best form of transformers' assisted
generation come from development prompts. An interrupted measurement goes on with the next prompt.

`limit` is tau / (v(n) + n c) for n draft forwards of a round; with texts, v(K) is taken, since their tokens are read
without a draft forward. `parts` are shares of a request's seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.bench import RESULTS, ratios, save
from benchmarks.drafting_choices import assisted_as_chosen, costs_of, policy_of, prepare
from benchmarks.ladder import STEPS, TEXTS, VOCABULARY, WHOLE, Counted, Ladder, points_of
from benchmarks.workload import Workload
from gistgate.errors import UserError
from gistgate.files import fingerprint, read_json, read_json_lines, write_json
from gistgate.forward.output import Subset
from gistgate.observing.intervals import ratio_of_sums
from gistgate.request.statistics import Statistics
from pipeline.common.decoders import read_prompts
from pipeline.common.entry import run
from pipeline.common.paths import SCRATCH
from pipeline.common.progress import bar
from pipeline.labels.schema import REFERENCE
from pipeline.speed.clock import Contender
from pipeline.speed.race import lap, without_loops

PLAIN, ASSISTED = "plain", "assisted"
PARTS = ("draft", "verify", "accept")


def main(
    prompts: int = 50,
    methods: str = "",
    steps: str = ",".join(STEPS),
    kind: str = "int4",
    size: int = 32768,
    development: int = 8,
    max_new_tokens: int = 64,
    threads: int = 2,
    results: Path = RESULTS,
) -> None:
    taken = wanted(steps)
    torch.set_num_threads(threads)
    workload = Workload.load(prompts)
    if workload.pair.draft is None:
        raise UserError("This pair has no draft model, so no draft can get cheaper. Choose another pair.")
    points = points_of(workload, [one for one in methods.split(",") if one])
    request = {**workload.request, "max_new_tokens": min(max_new_tokens, workload.request["max_new_tokens"])}
    subset = counted(workload, size) if VOCABULARY in taken else None
    said = {name: point.as_dict() for name, point in points.items()}
    settings = {
        "points": said,
        "steps": taken,
        "kind": kind,
        "size": size,
        "request": sorted(request.items(), key=str),
    }
    folder = SCRATCH / f"drafting-{fingerprint(settings, workload.ids, development, threads, workload.pair.name)}"
    ladder = Ladder.load(workload, taken, kind, subset)
    prepare(ladder, points, [one["ids"] for one in read_prompts("development")[:development]], request, folder)
    field = contenders(ladder, points, request, folder)
    short = contenders(ladder, points, {**request, "max_new_tokens": 8}, folder)
    times = timed(field, short, workload.ids, folder)
    save(
        "drafting",
        {
            "pair": workload.pair.name,
            "kind": kind,
            "subset": None if subset is None else {"size": len(subset.ids), "coverage": subset.coverage},
            "max_new_tokens": request["max_new_tokens"],
            "points": said,
            "costs": {name: asdict(costs_of(folder, name)) for name in ladder.drafts},
            "assisted": read_json(folder / "assisted.json"),
            "contenders": figures(times, points, ladder, folder),
        },
        results,
    )


def wanted(steps: str) -> list[str]:
    """The steps that are taken, in their order; the first is always among them.

    Raises:
        UserError: there is no such step.
    """
    named = steps.split(",")
    if unknown := [step for step in named if step not in STEPS]:
        raise UserError(f"There is no step '{unknown[0]}'. Known: {', '.join(STEPS)}.")
    return [step for step in STEPS if step == WHOLE or step in named]


def counted(workload: Workload, size: int) -> Subset:
    """The most frequent tokens of the reference answers to training prompts."""
    answers = [answer["ids"] for answer in read_json_lines(REFERENCE)]
    pair = workload.pair
    return Subset.count(answers, size, pair.tokenizer, pair.draft_model, workload.request["eos_ids"])


def contenders(ladder: Ladder, points: Mapping[str, Any], request: dict[str, Any], folder: Path) -> list[Contender]:
    """Everything that is timed."""
    field = [
        Contender(PLAIN, Counted(ladder.workload.plain("eager"), request), 0),
        assisted_as_chosen(ladder, request, folder),
    ]
    for method, point in points.items():
        for step in ladder.steps:
            decoder = ladder.decoder(point, step, policy_of(folder, method))
            field.append(Contender(f"{method}: {step}", Counted(decoder, request), point.block))
    return field


def timed(field: Sequence[Contender], short: Sequence[Contender], ids: Sequence[list[int]], folder: Path) -> Any:
    """Seconds, tokens and counts of every contender on every prompt; finished prompts are read from `folder`."""
    for contender in short:  # the first call of everything pays for what later calls find done
        contender.decode(ids[:1])
    for place, one in enumerate(bar(ids, title="drafting", unit="prompt")):
        path = folder / f"prompt-{place:04d}.json"
        if not path.exists():
            runs = lap(field, [one], [place])
            seen = {c.name: c.decode.last.as_dict() for c in field if isinstance(c.decode, Counted) and c.decode.last}
            write_json(path, {name: {**asdict(run), "counted": seen.get(name)} for name, (run,) in runs.items()})
    laps = [read_json(folder / f"prompt-{place:04d}.json") for place in range(len(ids))]
    loops = [any(run["loops"] for run in one.values()) for one in laps]
    columns = ("seconds", "tokens", "counted")
    found = {c.name: {"block": c.block, **{key: [one[c.name][key] for one in laps] for key in columns}} for c in field}
    return without_loops(found, loops)


def figures(times: Any, points: Mapping[str, Any], ladder: Ladder, folder: Path) -> dict[str, Any]:
    """Rates and ratios of every contender; of ours also tau, limit, parts, and the ratio to the step before."""
    found = ratios(times, (PLAIN, ASSISTED))
    for method in points:
        before = None
        for step in ladder.steps:
            name = f"{method}: {step}"
            entry = sum((Statistics.from_dict(one) for one in times[name]["counted"]), Statistics())
            costs, drafted = costs_of(folder, ladder.draft_at(step)), entry.draft_forwards / entry.forwards
            read = found[name]["block"] if step == TEXTS else drafted
            price = costs.verification(read) + drafted * costs.draft
            tau = entry.mean_accepted_length
            found[name] |= {"tau": tau, "draft_forwards": drafted, "limit": tau / price, "parts": parts(entry)}
            if before is not None:
                found[name]["vs_before"] = ratio_of_sums(times[before]["seconds"], times[name]["seconds"]).as_dict()
            before = name
    return found


def parts(counted: Statistics) -> dict[str, float]:
    """Shares of a request's seconds: drafting, verification, judging, and the rest."""
    shares = {part: counted.seconds.get(part, 0.0) / counted.seconds["total"] for part in PARTS}
    return {**shares, "rest": 1 - sum(shares.values())}


if __name__ == "__main__":
    run(main)
