"""What each way to a cheaper draft gives to each rule, side by side in one run.

    python -m benchmarks.drafting [--prompts 60] [--methods strict,NAME,...] [--steps STEP,...] [--batch 1]
        [--strict-block K] [--sizes SIZE,...] [--skip 0] [--results FOLDER]

In the folder of a finished run whose pair has a draft model; eager engine. Every rule climbs the same steps, each added
to those before it: the draft as it is with K tokens, quantised weights, a part of the vocabulary (counted on the
reference answers of training prompts), ends of drafts, texts beside the model. The certificates of the settings speak
of the draft of the run alone. Costs, the size of the vocabulary, the policies for ends of drafts and the best form of
transformers' assisted generation come from development prompts. transformers' own `generate` without a draft decodes
the same batches, which no rule may fall behind per token. Methods without a certificate or with one at a setting
that keeps nothing loosely, and texts beside the model for rules that read its probabilities, are left out with the
reason, and so is assisted generation where transformers refuses the pair. An interrupted measurement of the same code
goes on with the next prompt. K of strict decoding is the run's unless another is named; choose it on development
prompts (`gistgate doctor`). `--skip` leaves the first test prompts out, for those whose times were seen before a choice
was made.

`limit` is tau / (v(n) + n c) for n draft forwards of a round of one row. `parts` are shares of the rounds' seconds.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.batches import batches_of
from benchmarks.bench import RESULTS, save
from benchmarks.counts import counts
from benchmarks.drafting_choices import ASSISTED, assisted_as_chosen, costs_file, costs_of, policy_of, prepare
from benchmarks.drafting_figures import GENERATE, PLAIN, figures
from benchmarks.drafting_methods import Comparison, points_of, steps_of, strict_at
from benchmarks.drafting_vocabulary import best_size, counted, tried
from benchmarks.ladder import STEPS, VOCABULARY, Counted, Ladder, bits_of
from benchmarks.workload import Workload
from gistgate.errors import UserError
from gistgate.files import fingerprint, read_json, write_json
from pipeline.common.code import made_by
from pipeline.common.decoders import read_prompts
from pipeline.common.entry import run
from pipeline.common.paths import SCRATCH
from pipeline.common.progress import bar
from pipeline.labels.schema import REFERENCE
from pipeline.speed.clock import Contender, Prompts, theirs
from pipeline.speed.race import lap, without_loops

SHOWN = ("rule", "settings", "drafter", "block", "budget")
"""What is published of a method's setting; its certificate stands in the results of the run."""
FEWEST = 50
"""Prompts of a published comparison; some more are taken, since those that end in a loop are dropped."""


def main(
    prompts: int = 60,
    methods: str = "",
    steps: str = ",".join(STEPS),
    kind: str = "int4",
    sizes: str = "16384,32768,65536",
    strict_block: int = 0,
    development: int = 8,
    max_new_tokens: int = 64,
    batch: int = 1,
    skip: int = 0,
    threads: int = 2,
    results: Path = RESULTS,
) -> None:
    taken = wanted(steps)
    torch.set_num_threads(threads)
    workload = Workload.load(prompts, skip=skip)
    if workload.pair.draft is None:
        raise UserError("This pair has no draft model, so no draft can get cheaper. Choose another pair.")
    batches = batches_of(workload.ids, batch, "--batch")
    points, absent = points_of(workload, [one for one in methods.split(",") if one], strict_block)
    request = {**workload.request, "max_new_tokens": min(max_new_tokens, workload.request["max_new_tokens"])}
    ids = [one["ids"] for one in read_prompts("development")[:development]]
    read = fingerprint(REFERENCE) if VOCABULARY in taken else None
    form = [sorted(request.items(), key=str), bits_of(taken, kind), ids, read, workload.identity(points.values())]
    sizes_tried: list[dict[str, Any]] = []
    if VOCABULARY in taken:
        strict = strict_at(workload, strict_block)
        sizes_tried = tried(
            workload, counts(sizes, "--sizes"), strict, bits_of(taken, kind), ids, request, folder_of(form)
        )
    subset = counted(workload, best_size(sizes_tried)) if sizes_tried else None
    ladder = Ladder.load(workload, taken, kind, subset)
    climbed, skipped = steps_of(ladder, points, taken)
    tell(absent | skipped)
    check_any(climbed, taken)
    said = {name: point.as_dict() for name, point in points.items()}
    folder = folder_of(said, climbed, form, batches, sizes_tried)
    prepare(ladder, points, ids, request, folder, batch)
    assisted = read_json(folder / ASSISTED) if batch == 1 else {}
    refused = {"assisted": assisted["failed"]} if "failed" in assisted else {}
    tell(refused)
    compared = Comparison(ladder, points, climbed, request, folder, batch)
    times = timed(contenders(compared), contenders(replace(compared, request=shorter(request))), batches, folder)
    payload = {
        "pair": workload.pair.name,
        "kind": kind,
        "batch": batch,
        "skipped": skip,
        "subset": None
        if subset is None
        else {"size": len(subset.ids), "coverage": subset.coverage, "tried": sizes_tried},
        "max_new_tokens": request["max_new_tokens"],
        "points": {name: {key: one[key] for key in SHOWN} for name, one in said.items()},
        "left_out": absent | skipped | refused,
        "costs": {name: asdict(costs_of(folder, name)) for name in ladder.drafts if costs_file(folder, name).exists()},
        "assisted": assisted if "draft" in assisted else None,
        "contenders": figures(times, compared),
    }
    warn_of_few(len(times[PLAIN]["seconds"]) * batch)
    save("drafting" if batch == 1 else f"drafting-batch-{batch}", payload, results)
    for finished in {folder, folder_of(form)}:  # a later run measures anew
        shutil.rmtree(finished, ignore_errors=True)


