"""What an answer is worth: the score of one metric behind one filter, and whether two answers mean the same."""

from __future__ import annotations

from numbers import Real
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.task import ConfigurableTask

from gistgate.errors import UserError
from gistgate.integrations.lm_eval.prompting import Document
from gistgate.integrations.lm_eval.unit_tests import EXPANDED

INVALID = "[invalid]"
"""What lm-eval's regex filters say of a text without an answer."""


class Judge:
    """The verdicts of one metric and one filter of a task."""

    def __init__(self, harness: ConfigurableTask, name: str, wanted: str | None) -> None:
        """Judge by the metric and filter `wanted` ("exact_match,strict-match"), or by the task's first of each.

        Raises:
            UserError: the task has no such metric or filter, or less of it would be better.
        """
        self.harness, self.name = harness, name
        self._filter, self._metric = choose_metric(harness, wanted)

    @property
    def metric(self) -> str:
        """The metric and filter that decide, as lm-eval writes them: "exact_match,strict-match"."""
        return f"{self._metric},{self._filter.name}"

    def verdicts_of(self, results: dict[str, Any]) -> dict[int, tuple[float, str]]:
        """Score and answer of every document that lm-eval judged, by its place in the test split."""
        samples = results["samples"][self.harness.task_name]
        mine = [sample for sample in samples if sample["filter"] == self._filter.name]
        return {sample["doc_id"]: (self._in_range(self._value(sample)), sample["resps"][0][0]) for sample in mine}

    def score(self, doc: Document, text: str) -> float:
        """The task's own verdict on an answer, in [0, 1].

        Raises:
            UserError: the metric has no value for a single answer, or one outside [0, 1].
        """
        return self._in_range(self._verdict(doc, text))

    def _in_range(self, value: Any) -> float:
        """The metric's value as a number, refused where it is none."""
        if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) <= 1:
            raise UserError(
                f"The metric '{self.metric}' of the task '{self.name}' gives {value!r} for one answer, not a number "
                "from 0 to 1. Name another metric (`task_metric` in params.yaml), for instance exact_match."
            )
        return float(value)

    def same_meaning(self, doc: Document, text: str, reference: str) -> bool | None:
        """Whether the task's filter and metric cannot tell `text` from `reference`; None where nothing is known.

        The filtered answers are compared, not their correctness: two different wrong answers differ. The metric is
        asked with the reference's answer in the place of the solution, so that what it ignores (case, commas) is
        ignored here as well. A task with a scoring function of its own, or with unit tests, hides its answers in
        there; then equal verdicts other than zero count as the same, and two failures with different texts as unknown.
        """
        answer, expected = self.answer(doc, text), self.answer(doc, reference)
        if expected in (INVALID, [INVALID], self.answer(doc, "")):
            return None
        if answer == expected:
            return True
        if not (callable(self.harness.config.process_results) or self.harness.config.unsafe_code):
            return bool(self._against(expected, answer) == self._against(expected, expected))
        verdicts = self.score(doc, text), self.score(doc, reference)
        return None if verdicts == (0, 0) else verdicts[0] == verdicts[1]

    def answer(self, doc: Document, text: str) -> Any:
        """What the filter leaves of a text."""
        run = Instance(request_type="generate_until", doc=doc, arguments=("", {}), idx=0, resps=[text])
        self._filter.apply([run])
        return run.filtered_resps[self._filter.name]

    def _verdict(self, doc: Document, text: str) -> Any:
        """The metric's value against the document's own solution."""
        return self._value(self.harness.process_results(doc, [self.answer(doc, text)]))

    def _value(self, results: dict[str, Any]) -> Any:
        """The metric's value among results of lm-eval; None where it is missing."""
        return results.get(self._metric, results.get(EXPANDED.get(self._metric, "")))

    def _against(self, reference: Any, answer: Any) -> Any:
        """The metric's value where `reference` is the solution."""
        metric, settings = (
            self.harness._metric_fn_list[self._metric],
            self.harness._metric_fn_kwargs[self._metric],
        )
        try:
            value = metric(references=[reference], predictions=[answer], **settings)
        except TypeError:  # lm-eval's other form of a metric
            value = metric([reference, answer])
        return value.get(self._metric) if isinstance(value, dict) else value


def choose_metric(harness: ConfigurableTask, wanted: str | None) -> tuple[Any, str]:
    """The filter and the metric's name: the task's first of each, or those of `wanted` ("metric,filter").

    Raises:
        UserError: the task has no such metric or filter, or less of it would be better.
    """
    filters = {ensemble.name: ensemble for ensemble in harness._filters}
    metrics = list(harness._metric_fn_list)
    metric, _, name = (wanted or f"{metrics[0]},{next(iter(filters))}").partition(",")
    name = name or next(iter(filters))
    if metric not in metrics or name not in filters:
        known = ", ".join(f"{m},{f}" for m in metrics for f in filters)
        raise UserError(
            f"The task has no metric '{wanted}'. Set `task_metric` (`gistgate calibrate`: --metric) to one of: {known}."
        )
    if not harness.higher_is_better().get(metric, True):
        raise UserError(
            f"Of the metric '{metric}' less is better. Set `task_metric` (`gistgate calibrate`: --metric) to one where "
            "more is better."
        )
    return filters[name], metric
