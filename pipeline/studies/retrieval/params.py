"""The methods of the retrieval stages; pipeline/studies/retrieval/params.yaml says what each is."""

from __future__ import annotations

from dataclasses import field, replace
from pathlib import Path
from typing import Annotated

from gistgate.rules import RULES
from pipeline.common import paths
from pipeline.common.reading import Count, Natural, Number, Share, between, block, read
from pipeline.params import MethodParams, Params, read_params
from pipeline.params import one_dictionary as together
from pipeline.params.methods import MethodGroups

FILE = paths.STUDIES / "retrieval/params.yaml"
REPORTS = paths.REPORTS / "retrieval"


@block
class ChoiceParams:
    """What the drafter `choice` expects, measured beforehand: texts must not depend on the clock."""

    verify: Annotated[Number, between(0.1, 100)] = 1.6
    """v, a verification in plain forwards of the target; `benchmarks.limit` measures it."""
    cost: Annotated[Number, between(0, 10)] = 0.42
    """c, a step of the draft model in plain forwards of the target; `benchmarks.limit` measures it."""
    block: Count = 8
    """K, tokens at which promises are compared."""
    min_match: Natural = 2
    """Latest tokens that have to occur earlier in the text before prompt lookup is asked."""
    prior: Share = 0.5
    """Acceptance that every drafter begins a request with."""
    weight: Annotated[Number, between(0.1, 10_000)] = 16.0
    """Tokens that the prior counts for."""


@block
class DatastoreParams:
    """What the datastore keeps of every token."""

    layer: str = "post"
    """State of the target that becomes a key: `post`, or `layer:` and a number."""
    key_size: Count = 64
    """Width of a key."""


@block
class RetrievalParams:
    """pipeline/studies/retrieval/params.yaml."""

    methods: MethodGroups = field(default_factory=MethodGroups)
    """What is compared."""
    datastore: DatastoreParams = field(default_factory=DatastoreParams)
    """The datastore of the drafters whose name begins with `sen`."""
    choice: ChoiceParams = field(default_factory=ChoiceParams)
    """The drafter `choice`."""

    @property
    def by_name(self) -> dict[str, MethodParams]:
        """All methods; a soft one without a grid has its rule's."""
        return {name: with_grid(method) for name, method in together(self.methods).items()}


def with_grid(method: MethodParams) -> MethodParams:
    """The method with the knob, grid and variants that its rule declares, where it has none of its own."""
    rule = RULES.get(method.rule)
    if rule is None or method.knob is not None or rule.knob is None:
        return method
    return replace(method, knob=rule.knob, grid=tuple(rule.grid), variants=tuple(rule.variants))


def read_retrieval_params(path: Path = FILE) -> RetrievalParams:
    """Read the file.

    Raises:
        UserError: it is missing, or holds an unknown key, a wrong type or a value out of range.
    """
    return read(RetrievalParams, path)


def retrieval_params() -> Params:
    """params.yaml with the methods of pipeline/studies/retrieval/params.yaml in place of its own."""
    return replace(read_params(), methods=read_retrieval_params().by_name)