def folder_of(*measured: Any) -> Path:
    """Where a measurement is kept: another one, or other code, has another folder."""
    return SCRATCH / f"drafting-{fingerprint(made_by('benchmarks.drafting'), *measured)}"


def shorter(request: dict[str, Any]) -> dict[str, Any]:
    """The request for a few tokens, with which everything is called once before it is timed."""
    return {**request, "max_new_tokens": 8}


def tell(left_out: Mapping[str, str]) -> None:
    """Say what is left out, before anything is timed."""
    for name, why in left_out.items():
        print(f"'{name}' is left out: {why}")


def warn_of_few(prompts: int) -> None:
    """Say where fewer prompts are left than a published comparison has."""
    if prompts < FEWEST:
        print(f"{prompts} prompts without loops are left, and a comparison needs {FEWEST}. Take more --prompts.")


def check_any(climbed: Mapping[str, Sequence[str]], taken: Sequence[str]) -> None:
    """Refuse a comparison in which no method takes a step, before baselines are timed for nothing.

    Raises:
        UserError: it is so.
    """
    if not any(climbed.values()):
        raise UserError(f"No method can take any of the steps {', '.join(taken)}. Name others with --steps.")


def wanted(steps: str) -> list[str]:
    """The steps that are taken, in their order.

    Raises:
        UserError: there is no such step.
    """
    named = steps.split(",")
    if unknown := [step for step in named if step not in STEPS]:
        raise UserError(f"There is no step '{unknown[0]}'. Known: {', '.join(STEPS)}.")
    return [step for step in STEPS if step in named]


def contenders(compared: Comparison) -> list[Contender]:
    """Everything that is timed; transformers assists one row at a time, so that batches have no such contender."""
    ladder, request = compared.ladder, compared.request
    field = [
        Contender(PLAIN, Counted(ladder.workload.plain("eager"), request), 0),
        Contender(GENERATE, theirs(ladder.workload.pair, request), 0, is_baseline=True),
    ]
    if compared.batch == 1:
        field += assisted_as_chosen(ladder, request, compared.folder)
    for method, point in compared.points.items():
        for step in compared.steps[method]:
            decoder = ladder.decoder(point, step, policy_of(compared.folder, method))
            field.append(Contender(f"{method}: {step}", Counted(decoder, request), point.block))
    return field


def timed(field: Sequence[Contender], short: Sequence[Contender], batches: Sequence[Prompts], folder: Path) -> Any:
    """Seconds, tokens and counts of every contender on every batch; finished batches are read from `folder`."""
    for contender in short:  # the first call of everything pays for what later calls find done
        contender.decode(batches[0])
    for place, one in enumerate(bar(batches, title="drafting", unit="batch")):
        path = folder / f"batch-{place:04d}.json"
        if not path.exists():
            runs = lap(field, one, [place])
            seen = {c.name: c.decode.last.as_dict() for c in field if isinstance(c.decode, Counted) and c.decode.last}
            write_json(path, {name: {**asdict(run), "counted": seen.get(name)} for name, (run,) in runs.items()})
    laps = [read_json(folder / f"batch-{place:04d}.json") for place in range(len(batches))]
    loops = [any(run["loops"] for run in one.values()) for one in laps]
    columns = ("seconds", "tokens", "counted")
    found = {c.name: {"block": c.block, **{key: [one[c.name][key] for one in laps] for key in columns}} for c in field}
    return without_loops(found, loops)


if __name__ == "__main__":
    run(main)
