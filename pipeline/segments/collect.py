"""Segments that both models write behind prefixes of training answers, grouped by meaning."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

from transformers import PreTrainedModel

from gistgate.certificates.calibration import task_hash
from gistgate.core.batches import decode_all
from gistgate.core.block import Sampling
from gistgate.core.files import read_json_lines, write_json_lines
from gistgate.core.progress import bar
from gistgate.segments.writing import Boundaries, SegmentWriter
from gistgate.tasks.prompts import Prompt
from gistgate.tasks.task import Task
from pipeline.decode import strict_decoder
from pipeline.pair.pair import Pair
from pipeline.params import Params
from pipeline.paths import prompts_of, reference_of
from pipeline.run import Shards
from pipeline.segments.judges import Sample, groups_of
from pipeline.task import read_prompts, request_of

ROLES = ("target", "draft")
REFERENCE = reference_of("train")
DRAWS = 1_000_000
"""Seeds that a problem number keeps free for the draws of its shard, half of them for a model."""
LEARNING = ("pooling", "hidden", "epochs", "patience", "lr", "batch_size", "head")
"""Keys of the block `segments` that no sample depends on."""
Segments = list[list[list[int]]]  # of each prefix, as token ids


def collected(params: Params, pair: Pair, task: Task) -> list[dict[str, Any]]:
    """One row for each prefix: its samples, who wrote them, and their groups by every judge."""
    prompts = read_prompts("train")[: params.segments.problems]
    folder = shards_of(params, pair, task).folder
    sampler = Sampler(pair, task, params, request_of(prompts, pair))
    size = params.segments.shard_problems
    rows = []
    for start in bar(range(0, len(prompts), size), title="segments", unit="shard"):
        shard = folder / f"{start:05}.jsonl"
        if not shard.exists():
            numbers = range(start, min(start + size, len(prompts)))
            write_json_lines(shard, sampler.rows(numbers, prompts))
        rows += read_json_lines(shard)
    return rows


def shards_of(params: Params, pair: Pair, task: Task) -> Shards:
    """Where finished shards wait; another folder for whatever they depend on."""
    settings = asdict(params.segments)
    for name in LEARNING:
        del settings[name]
    deciding = (settings, params.seed, params.label.batch_size, task_hash(task))
    return Shards("segments", *deciding, *pair.files, prompts_of("train"), REFERENCE)


@dataclass(frozen=True)
class Prefix:
    """A text up to somewhere in its answer."""

    problem: int  # number of the prompt in its split
    prompt: list[int]
    answer: list[int]  # tokens of the answer that are kept

    @property
    def text(self) -> list[int]:
        """Prompt and answer."""
        return self.prompt + self.answer


@dataclass(frozen=True)
class Sampler:
    """Lets both models write segments behind prefixes of the target's answers."""

    pair: Pair
    task: Task
    params: Params
    request: dict[str, Any]  # what all prompts share

    @cached_property
    def boundaries(self) -> Boundaries:
        """Where segments end."""
        return Boundaries(self.pair.tokenizer, self.params.segments.style, self.request["eos_ids"])

    def prefixes(self, number: int, prompt: Prompt, answer: list[int]) -> list[Prefix]:
        """Some prefixes of an answer, the first at a segment's end; none holds the task's answer
        already.
        """
        draw = random.Random(f"{self.params.seed}:{number}")
        ends = [0, *accumulate(map(len, self.boundaries.cut(answer)[:-1]))]
        anywhere = list(range(1, len(answer)))
        draw.shuffle(ends)
        draw.shuffle(anywhere)
        final = self.task.text(self.pair.tokenizer, answer)
        prefixes: list[Prefix] = []
        for length in dict.fromkeys([*ends[:1], *anywhere, *ends[1:]]):
            if len(prefixes) == self.params.segments.prefixes:
                break
            text = self.task.text(self.pair.tokenizer, answer[:length])
            if not self.task.same_meaning(prompt["doc"], text, final):
                prefixes.append(Prefix(number, prompt["ids"], answer[:length]))
        return prefixes

    def segments(self, model: PreTrainedModel, prefixes: Sequence[Prefix], seed: int) -> Segments:
        """The finished segments among each prefix's draws: row r of prefix p has the seed `seed + p
        * samples + r`.
        """
        settings = self.params.segments
        size = self.params.label.batch_size
        ends = {"eos_ids": self.request["eos_ids"], "stops": self.request["stops"]}
        writer = SegmentWriter(model, self.pair.tokenizer, self.boundaries, settings.limit, **ends)
        sampling = Sampling(settings.temperature)
        texts = [prefix.text for prefix in prefixes]
        places = [index for index in range(len(texts)) for _ in range(settings.samples)]
        segments: Segments = [[] for _ in texts]
        for start in range(0, len(places), size):
            behind = places[start : start + size]
            seeds = range(seed + start, seed + start + len(behind))
            for index, (ids, finished) in zip(behind, writer.write(texts, behind, sampling, seeds)):
                if finished:
                    segments[index].append(ids)
        return segments

    def answers(
        self,
        prefixes: Sequence[Prefix],
        segments: Sequence[Segments],
    ) -> dict[tuple[int, ...], str]:
        """The whole answer behind every different segment of every prefix, the target going on
        greedily, by the number of the prefix and the segment's ids.
        """
        keys = set()
        for segments_of_model in segments:
            for index, segments_of_prefix in enumerate(segments_of_model):
                keys |= {(index, *ids) for ids in segments_of_prefix}
        ordered = sorted(keys)
        decoder = strict_decoder(self.pair, self.params.decoding.block)
        texts = [[*prefixes[index].text, *ids] for index, *ids in ordered]
        size = self.params.label.batch_size
        done = decode_all(decoder, texts, batch_size=size, **self.request)
        answers = {}
        for key, text, generation in zip(ordered, texts, done):
            answer = text[len(prefixes[key[0]].prompt) :] + generation.ids
            answers[key] = self.task.text(self.pair.tokenizer, answer)
        return answers

    def rows(self, numbers: range, prompts: Sequence[Prompt]) -> list[dict[str, Any]]:
        """The prefixes of some problems with their samples and groups."""
        references = [row["ids"] for row in read_json_lines(REFERENCE)]
        prefixes: list[Prefix] = []
        for number in numbers:
            prefixes += self.prefixes(number, prompts[number], references[number])
        first = (self.params.seed * 1_000_003 + numbers[0]) * DRAWS
        by_role = {
            "target": self.segments(self.pair.target, prefixes, first),
            "draft": self.segments(self.pair.draft_model, prefixes, first + DRAWS // 2),
        }
        answers = self.answers(prefixes, [*by_role.values()])
        rows = []
        for index, prefix in enumerate(prefixes):
            drawn = [(role, ids) for role in ROLES for ids in by_role[role][index]]
            samples = [
                Sample(self.pair.tokenizer.decode(ids), answers[index, *ids]) for _, ids in drawn
            ]
            doc = prompts[prefix.problem]["doc"]
            row = asdict(prefix)
            row["roles"] = [role for role, _ in drawn]
            row["segments"] = [ids for _, ids in drawn]
            row["groups"] = groups_of(self.task, doc, samples)
            rows.append(row)
        return rows


def shares(row: dict[str, Any], judge: str, role: str) -> list[float]:
    """Semantic probability of every sample of a prefix under one model: the share of its samples in
    that group.
    """
    groups = row["groups"][judge]
    counts = Counter(group for group, writer in zip(groups, row["roles"]) if writer == role)
    return [counts[group] / counts.total() for group in groups]
