"""How YAML files become frozen dataclasses: pydantic reads them, and a refusal is one sentence with
place and remedy. A method of params.yaml is one of them: a rule with a drafter, the settings that
compete and the knob of calibration.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from pydantic import AllowInfNan, ConfigDict, Field, Strict, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from gistgate.core.utils import UserError, nearest
from gistgate.rules import RULES, meant
from pipeline.paths import HEADS, PAIR_REPORT, PARAMS

MODEL = "model"  # the drafter of the pair: its draft model, or what its file names instead
SEGMENT = "segment"  # the drafter of whole segments, and how the names of their rules begin
T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def block(cls: type[T]) -> type[T]:
    """A frozen dataclass that `build` reads strictly."""
    cls.__pydantic_config__ = ConfigDict(strict=True, extra="forbid")  # type: ignore[attr-defined]
    return dataclass(frozen=True)(cls)


def between(low: float | None = None, high: float | None = None) -> Any:
    """The range of a number, both ends included."""
    return Field(ge=low, le=high)


Number = Annotated[float, AllowInfNan(False), Strict(False)]  # YAML reads 1e-3 as a text
Positive = Annotated[Number, between(0)]
Share = Annotated[Number, between(0, 1)]
Count = Annotated[int, between(1, 2**53)]
Natural = Annotated[int, between(0, 2**53)]


def build(
    cls: type[T],
    content: Any,
    where: str = "",
    file: str = str(PARAMS),
) -> T:
    """The dataclass `cls` filled from nested dictionaries; `where` is their dotted place in `file`,
    for messages.
    """
    try:
        # As JSON, because strictness there still lets a list be a tuple and a whole number a
        # number.
        return TypeAdapter(cls).validate_json(json.dumps(content, default=str))
    except ValidationError as error:
        # An unknown key is told first: it may be a mistyped one of those that are missing.
        details = sorted(error.errors(), key=lambda detail: "unexpected" not in detail["type"])
        raise UserError(f"{file}{sentence(cls, details[0], where)}") from None


def sentence(cls: type, error: ErrorDetails, where: str) -> str:
    """What is wrong in a file and what to do, behind the file's name."""
    keys = [part for part in error["loc"] if isinstance(part, str)]
    place = ".".join([where, *keys] if where else keys)
    if error["type"].startswith("unexpected"):
        return f" has an unknown key '{place}'. {nearest(keys[-1], known_keys(cls, keys[:-1]))}"
    if error["type"].startswith("missing"):
        return f" lacks the key '{place}'. Add it; `gistgate init` writes files with every key."
    subject = f"'{place}'" if place else "the file"
    message = error["msg"].replace("Input", "It")
    return f": {subject} is {error['input']!r}. {message}. Change the value."


def known_keys(hint: Any, path: Sequence[str]) -> list[str]:
    """The keys of the block that `path` leads to from a type."""
    while get_origin(hint) in (Annotated, Union, UnionType):
        hint = get_args(hint)[0]
    if not is_dataclass(hint):  # blocks by name
        return known_keys(get_args(hint)[-1], path[1:])
    if path:
        return known_keys(get_type_hints(hint)[path[0]], path[1:])
    return [item.name for item in fields(hint)]


@block
class MethodParams:
    """A method of params.yaml, of which only `rule` has to be named."""

    rule: str
    drafter: str = MODEL
    after: str = str(PAIR_REPORT)
    block: Count | None = None
    fixed: dict[str, Any] = field(default_factory=dict)
    variants: tuple[dict[str, Any], ...] = ({},)
    knob: str | None = None
    grid: tuple[Number, ...] = ()
    batch_size: Count | None = None
    engine: Literal["eager", "compiled"] | None = None

    @property
    def gate(self) -> Path | None:
        """The folder of the gate that the rule asks; None for a rule without one."""
        asks = self.drafter != SEGMENT and "gate" in kind_of_rule(self.rule).needs
        return Path(self.after) if asks else None

    @property
    def head(self) -> str | None:
        """The name of that gate."""
        return self.gate.name if self.gate else None


def kind_of_rule(rule: str) -> Any:
    """The class of a rule, presets and the rules of segments included."""
    if rule.startswith(SEGMENT):
        from gistgate.segments.build import SEGMENT_RULES

        if rule in SEGMENT_RULES:
            return SEGMENT_RULES[rule]
    return RULES[meant(rule)[0]]


def check_method(name: str, method: MethodParams, heads: Sequence[str]) -> None:
    """Its rule exists, its knob is the rule's, its grid goes from strict to loose, and its gate is
    trained.
    """
    kind = kind_of_rule(method.rule)
    knob = method.knob or kind.knob
    if (knob or method.grid) and not (method.knob and method.grid):
        raise UserError(f"params.yaml: the method '{name}' needs both 'knob' ({knob}) and 'grid'.")
    ordered = sorted(set(method.grid), reverse=kind.looser != "up")
    orders = [ordered] if method.knob == kind.knob else [ordered, ordered[::-1]]
    if list(method.grid) not in orders:
        raise UserError(
            f"params.yaml: the grid of '{name}' does not go from strict to loose:"
            f" {list(method.grid)}. Order it so."
        )
    if method.rule.startswith(SEGMENT) != (method.drafter == SEGMENT):
        raise UserError(
            f"params.yaml: the method '{name}' needs both a rule and the drafter '{SEGMENT}', or"
            " neither."
        )
    if method.gate and method.after == str(PAIR_REPORT):
        raise UserError(
            f"params.yaml: the method '{name}' asks a gate. Name it, as in 'after:"
            f" {HEADS}/logistic'."
        )
    if method.gate and method.gate.parent == HEADS and method.head not in heads:
        raise UserError(
            f"params.yaml: 'methods.{name}.after' names the head '{method.head}', which is not"
            f" among 'train.heads'. {nearest(str(method.head), heads)}"
        )
