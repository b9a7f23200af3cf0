"""What both servers are asked about a document, and one server's answers to it, turn by turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from gistgate.certify.answers import Served
from gistgate.certify.endpoint import Endpoint
from gistgate.tasks.task import Document, Messages, Task, Turns


@dataclass(frozen=True)
class Request:
    """What both endpoints are asked about a document."""

    prompt: str | Messages
    stops: Sequence[str]
    limit: int
    """Longest answer, in tokens."""
    entries: Mapping[str, Any]
    """What is said beside the prompt, such as tools."""
    setting: Any
    """What else tells the answers from others; None where nothing does."""
    turns: Callable[[], Turns] = field(repr=False)
    """Begins the conversation, which is a single turn for most prompts."""

    @property
    def identity(self) -> list[Any]:
        """What is equal for the same request."""
        parts = [self.prompt, self.stops, self.limit, self.entries]
        return parts if self.setting is None else [*parts, self.setting]


def request_of(task: Task, doc: Document) -> Request:
    """What both endpoints are asked about a document."""
    return Request(
        task.prompt(doc),
        list(task.stops),
        task.max_new_tokens,
        task.entries(doc),
        task.setting(doc),
        partial(task.turns, doc),
    )


async def played(endpoint: Endpoint, request: Request, sampling: Mapping[str, Any]) -> Served:
    """The last answer of an endpoint to a request, with its answers to the turns before."""
    turns = request.turns()
    asked = next(turns, None)
    answers: list[Served] = []
    while asked is not None:
        prompt, entries = asked
        served = await endpoint.answer(prompt, request.stops, request.limit, entries, **sampling)
        answers.append(served)
        try:
            asked = turns.send(served.text)
        except StopIteration:
            asked = None
    return replace(answers[-1], earlier=tuple(answers[:-1]))
