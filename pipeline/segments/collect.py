"""Sample segments of both models behind prefixes of training texts, and group them by meaning.

    python -m pipeline.segments.collect

Reads data/prompts and data/reference, writes data/segments/samples.jsonl (one prefix per line) and
reports/segments/agreement.json. Finished shards wait in the scratch folder.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer, PreTrainedModel
from transformers.utils import cached_file

from gistgate.certificates.calibration import task_hash
from gistgate.core.block import Sampling
from gistgate.core.decoder import decode_all
from gistgate.core.files import fingerprint, read_json, read_json_lines, write_json, write_json_lines
from gistgate.core.request import eos_ids
from gistgate.core.utils import UserError
from gistgate.lm_eval.task import Task
from gistgate.segments.writing import Boundaries, SegmentWriter
from pipeline.decode import make_decoder, read_prompts, request_of
from pipeline.pair.pair import Pair, load_pair
from pipeline.params import MethodParams, Params, SegmentParams, read_params
from pipeline.paths import SCRATCH
from pipeline.run import bar, run
from pipeline.tasks import load_task

# ---- Prefixes of the target's answers, and the segments that a model writes behind them.


@dataclass(frozen=True)
class Prefix:
    """A text up to somewhere in its answer."""

    problem: int
    """Number of the prompt in its split."""
    prompt: list[int]
    answer: list[int]
    """Tokens of the answer that are kept."""

    @property
    def ids(self) -> list[int]:
        return [*self.prompt, *self.answer]


def prefixes_of(
    number: int,
    prompt: dict[str, Any],
    answer: Sequence[int],
    boundaries: Boundaries,
    task: Task,
    tokenizer: Any,
    params: SegmentParams,
    seed: int,
) -> list[Prefix]:
    """Some prefixes of one answer: the first at a segment's end, the others anywhere, as decoding meets both.

    A prefix that already holds the task's answer is left out: nothing behind it could change the meaning.
    """
    chosen = random.Random(f"{seed}:{number}")
    ends, at = [0], 0
    for segment in boundaries.cut(answer)[:-1]:
        at += len(segment)
        ends.append(at)
    final = task.text(tokenizer, answer)
    anywhere = list(range(1, len(answer)))
    chosen.shuffle(ends)
    chosen.shuffle(anywhere)
    found: list[Prefix] = []
    for length in dict.fromkeys([*ends[:1], *anywhere, *ends[1:]]):
        if len(found) == params.prefixes:
            break
        if not task.same_meaning(prompt["doc"], task.text(tokenizer, answer[:length]), final):
            found.append(Prefix(number, list(prompt["ids"]), list(answer[:length])))
    return found


def sample_segments(
    model: PreTrainedModel,
    pair: Pair,
    prefixes: Sequence[Prefix],
    boundaries: Boundaries,
    params: SegmentParams,
    prompts: Sequence[dict[str, Any]],
    batch_size: int,
    seed: int,
) -> list[list[list[int]]]:
    """For each prefix the finished segments among `params.samples` draws; those that the limit cut are left out.

    Row r of prefix p draws with the seed `seed + p * samples + r`, whatever the batch.
    """
    request = request_of(prompts, pair)
    ends = {"eos_ids": request["eos_ids"], "stops": request["stops"]}
    writer = SegmentWriter(model, pair.tokenizer, boundaries, params.limit, **ends)
    rows = [(index, seed + index * params.samples + r) for index in range(len(prefixes)) for r in range(params.samples)]
    texts = [prefix.ids for prefix in prefixes]
    found: list[list[list[int]]] = [[] for _ in prefixes]
    for start in range(0, len(rows), batch_size):
        behind, seeds = zip(*rows[start : start + batch_size], strict=True)
        for index, segment in zip(
            behind, writer.write(texts, behind, Sampling(params.temperature), seeds), strict=True
        ):
            if segment.finished:
                found[index].append(segment.ids)
    return found


# ---- How a model of texts makes one vector of its states: as a sentence-transformers folder says, else by the mean.


POOLINGS = {"mean_tokens": "mean", "mean": "mean", "cls_token": "cls", "cls": "cls", "lasttoken": "last"}
"""Those that are known here, by both notations of sentence-transformers."""
STEPS = ("Transformer", "Pooling", "Normalize")
"""Steps of a sentence-transformers model that are known here; a cosine does not see whether the last one is there."""


def pooling_of(name: str) -> str:
    """The pooling of a folder or model: mean, cls or last; mean where it says nothing.

    Raises:
        UserError: a sentence-transformers model that does something else with its states.
    """
    steps = settings(name, "modules.json")
    if steps is None:
        return "mean"
    kinds = {step["type"].rsplit(".", 1)[-1]: step["path"] for step in steps}
    modes = modes_of(settings(name, f"{kinds['Pooling']}/config.json") or {}) if "Pooling" in kinds else []
    unknown = [kind for kind in kinds if kind not in STEPS] + [mode for mode in modes if mode not in POOLINGS]
    if unknown or len(modes) != 1:
        said = ", ".join(unknown or modes) or "nothing that is named"
        raise UserError(
            f"The judge's model '{name}' pools by {said}, and one of mean, cls and lasttoken is known here. "
            "Choose another model."
        )
    return POOLINGS[modes[0]]


def modes_of(config: dict[str, Any]) -> list[str]:
    """The poolings that are joined: `pooling_mode`, or the switches `pooling_mode_...`."""
    if isinstance(mode := config.get("pooling_mode"), str):
        return [mode]
    return [key.removeprefix("pooling_mode_") for key, on in config.items() if "pooling_mode_" in key and on is True]


def settings(name: str, file: str) -> Any:
    """A JSON file of a model; None where it has none."""
    try:
        return read_json(Path(str(cached_file(name, file))))
    except OSError:
        return None


def pooled(states: Tensor, mask: Tensor, pooling: str) -> Tensor:
    """One vector for each text [N, D] of `states [N, T, D]`, padded on the right where `mask [N, T]` is 0."""
    if pooling == "cls":
        return states[:, 0]
    if pooling == "last":
        at = (mask.sum(1) - 1)[:, None, None].expand(-1, 1, states.shape[-1])
        return states.gather(1, at).squeeze(1)
    mean: Tensor = (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    return mean


# ---- What a segment of an embedded word problem says, checked against the problem: the truth that judges are held to.


SUM = re.compile(r"(-\s*)?(\d+)\s*([-+*])\s*(\d+)\s*=\s*(\d+)")
"""An equation, also with the subtracted number in front: - 8 + 11 = 3."""
NUMBER = re.compile(r"\d+")
FINAL = re.compile(r"####\s*(\d+)")


@dataclass(frozen=True)
class Course:
    """The totals of a problem, from the start to the end."""

    totals: tuple[int, ...]

    @classmethod
    def of(cls, solution: str) -> Course:
        """Read from a solution of the generator.

        Raises:
            UserError: it is none.
        """
        start = NUMBER.search(solution)
        sums = [int(found[5]) for found in SUM.finditer(solution)]
        final = FINAL.search(solution)
        if start is None or not sums or final is None or int(final[1]) != sums[-1]:
            raise UserError("The truth is known for the embedded word problems alone. Judge this task by its answers.")
        return cls((int(start[0]), *sums))

    def true(self, text: str) -> bool:
        """Whether all that a beginning of an answer says is so."""
        step, place = 0, 0
        for found in SUM.finditer(text):
            if not self._around(text[place : found.start()], step, before=step == 0):
                return False
            step, place = step + 1, found.end()
            if step >= len(self.totals) or not self._sum(found, step):
                return False
        return self._around(text[place:], step, before=step == 0)

    def _sum(self, found: re.Match[str], step: int) -> bool:
        """Whether an equation leads from one total to the next."""
        first, second, result = int(found[2]), int(found[4]), int(found[5])
        if found[1]:
            value, operands = second - first, {second}
        else:
            value = {"+": first + second, "-": first - second, "*": first * second}[found[3]]
            operands = {first} if found[3] == "-" else {first, second}
        return value == result == self.totals[step] and self.totals[step - 1] in operands

    def _around(self, text: str, step: int, before: bool) -> bool:
        """Whether the numbers between two equations are those of the next step, or of the end."""
        numbers = [int(number) for number in NUMBER.findall(text)]
        if before and numbers and numbers.pop(0) != self.totals[0]:
            return False
        known = {self.totals[step]} if step + 1 == len(self.totals) else {self._change(step + 1)}
        return all(number in known for number in numbers)

    def _change(self, step: int) -> int:
        """The number that a step names outside its equation: what comes or goes."""
        return abs(self.totals[step] - self.totals[step - 1])


def groups_by_truth(solution: str, before: str, segments: Sequence[str]) -> list[int]:
    """Groups of segments behind the same text: all true ones together, false ones by the numbers that they name."""
    course, known = Course.of(solution), dict[tuple[str, ...], int]()
    places = []
    for segment in segments:
        told = () if course.true(f"{before}{segment}") else tuple(NUMBER.findall(segment))
        places.append(known.setdefault(told, len(known)))
    return places


# ---- Which segments mean the same: interchangeable judges that put the samples of one prefix into groups.


@dataclass(frozen=True)
class Sample:
    """A segment in its answer."""

    text: str
    answer: str
    """The whole answer that follows when the target goes on behind the segment."""
    before: str = ""
    """The answer up to the segment."""


class Judge(Protocol):
    """Says which samples of one prefix mean the same."""

    def groups(self, doc: dict[str, Any], samples: Sequence[Sample]) -> list[int]:
        """The number of each sample's group; none where no model finished a sample."""
        ...


