"""Judges that group segments by meaning: by the answers that follow them, or by their texts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from gistgate.tasks.task import Task


@dataclass(frozen=True)
class Sample:
    """A segment, and the whole answer that follows when the target goes on behind it."""

    text: str
    answer: str


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


def groups_of(task: Task, doc: dict[str, Any], samples: Sequence[Sample]) -> dict[str, list[int]]:
    """The number of each sample's group by judge: `answer` takes equal answers of the task together
    (samples without one equal nothing but their text), `exact` equal texts, blanks and case aside.
    """
    texts = [" ".join(sample.text.lower().split()) for sample in samples]

    def same_answer(i: int, j: int) -> bool:
        answer, founder = (samples[place].answer for place in (i, j))
        return answer == founder or bool(task.same_meaning(doc, answer, founder))

    return {
        "answer": grouped(len(samples), same_answer),
        "exact": grouped(len(samples), lambda i, j: texts[i] == texts[j]),
    }


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
