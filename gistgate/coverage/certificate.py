"""What calibration proved about one rule on exactly the setup that a scope names:
`certificate.json`.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from gistgate.core.files import check_sealed, read_sealed, write_sealed
from gistgate.core.utils import UserError, dataclass_from, refusing
from gistgate.coverage.ask import UNKNOWN, Ask, Settings
from gistgate.coverage.setup import Setup

CERTIFICATE_FILE = "certificate.json"
# Folder beside it, where calibration keeps a gate's certificates of other tasks.
OTHERS = "certificates"
FORMAT_VERSION = 2  # of the file's layout
TASK = "task"  # score in whose unit the budgets of a gate are: the task's own metric
ROUNDING = 1e-9  # by which budgets that are meant to be equal may differ


def is_within(budget: float, limit: float | None) -> bool:
    """Whether a certified budget keeps a limit (None: any)."""
    return limit is None or budget <= limit + ROUNDING


@dataclass(frozen=True)
class OperatingPoint:
    """What calibration found for one budget."""

    # Largest mean loss that was to be certified, in the unit of the score (0.03 is 3 points of
    # accuracy).
    budget: float
    confidence: float  # probability with which the bound holds, over the draw of the prompts
    # All settings of the rule: of the loosest certified setting, or of the strictest one tested.
    settings: Settings
    n: int  # calibration prompts that the setting was tested on
    losses: int  # prompts on which loose decoding scored lower than strict decoding
    gains: int  # prompts on which loose decoding scored higher
    loss: float  # mean of strict - loose score; negative where loose decoding scored better
    bound: float  # one-sided upper bound on that mean
    bound_kind: str  # which bound it is
    harm: float  # mean of max(strict - loose, 0)
    harm_bound: float  # upper bound on the harm by Hoeffding-Bentkus; no budget limits it
    certified: bool  # whether the bound keeps the budget
    # Tokens per target forward on the calibration prompts, the target's own token included.
    mean_accepted_length: float
    growth: float | None = None  # by what share answers were longer than the strict ones on average
    growth_bound: float | None = None  # upper bound on that share; None: no lengths were known
    growth_limit: float | None = None  # largest growth that was to be certified, too; None: any
    fluency_loss: float | None = None  # by how many nats a token was less probable on average
    fluency_bound: float | None = None  # upper bound on that loss; None: it was not measured
    fluency_limit: float | None = None  # largest loss that was to be certified, too; None: any
    refusal: str | None = None  # why nothing is certified and what would help; None: certified

    def keeps(self, budget: float) -> bool:
        """Whether this point was certified for `budget` or a smaller one."""
        return self.certified and is_within(self.budget, budget)


@dataclass(frozen=True)
class Certificate:
    """The calibrated settings of one rule, one for each budget, and the setup that they hold
    for.
    """

    rule: str  # rule id
    drafter: str  # drafter id
    block: int  # K, drafted tokens per round
    knob: str | None  # the setting that was calibrated; None for a rule without one
    score: str  # what was compared: task, logprob or judge
    confidence: float  # probability with which each certificate holds
    headline_budget: float  # the budget that is meant where nobody names one
    # Hashes of models, tokenizer, gate, task and prompts, and all else that decides the texts.
    scope: dict[str, Any]
    points: tuple[OperatingPoint, ...]  # one for each budget, from small to large
    # The settings fixed beforehand, from strict to loose, with their results.
    sequence: tuple[dict[str, Any], ...] = ()
    source: str = ""  # where the prompts come from
    made: str = ""  # date in UTC; empty where equal inputs have to give equal bytes
    format_version: int = FORMAT_VERSION  # layout of the file

    @property
    def certified(self) -> tuple[OperatingPoint, ...]:
        """The points whose bound keeps their budget."""
        return tuple(point for point in self.points if point.certified)

    @property
    def fixed(self) -> Settings:
        """The settings of the rule that all points share: everything but the knob."""
        settings = self.points[0].settings
        return {name: value for name, value in settings.items() if name != self.knob}

    @property
    def setup(self) -> Setup:
        """What decoded in the calibration; of the rule's settings those that all points share."""
        scope = self.scope
        names = ("target", "tokenizer", "encoding", "template", "ends", "rule_data", "engine")
        return Setup(
            **{name: scope[name] for name in names if name in scope},
            draft=scope.get("draft") or UNKNOWN,
            gate=scope.get("gate"),
            rule=self.rule,
            settings=self.fixed,
            drafter=self.drafter,
            drafter_data=scope.get("drafter_data"),
            drafting=scope.get("drafting") or None,
            block=self.block,
            guards=scope.get("guards") or [],
        )

    @property
    def ask(self) -> Ask:
        """What was asked in the calibration."""
        prompting = self.scope.get("prompting", {})
        number = self.scope.get("examples", prompting.get("num_fewshot"))
        return Ask(
            temperature=self.scope.get("temperature", UNKNOWN),
            chat=prompting.get("chat_template"),
            system=prompting.get("system"),
            num_fewshot=UNKNOWN if number is None else number,
            arguments=prompting.get("arguments", {}),
            stops=self.scope.get("stops", UNKNOWN),
        )

    def sure(self, confidence: float | None) -> "Certificate":
        """The certificate with those points alone that hold with `confidence` (None: all)."""
        points = [
            replace(point, certified=point.certified and point.confidence >= (confidence or 0.0))
            for point in self.points
        ]
        return replace(self, points=tuple(points))

    def point(self, budget: float | None = None) -> OperatingPoint | None:
        """The loosest certified point that keeps `budget` (default: the headline budget); None
        where there is none.
        """
        budget = self.headline_budget if budget is None else budget
        within = [point for point in self.points if point.keeps(budget)]
        return max(
            within, key=lambda point: (point.budget, point.mean_accepted_length), default=None
        )

    def refusal(self, budget: float | None = None, confidence: float | None = None) -> str:
        """The clause that says that no setting is certified for `budget`, and which budgets are."""
        budget = self.headline_budget if budget is None else budget
        budgets = ", ".join(f"{point.budget:g}" for point in self.certified) or "none"
        sure = "" if confidence is None else f" at confidence {confidence:g}"
        return f"no setting certified for a budget of {budget:g}{sure} (certified: {budgets})"

    def operating_point(self, budget: float | None = None) -> OperatingPoint:
        """The loosest certified point that keeps `budget` (default: the headline budget);
        UserError where there is none.
        """
        point = self.point(budget)
        if point is None:
            raise UserError(
                f"The gate has {self.refusal(budget)}. Ask for a larger budget, verify strictly,"
                " or calibrate with more prompts."
            )
        return point

    def save(self, folder: str | Path) -> Path:
        """Write `certificate.json` into a folder and return its path."""
        path = Path(folder) / CERTIFICATE_FILE
        write_sealed(path, asdict(self))
        return path


