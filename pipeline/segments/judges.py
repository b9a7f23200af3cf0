"""Judges that group segments by meaning: by the answers that follow them, by their texts, or by a
model.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer
from transformers.utils import cached_file

from gistgate.core.files import read_json
from gistgate.core.utils import UserError
from gistgate.tasks.task import Task
from pipeline.params import SegmentParams


@dataclass(frozen=True)
class Sample:
    """A segment, and the whole answer that follows when the target goes on behind it."""

    text: str
    answer: str


Judge = Callable[[dict[str, Any], Sequence[Sample]], list[int]]
"""The task's document and samples of one prefix -> the number of each sample's group."""


def judges_of(params: SegmentParams, task: Task) -> dict[str, Judge]:
    """All judges that can be asked: equal answers, equal texts, and the model that is named."""
    judges: dict[str, Judge] = {"answer": same_answer(task), "exact": same_text}
    if params.judge == "nli":
        judges["nli"] = Entailment(str(params.judge_model))
    elif params.judge_model:
        judges["embedding"] = Embedding(params.judge_model, params.similarity)
    return judges


def grouped(num: int, same: Callable[[int, int], bool]) -> list[int]:
    """Greedy groups of `num` samples: each joins the first group whose founder is the same."""
    founders: list[int] = []
    groups = []
    for index in range(num):
        matches = (group for group, founder in enumerate(founders) if same(index, founder))
        group = next(matches, len(founders))
        if group == len(founders):
            founders.append(index)
        groups.append(group)
    return groups


def same_text(_doc: dict[str, Any], samples: Sequence[Sample]) -> list[int]:
    """Groups of equal texts, blanks and case aside."""
    texts = [" ".join(sample.text.lower().split()) for sample in samples]
    return grouped(len(texts), lambda i, j: texts[i] == texts[j])


def same_answer(task: Task) -> Judge:
    """Groups of equal answers of the task once the target has gone on; samples without an answer
    equal nothing but their text.
    """

    def judge(doc: dict[str, Any], samples: Sequence[Sample]) -> list[int]:
        def same(i: int, j: int) -> bool:
            answer, founder = (samples[place].answer for place in (i, j))
            return answer == founder or bool(task.same_meaning(doc, answer, founder))

        return grouped(len(samples), same)

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
        same = (entails & entails.mT).fill_diagonal_(True)
        return grouped(len(at), lambda i, j: bool(same[at[i], at[j]]))

    @torch.inference_mode()
    def matrix(self, texts: Sequence[str]) -> Tensor:
        """Whether text i entails text j [n, n]."""
        pairs = list(product(texts, texts))
        verdicts = []
        for start in range(0, len(pairs), 256):
            first, second = map(list, zip(*pairs[start : start + 256]))
            inputs = self.tokenizer(
                first,
                second,
                padding=True,
                truncation=True,
                return_tensors="pt",
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
"""Those that `Embedding` can do, by both notations of sentence-transformers."""
STEPS = {"Transformer", "Pooling", "Normalize"}
"""Steps of a sentence-transformers model that `Embedding` can do; a cosine does not see whether the
last one is there.
"""


def pooling_of(name: str) -> str:
    """The pooling of a folder or model: mean, cls or last; mean where it says nothing."""

    def settings(file: str) -> Any:
        with suppress(OSError):
            return read_json(str(cached_file(name, file)))
        return {}

    steps = {step["type"].rsplit(".", 1)[-1]: step for step in settings("modules.json")}
    if not steps:
        return "mean"
    config = settings(f"{steps['Pooling']['path']}/config.json") if "Pooling" in steps else {}
    prefix = "pooling_mode_"
    modes = [key.removeprefix(prefix) for key in config if prefix in key and config[key] is True]
    modes = [config["pooling_mode"]] if config.get("pooling_mode") else modes
    unknown = sorted(steps.keys() - STEPS | set(modes) - POOLINGS.keys())
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


def agreement(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """How often two judges say the same about two samples of one prefix, and Cohen's kappa of
    it.
    """
    alike: dict[str, list[bool]] = {}
    for row in rows:
        for judge, groups in row["groups"].items():
            alike.setdefault(judge, []).extend(a == b for a, b in combinations(groups, 2))
    rates = {judge: share(verdicts) for judge, verdicts in alike.items()}
    report = {}
    for first, second in combinations(alike, 2):
        rate = share([a == b for a, b in zip(alike[first], alike[second])])
        chance = rates[first] * rates[second] + (1 - rates[first]) * (1 - rates[second])
        kappa = (rate - chance) / (1 - chance) if chance < 1 else 1.0
        report[f"{first}, {second}"] = {"agree": rate, "kappa": kappa}
    finished = sum(len(row["segments"]) for row in rows)
    return {"prefixes": len(rows), "segments": finished, "pairs_alike": rates, "agreement": report}


def share(verdicts: Sequence[bool]) -> float:
    """The share of true verdicts; 0 without any."""
    return sum(verdicts) / max(1, len(verdicts))
