"""Sample segments of both models behind prefixes of training texts, and group them by meaning.

    python -m pipeline.studies.segments.collect

Reads data/prompts and data/reference, writes data/segments/samples.jsonl (one prefix per line) and
reports/segments/agreement.json. Finished shards wait in the scratch folder.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from itertools import combinations
from pathlib import Path
from typing import Any

from gistgate.certificates.scope import task_hash
from gistgate.decoding.batches import decode_all
from gistgate.files import read_json_lines, write_json, write_json_lines
from gistgate.integrations.lm_eval.task import Task
from gistgate.optional.segments.boundaries import Boundaries
from gistgate.request.stopping import eos_ids
from pipeline.common.decoders import make_decoder, read_prompts, request_of
from pipeline.common.entry import run
from pipeline.common.progress import bar
from pipeline.common.resume import SCRATCH, fingerprint, sources
from pipeline.pairs.pair import Pair, load_pair
from pipeline.params import MethodParams, Params, read_params
from pipeline.studies.segments.judges import Judge, Sample, make_judge
from pipeline.studies.segments.params import SegmentParams, local_models, read_segment_params
from pipeline.studies.segments.sampling import Prefix, prefixes_of, sample_segments
from pipeline.tasks.loading import load_task

SAMPLES = Path("data/segments/samples.jsonl")
REFERENCE = Path("data/reference/train.jsonl")
ROLES = ("target", "draft")
DRAWS = 1_000_000
"""Seeds that a problem number keeps free for the draws of its shard, half of them for each model."""


def main() -> None:
    params, own = read_params(), read_segment_params()
    pair, task = load_pair(params), load_task(params)
    judges = judges_of(own, task)
    prompts = read_prompts("train")[: own.problems]
    folder = shard_folder(own, params, pair, task)
    rows: list[dict[str, Any]] = []
    for start in bar(range(0, len(prompts), own.shard_problems), title="segments", unit="shard"):
        shard = folder / f"{start:05}.jsonl"
        if not shard.exists():
            numbers = range(start, min(start + own.shard_problems, len(prompts)))
            write_json_lines(shard, collect(numbers, prompts, pair, task, judges, params, own))
        rows += read_json_lines(shard)
    write_json_lines(SAMPLES, rows)
    write_json(Path("reports/segments/agreement.json"), agreement(rows, list(judges)))


def shard_folder(own: SegmentParams, params: Params, pair: Pair, task: Task) -> Path:
    """Where finished shards wait; another folder for whatever they depend on."""
    name = fingerprint(
        asdict(own),
        params.seed,
        params.decoding.batch_size,
        task_hash(task),
        *pair.files,
        *local_models(own.judge_model),
        Path("data/prompts/train.jsonl"),
        REFERENCE,
        *sources("pipeline.studies.segments.collect"),
    )
    return SCRATCH / f"segments-{name}"


def judges_of(own: SegmentParams, task: Task) -> dict[str, Judge]:
    """All judges that can be asked here."""
    with_model = ["nli" if own.judge == "nli" else "embedding"] if own.judge_model else []
    truth = ["truth"] if own.judge == "truth" or task.name == "wordproblems" else []
    return {name: make_judge(name, own, task) for name in ["answer", "exact", *truth, *with_model]}


def collect(
    numbers: range,
    prompts: list[dict[str, Any]],
    pair: Pair,
    task: Task,
    judges: dict[str, Judge],
    params: Params,
    own: SegmentParams,
) -> list[dict[str, Any]]:
    """The prefixes of some problems with their samples and groups."""
    boundaries = Boundaries(pair.tokenizer, own.style, eos_ids(pair.target, pair.tokenizer))
    reference = read_json_lines(REFERENCE)
    prefixes = [
        prefix
        for number in numbers
        for prefix in prefixes_of(
            number, prompts[number], reference[number]["ids"], boundaries, task, pair.tokenizer, own, params.seed
        )
    ]
    first = (params.seed * 1_000_003 + numbers[0]) * DRAWS
    written = {
        role: sample_segments(model, pair, prefixes, boundaries, own, prompts, params.decoding.batch_size, seed)
        for role, model, seed in (("target", pair.target, first), ("draft", pair.draft_model, first + DRAWS // 2))
    }
    answers = answers_of(prefixes, written, pair, task, prompts, params)
    rows = []
    for index, prefix in enumerate(prefixes):
        segments = [ids for role in ROLES for ids in written[role][index]]
        before = pair.tokenizer.decode(prefix.answer)
        texts = [Sample(pair.tokenizer.decode(ids), answers[index, tuple(ids)], before) for ids in segments]
        doc = prompts[prefix.problem]["doc"]
        rows.append(
            {
                "problem": prefix.problem,
                "prompt": prefix.prompt,
                "answer": prefix.answer,
                "seeds": {"target": first + index * own.samples, "draft": first + DRAWS // 2 + index * own.samples},
                "roles": [role for role in ROLES for _ in written[role][index]],
                "segments": segments,
                "groups": {name: judge.groups(doc, texts) for name, judge in judges.items()},
            }
        )
    return rows


def answers_of(
    prefixes: list[Prefix],
    written: dict[str, list[list[list[int]]]],
    pair: Pair,
    task: Task,
    prompts: list[dict[str, Any]],
    params: Params,
) -> dict[tuple[int, tuple[int, ...]], str]:
    """The whole answer behind every different segment of every prefix, the target going on greedily."""
    keys = sorted({(i, tuple(ids)) for role in ROLES for i, found in enumerate(written[role]) for ids in found})
    decoder = make_decoder(pair, MethodParams("exact"), {}, params.decoding.block)
    texts = [[*prefixes[index].ids, *segment] for index, segment in keys]
    done = decode_all(decoder, texts, batch_size=params.decoding.batch_size, **request_of(prompts, pair))
    return {
        (index, segment): task.text(pair.tokenizer, [*prefixes[index].answer, *segment, *generation.ids])
        for (index, segment), generation in zip(keys, done, strict=True)
    }


def shares(row: dict[str, Any], judge: str, role: str) -> list[float]:
    """Semantic probability of every sample of a prefix under one model: the share of its samples in that group.

    The model finished at least one of them.
    """
    groups = row["groups"][judge]
    mine = Counter(group for group, who in zip(groups, row["roles"], strict=True) if who == role)
    return [mine[group] / mine.total() for group in groups]


def agreement(rows: list[dict[str, Any]], judges: list[str]) -> dict[str, Any]:
    """How often two judges say the same about two samples of one prefix, and Cohen's kappa of it."""
    pairs = {judge: [a == b for row in rows for a, b in combinations(row["groups"][judge], 2)] for judge in judges}
    report = {}
    for one, other in combinations(judges, 2):
        same = [a == b for a, b in zip(pairs[one], pairs[other], strict=True)]
        rate = sum(same) / max(1, len(same))
        p, q = (sum(pairs[name]) / max(1, len(same)) for name in (one, other))
        chance = p * q + (1 - p) * (1 - q)
        report[f"{one}, {other}"] = {"agree": rate, "kappa": (rate - chance) / (1 - chance) if chance < 1 else 1.0}
    alike = {judge: sum(found) / max(1, len(found)) for judge, found in pairs.items()}
    finished = sum(len(row["segments"]) for row in rows)
    return {"prefixes": len(rows), "segments": finished, "pairs_alike": alike, "agreement": report}


if __name__ == "__main__":
    run(main)