def read_certificate(place: str | Path) -> Certificate | None:
    """The certificate in a folder or a file; None for a folder without one."""
    path = Path(place)
    if path.is_dir():
        path = path / CERTIFICATE_FILE
        if not path.exists():
            return None
    value, sealed = read_sealed(path, "certificate", "Calibrate again.", FORMAT_VERSION)
    with refusing(f"{path} is no certificate", "Restore it or calibrate again."):
        certificate = certificate_from(value)
    check_sealed(path, sealed, value)
    return certificate


def load_certificate(place: str | Path) -> Certificate:
    """The certificate in a file or a folder; UserError where there is none."""
    certificate = read_certificate(place)
    if certificate is None:
        raise UserError(
            f"{place} holds no {CERTIFICATE_FILE}. Name another folder, or run `gistgate"
            " calibrate` first."
        )
    return certificate


def certificate_from(value: Mapping[str, Any]) -> Certificate:
    """A certificate from its JSON object; KeyError, TypeError or ValueError says what does not
    fit.
    """
    points = tuple(dataclass_from(OperatingPoint, point) for point in value["points"])
    if not points:
        raise ValueError("it has no operating point")
    parts = {"points": points, "sequence": tuple(value["sequence"])}
    return dataclass_from(Certificate, {**value, **parts})
