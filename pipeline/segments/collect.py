"""Segments that both models write behind prefixes of training answers, grouped by meaning."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import accumulate, combinations
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
)
from transformers.utils import cached_file

from gistgate.certificates.calibration import task_hash
from gistgate.core.batches import decode_all
from gistgate.core.block import Sampling
from gistgate.core.files import read_json, read_json_lines, write_json_lines
from gistgate.core.utils import UserError
from gistgate.segments.writing import Boundaries, SegmentWriter
from gistgate.tasks.task import Task
from pipeline.decode import make_decoder
from pipeline.methods import MethodParams
from pipeline.pair.pair import Pair
from pipeline.params import Params, SegmentParams
from pipeline.paths import prompts_of, reference_of
from pipeline.run import Shards, bar
from pipeline.task import read_prompts, request_of

ROLES = ("target", "draft")
REFERENCE = reference_of("train")
# seeds that a problem number keeps free for the draws of its shard, half of them for each model
DRAWS = 1_000_000
LEARNING = ("pooling", "loss", "hidden", "epochs", "patience", "lr", "batch_size", "head")
"""Keys of the block `segments` that no sample depends on."""


def collected(params: Params, pair: Pair, task: Task) -> list[dict[str, Any]]:
    """One row for each prefix: its samples, who wrote them, and their groups by every judge that
    can be asked.
    """
    own = params.segments
    prompts = read_prompts("train")[: params.segments.problems]
    judges = judges_of(own, task)
    folder = shards_of(params, pair, task).folder
    rows = []
    sampler = Sampler(pair, task, params, request_of(prompts, pair))
    for start in bar(range(0, len(prompts), own.shard_problems), title="segments", unit="shard"):
        shard = folder / f"{start:05}.jsonl"
        if not shard.exists():
            numbers = range(start, min(start + own.shard_problems, len(prompts)))
            write_json_lines(shard, sampler.rows(numbers, prompts, judges))
        rows += read_json_lines(shard)
    return rows


def shards_of(params: Params, pair: Pair, task: Task) -> Shards:
    """Where finished shards wait; another folder for whatever they depend on."""
    own = {name: value for name, value in asdict(params.segments).items() if name not in LEARNING}
    model = [Path(name) for name in (params.segments.judge_model,) if name and Path(name).is_dir()]
    settings = own, params.seed, params.decoding.batch_size, task_hash(task)
    return Shards("segments", *settings, *pair.files, *model, prompts_of("train"), REFERENCE)


@dataclass(frozen=True)
class Prefix:
    """A text up to somewhere in its answer."""

    problem: int  # number of the prompt in its split
    prompt: list[int]
    answer: list[int]  # tokens of the answer that are kept


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

    def prefixes(self, number: int, prompt: dict[str, Any], answer: Sequence[int]) -> list[Prefix]:
        """Some prefixes of an answer, the first at a segment's end; none holds the task's answer
        already.
        """
        chosen = random.Random(f"{self.params.seed}:{number}")
        ends = [0, *accumulate(map(len, self.boundaries.cut(answer)[:-1]))]
        anywhere = list(range(1, len(answer)))
        chosen.shuffle(ends)
        chosen.shuffle(anywhere)
        final = self.task.text(self.pair.tokenizer, answer)
        found: list[Prefix] = []
        for length in dict.fromkeys([*ends[:1], *anywhere, *ends[1:]]):
            if len(found) == self.params.segments.prefixes:
                break
            text = self.task.text(self.pair.tokenizer, answer[:length])
            if not self.task.same_meaning(prompt["doc"], text, final):
                found.append(Prefix(number, list(prompt["ids"]), list(answer[:length])))
        return found

    def segments(
        self, model: PreTrainedModel, prefixes: Sequence[Prefix], seed: int
    ) -> list[list[list[int]]]:
        """The finished segments among each prefix's draws: row r of prefix p has the seed `seed + p
        * samples + r`.
        """
        own = self.params.segments
        size = self.params.decoding.batch_size
        ends = {"eos_ids": self.request["eos_ids"], "stops": self.request["stops"]}
        writer = SegmentWriter(model, self.pair.tokenizer, self.boundaries, own.limit, **ends)
        rows = [
            (index, seed + index * own.samples + r)
            for index in range(len(prefixes))
            for r in range(own.samples)
        ]
        texts = [[*prefix.prompt, *prefix.answer] for prefix in prefixes]
        found: list[list[list[int]]] = [[] for _ in prefixes]
        for start in range(0, len(rows), size):
            behind, seeds = zip(*rows[start : start + size], strict=True)
            written = writer.write(texts, behind, Sampling(own.temperature), seeds)
            for index, (ids, finished) in zip(behind, written, strict=True):
                if finished:
                    found[index].append(ids)
        return found

    def rows(
        self, numbers: range, prompts: list[dict[str, Any]], judges: dict[str, Judge]
    ) -> list[dict[str, Any]]:
        """The prefixes of some problems with their samples and groups."""
        pair = self.pair
        task = self.task
        params = self.params
        answers = [row["ids"] for row in read_json_lines(REFERENCE)]
        prefixes = [
            one
            for number in numbers
            for one in self.prefixes(number, prompts[number], answers[number])
        ]
        first = (params.seed * 1_000_003 + numbers[0]) * DRAWS
        seeds = {"target": first, "draft": first + DRAWS // 2}
        models = {"target": pair.target, "draft": pair.draft_model}
        written = {
            role: self.segments(models[role], prefixes, seed) for role, seed in seeds.items()
        }
        # The whole answer behind every different segment of every prefix, the target going on
        # greedily.
        keys = sorted(
            {
                (i, tuple(ids))
                for found in written.values()
                for i, some in enumerate(found)
                for ids in some
            }
        )
        decoder = make_decoder(pair, MethodParams("exact"), {}, params.decoding.block)
        texts = [[*prefixes[i].prompt, *prefixes[i].answer, *ids] for i, ids in keys]
        done = decode_all(decoder, texts, batch_size=params.decoding.batch_size, **self.request)
        whole = {
            (i, ids): task.text(pair.tokenizer, [*prefixes[i].answer, *ids, *generation.ids])
            for (i, ids), generation in zip(keys, done, strict=True)
        }
        rows = []
        for index, prefix in enumerate(prefixes):
            segments = [ids for role in ROLES for ids in written[role][index]]
            samples = [
                Sample(pair.tokenizer.decode(ids), whole[index, tuple(ids)]) for ids in segments
            ]
            doc = prompts[prefix.problem]["doc"]
            rows.append(
                {
                    **asdict(prefix),
                    "seeds": {
                        role: seed + index * params.segments.samples for role, seed in seeds.items()
                    },
                    "roles": [role for role in ROLES for _ in written[role][index]],
                    "segments": segments,
                    "groups": {
                        name: judge(doc, samples) if samples else []
                        for name, judge in judges.items()
                    },
                }
            )
        return rows


@dataclass(frozen=True)
class Sample:
    """A segment, and the whole answer that follows when the target goes on behind it."""

    text: str
    answer: str


Judge = Callable[[dict[str, Any], Sequence[Sample]], list[int]]
"""The task's document and samples of one prefix -> the number of each sample's group."""


def judges_of(own: SegmentParams, task: Task) -> dict[str, Judge]:
    """All judges that can be asked: equal answers, equal texts, and the model that is named."""
    judges: dict[str, Judge] = {"answer": same_answer(task), "exact": same_text}
    if own.judge == "nli":
        judges["nli"] = Entailment(str(own.judge_model))
    elif own.judge_model:
        judges["embedding"] = Embedding(own.judge_model, own.similarity)
    return judges


def grouped(num: int, same: Callable[[int, int], bool]) -> list[int]:
    """Greedy groups of `num` things: each joins the first group whose founder is the same."""
    founders: list[int] = []
    places = []
    for index in range(num):
        place = next(
            (place for place, first in enumerate(founders) if same(index, first)), len(founders)
        )
        if place == len(founders):
            founders.append(index)
        places.append(place)
    return places


def same_text(_doc: dict[str, Any], samples: Sequence[Sample]) -> list[int]:
    """Equal texts, blanks and case aside."""
    texts = [" ".join(sample.text.lower().split()) for sample in samples]
    return grouped(len(texts), lambda i, j: texts[i] == texts[j])


def same_answer(task: Task) -> Judge:
    """Equal answers of the task once the target has gone on; samples without an answer equal
    nothing but their text.
    """

    def judge(doc: dict[str, Any], samples: Sequence[Sample]) -> list[int]:
        said = [sample.answer for sample in samples]
        return grouped(
            len(said),
            lambda i, j: said[i] == said[j] or bool(task.same_meaning(doc, said[i], said[j])),
        )

    return judge


class Entailment:
    """Each text entails the other, by any sequence-classification model that has a label for it."""

    def __init__(self, name: str) -> None:
        self.tokenizer, self.model = load(AutoModelForSequenceClassification, name)
        labels = {
            str(label).lower(): int(place) for place, label in self.model.config.id2label.items()
        }
        if "entailment" not in labels:
            raise UserError(
                f"The model '{name}' has no label 'entailment' ({', '.join(labels)}). Choose"
                " another."
            )
        self.label = labels["entailment"]

    def __call__(self, _doc: dict[str, Any], samples: Sequence[Sample]) -> list[int]:
        texts = sorted({sample.text for sample in samples})
        at = [texts.index(sample.text) for sample in samples]
        entails = self.matrix(texts)
        return grouped(
            len(at),
            lambda i, j: at[i] == at[j] or bool(entails[at[i], at[j]] & entails[at[j], at[i]]),
        )

    @torch.inference_mode()
    def matrix(self, texts: Sequence[str]) -> Tensor:
        """Whether text i entails text j [n, n]."""
        pairs = [(a, b) for a in texts for b in texts]
        verdicts = []
        for start in range(0, len(pairs), 256):
            first, second = zip(*pairs[start : start + 256], strict=True)
            inputs = self.tokenizer(
                list(first), list(second), padding=True, truncation=True, return_tensors="pt"
            )
            verdicts.append(self.model(**inputs).logits.argmax(-1) == self.label)
        return torch.cat(verdicts).view(len(texts), len(texts))


class Embedding:
    """Cosine of states of any encoder or language model, pooled as its folder says, else by the
    mean.
    """

    def __init__(self, name: str, similarity: float) -> None:
        self.tokenizer, self.model = load(AutoModel, name)
        self.similarity = similarity
        self.pooling = pooling_of(name)

    def __call__(self, _doc: dict[str, Any], samples: Sequence[Sample]) -> list[int]:
        vectors = self.vectors([sample.text for sample in samples])
        near = vectors @ vectors.T >= self.similarity
        return grouped(len(samples), lambda i, j: bool(near[i, j]))

    @torch.inference_mode()
    def vectors(self, texts: list[str]) -> Tensor:
        """One vector of length 1 for each text [n, width]; texts are padded on the right."""
        inputs = self.tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
        inputs.pop("token_type_ids", None)
        states = self.model(**inputs).last_hidden_state
        mask = inputs["attention_mask"]
        if self.pooling == "cls":
            pooled = states[:, 0]
        elif self.pooling == "last":
            pooled = states[torch.arange(len(texts)), mask.sum(1) - 1]
        else:
            pooled = (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return torch.nn.functional.normalize(pooled, dim=-1)


POOLINGS = {
    "mean_tokens": "mean",
    "mean": "mean",
    "cls_token": "cls",
    "cls": "cls",
    "lasttoken": "last",
}
"""Those that are known here, by both notations of sentence-transformers."""
STEPS = ("Transformer", "Pooling", "Normalize")
"""Steps of a sentence-transformers model that are known here; a cosine does not see whether the
last one is there.
"""


def pooling_of(name: str) -> str:
    """The pooling of a folder or model: mean, cls or last; mean where it says nothing."""

    def settings(file: str) -> Any:
        try:
            return read_json(Path(str(cached_file(name, file))))
        except OSError:
            return None

    if (steps := settings("modules.json")) is None:
        return "mean"
    kinds = {step["type"].rsplit(".", 1)[-1]: step["path"] for step in steps}
    config = settings(f"{kinds['Pooling']}/config.json") or {} if "Pooling" in kinds else {}
    mode = config.get("pooling_mode")
    prefix = "pooling_mode_"
    modes = (
        [mode]
        if mode
        else [
            key.removeprefix(prefix) for key, on in config.items() if prefix in key and on is True
        ]
    )
    unknown = [kind for kind in kinds if kind not in STEPS] + [
        mode for mode in modes if mode not in POOLINGS
    ]
    if unknown or len(modes) != 1:
        raise UserError(
            f"The judge's model '{name}' pools by"
            f" {', '.join(unknown or modes) or 'nothing that is named'}, and one of mean, cls and"
            " lasttoken is known here. Choose another model."
        )
    return POOLINGS[modes[0]]


def load(kind: Any, name: str) -> tuple[Any, Any]:
    """Tokenizer and model of a judge."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
        model = kind.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise UserError(
            f"The judge's model '{name}' cannot be loaded. Name a folder or a model at hand."
        ) from error
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "right"
    return tokenizer, model.eval()


def shares(row: dict[str, Any], judge: str, role: str) -> list[float]:
    """Semantic probability of every sample of a prefix under one model: the share of its samples in
    that group.
    """
    groups = row["groups"][judge]
    mine = Counter(group for group, who in zip(groups, row["roles"], strict=True) if who == role)
    return [mine[group] / mine.total() for group in groups]


def agreement(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """How often two judges say the same about two samples of one prefix, and Cohen's kappa of
    it.
    """
    judges = list(rows[0]["groups"]) if rows else []
    alike = {
        judge: [a == b for row in rows for a, b in combinations(row["groups"][judge], 2)]
        for judge in judges
    }
    rates = {judge: sum(found) / max(1, len(found)) for judge, found in alike.items()}
    report = {}
    for one, other in combinations(judges, 2):
        same = [a == b for a, b in zip(alike[one], alike[other], strict=True)]
        rate = sum(same) / max(1, len(same))
        chance = rates[one] * rates[other] + (1 - rates[one]) * (1 - rates[other])
        report[f"{one}, {other}"] = {
            "agree": rate,
            "kappa": (rate - chance) / (1 - chance) if chance < 1 else 1.0,
        }
    finished = sum(len(row["segments"]) for row in rows)
    return {"prefixes": len(rows), "segments": finished, "pairs_alike": rates, "agreement": report}