def grouped(num: int, same: Callable[[int, int], bool]) -> list[int]:
    """Greedy groups of `num` things."""
    founders: list[int] = []
    places = []
    for index in range(num):
        place = next((place for place, first in enumerate(founders) if same(index, first)), len(founders))
        if place == len(founders):
            founders.append(index)
        places.append(place)
    return places


class Exact:
    """Equal texts, blanks and case aside."""

    def groups(self, doc: dict[str, Any], samples: Sequence[Sample]) -> list[int]:
        texts = [" ".join(sample.text.lower().split()) for sample in samples]
        return grouped(len(texts), lambda i, j: texts[i] == texts[j])


class Truth:
    """What the generator of the embedded word problems knows: true segments are alike, false ones by their numbers."""

    def groups(self, doc: dict[str, Any], samples: Sequence[Sample]) -> list[int]:
        if not samples:
            return []
        return groups_by_truth(doc["answer"], samples[0].before, [sample.text for sample in samples])


class Answer:
    """Equal answers of the task once the target has gone on; samples without an answer equal nothing but their text."""

    def __init__(self, task: Task) -> None:
        self.task = task

    def groups(self, doc: dict[str, Any], samples: Sequence[Sample]) -> list[int]:
        texts = [sample.answer for sample in samples]
        return grouped(
            len(texts), lambda i, j: texts[i] == texts[j] or bool(self.task.same_meaning(doc, texts[i], texts[j]))
        )


