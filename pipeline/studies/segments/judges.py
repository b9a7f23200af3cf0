"""Which segments mean the same: interchangeable judges that put the samples of one prefix into groups.

A group is greedy: a sample joins the first group whose first member it equals, else it founds one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

from gistgate.errors import UserError
from gistgate.integrations.lm_eval.task import Task
from pipeline.studies.segments.params import SegmentParams
from pipeline.studies.segments.pooling import pooled, pooling_of
from pipeline.studies.segments.truth import groups_by_truth


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
