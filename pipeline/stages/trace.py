"""Decode one test prompt loosely and strictly and keep why every token is there, for the report to show.

    python -m pipeline.stages.trace      writes reports/trace.json

The method is the first learned one, else the first of all, that is certified at the headline budget and loose. The
prompt is the first of the test split on which it accepts a token that strict decoding refuses; none was picked by eye.
"""

from __future__ import annotations

from typing import Any

from gistgate.files import write_json
from gistgate.integrations.lm_eval.task import Task
from gistgate.observing.trace import TracedToken, trace
from gistgate.request.rows import Generation
from pipeline.common.decoders import make_decoder, read_prompts, request_of
from pipeline.common.entry import run
from pipeline.common.gates import load_gate
from pipeline.common.operating_point import Operating, operating_point
from pipeline.common.paths import REPORTS
from pipeline.pairs.pair import Pair, load_pair
from pipeline.params import Params, read_params
from pipeline.tasks.loading import load_task

TRIES = 50
"""Prompts to look at before giving up."""
STRICT = Operating("exact", "exact", "model", 0)


def main() -> None:
    params = read_params()
    point = chosen(params)
    found = None
    if point is not None:
        found = first_loose(params, load_pair(params), load_task(params), point)
    write_json(REPORTS / "trace.json", found)


def chosen(params: Params) -> Operating | None:
    """The method to show; None when nothing loose is certified."""
    names = sorted(params.methods, key=lambda name: not params.methods[name].learned)
    points = (operating_point(params, name) for name in names)
    return next((point for point in points if point.knob is not None), None)


def first_loose(params: Params, pair: Pair, task: Task, point: Operating) -> dict[str, Any] | None:
    """The trace of the first prompt with a loose token; None when there is none."""
    gate = load_gate(point.head, pair) if point.head else None
    loose = make_decoder(pair, point.as_method(), point.settings, point.block, gate=gate)
    strict = make_decoder(pair, STRICT.as_method(), {}, point.block)
    prompts = read_prompts("test")[:TRIES]
    request = request_of(prompts, pair)
    for prompt in prompts:
        answer, tokens = trace(loose, prompt["ids"], pair.tokenizer, **request)
        if answer.statistics.loose:
            return {
                "id": prompt["id"],
                "context": prompt["context"],
                "method": point.method,
                "knob": point.knob,
                "loose": told(task, prompt["doc"], pair, answer, tokens),
                "strict": told(task, prompt["doc"], pair, *trace(strict, prompt["ids"], pair.tokenizer, **request)),
            }
    return None


def told(task: Task, doc: dict[str, Any], pair: Pair, answer: Generation, tokens: list[TracedToken]) -> dict[str, Any]:
    """Tokens, score and tau of one answer; as lm-eval does, the score leaves the stop and what is behind away."""
    return {
        "tokens": [token.as_dict() for token in tokens],
        "score": task.score(doc, task.text(pair.tokenizer, answer.ids)),
        "mean_accepted_length": answer.statistics.mean_accepted_length,
    }


if __name__ == "__main__":
    run(main)