class Entailment:
    """Each text entails the other, by any sequence-classification model that has a label for it."""

    def __init__(self, name: str) -> None:
        self.tokenizer, self.model = load(AutoModelForSequenceClassification, name)
        labels = {str(label).lower(): int(place) for place, label in self.model.config.id2label.items()}
        if "entailment" not in labels:
            raise UserError(f"The model '{name}' has no label 'entailment' ({', '.join(labels)}). Choose another.")
        self.label = labels["entailment"]

    def groups(self, doc: dict[str, Any], samples: Sequence[Sample]) -> list[int]:
        if not samples:
            return []
        texts = sorted({sample.text for sample in samples})
        place = {text: number for number, text in enumerate(texts)}
        entails = self._matrix(texts)
        at = [place[sample.text] for sample in samples]
        return grouped(len(at), lambda i, j: at[i] == at[j] or bool(entails[at[i], at[j]] & entails[at[j], at[i]]))

    @torch.inference_mode()
    def _matrix(self, texts: Sequence[str]) -> Tensor:
        """Whether text i entails text j [n, n]."""
        n = len(texts)
        pairs = [(a, b) for a in texts for b in texts]
        verdicts = []
        for start in range(0, len(pairs), 256):
            first, second = zip(*pairs[start : start + 256], strict=True)
            inputs = self.tokenizer(list(first), list(second), padding=True, truncation=True, return_tensors="pt")
            verdicts.append(self.model(**inputs).logits.argmax(-1) == self.label)
        return torch.cat(verdicts).view(n, n)


class Embedding:
    """Cosine of pooled states, by any encoder or language model that transformers loads.

    A sentence-transformers model pools as its folder says, any other by the mean.
    """

    def __init__(self, name: str, similarity: float) -> None:
        self.tokenizer, self.model = load(AutoModel, name)
        self.similarity, self.pooling = similarity, pooling_of(name)

    def groups(self, doc: dict[str, Any], samples: Sequence[Sample]) -> list[int]:
        if not samples:
            return []
        vectors = self.vectors([sample.text for sample in samples])
        near = vectors @ vectors.T >= self.similarity
        return grouped(len(samples), lambda i, j: bool(near[i, j]))

    @torch.inference_mode()
    def vectors(self, texts: list[str]) -> Tensor:
        """One vector of length 1 for each text [n, width]."""
        inputs = self.tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
        inputs.pop("token_type_ids", None)
        states = self.model(**inputs).last_hidden_state
        return torch.nn.functional.normalize(pooled(states, inputs["attention_mask"], self.pooling), dim=-1)


def load(kind: Any, name: str) -> tuple[Any, Any]:
    """Tokenizer and model of a judge.

    Raises:
        UserError: there is none of that name here.
    """
    try:
        tokenizer, model = AutoTokenizer.from_pretrained(name), kind.from_pretrained(name)
    except (OSError, ValueError) as error:
        raise UserError(f"The judge's model '{name}' cannot be loaded. Name a folder or a model at hand.") from error
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "right"
    return tokenizer, model.eval()


def make_judge(name: str, params: SegmentParams, task: Task) -> Judge:
    """The judge of that name."""
    if name == "answer":
        return Answer(task)
    if name == "nli":
        return Entailment(str(params.judge_model))
    if name == "embedding":
        return Embedding(str(params.judge_model), params.similarity)
    return Exact() if name == "exact" else Truth()


SAMPLES = Path("data/segments/samples.jsonl")
REFERENCE = Path("data/reference/train.jsonl")
ROLES = ("target", "draft")
DRAWS = 1_000_000
"""Seeds that a problem number keeps free for the draws of its shard, half of them for each model."""


def main() -> None:
    params, own = read_params(), read_params().segments
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
        *([Path(own.judge_model)] if own.judge_model and Path(own.judge_model).is_dir() else []),
        Path("data/prompts/train.jsonl"),
        REFERENCE,
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
