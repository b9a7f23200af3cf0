"""Looks at calibration prompts: recorded before the prompts are decoded, and again when the result is published.

Two ledgers answer whether prompts may be judged. The local one, `.gistgate/looks.json`, survives every rerun and holds
what was judged here. The published one, `docs/results/looks.json`, is kept in Git; a first run on a fresh clone repeats
its choices and is admitted.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock

from gistgate.certificates.calibration import Method, Request
from gistgate.certificates.ledger import FRESH, Ledger, Look, digest, fingerprint_of, hash_of, sequence_of
from gistgate.certificates.search import Selection
from gistgate.certificates.tango import GAMMA
from gistgate.errors import UserError

LOCAL = Path(".gistgate/looks.json")
"""Every look that was taken in this folder; not in Git, and no output of a stage."""
LEAST_ERROR = 2 * GAMMA
"""Error of a look that can be tested; a plan for less would never end."""
PUBLISHED = Path("docs/results/looks.json")
"""The looks whose results were published."""
PARTS = ("target", "draft", "tokenizer", "gate", "rule", "drafter", "drafter_data", "block", "task", "prompting")
"""What of a certificate's scope decides which hypothesis is tested."""
SOMETIMES = ("drafting", "judge", "rule_data")
"""The same where it is there; a hash without them is that of earlier ledgers."""
MODELS = ("target", "draft")
"""Parts whose weights rounding may change where a run trains them; their forms it may not."""
TRAINED = ("gate", "drafter_data", "rule_data")
"""Parts that every run makes anew."""

UNPUBLISHABLE = (
    "The calibration prompts were published for '{claim}' with settings that other code chose, so that publishing this "
    "look would be refused. {remedy}"
)


@dataclass(frozen=True)
class Looks:
    """What one claim tells the ledgers before its prompts are judged."""

    claim: str
    """What is certified, in one line."""
    prompts: Sequence[Sequence[int]]
    """Token ids of the calibration prompts [N][T]."""
    error: float
    """Probability of a false certificate that all looks of the claim at these prompts may spend together."""
    code: str = ""
    """Fingerprint of the code that chooses."""
    choice: str = ""
    """Fingerprint of the parameters that lead to the tested settings."""
    remedy: str = FRESH
    """How fresh prompts are drawn, as a sentence."""
    ready_made: bool = True
    """Whether the models come with their weights, so that other weights are another choice; a run may train its own."""
    problems: Sequence[str] = ()
    """One hash for each problem among the prompts, which stays the same however it is asked; none where unknown."""

    def look(self, sequence: Any, spent: float, way: str = "") -> Look:
        """The look at a tested sequence (plain JSON) that may be wrong with probability `spent`; see `way_of`."""
        prompts, problems = fingerprint_of(self.hashes), fingerprint_of(self.problems) if self.problems else ""
        spent, error, tested = round(spent, 12), round(self.error, 12), digest(sequence)[:16]
        return Look(self.claim, prompts, self.code, tested, spent, self.choice, "", "", way, error, problems)

    @property
    def hashes(self) -> list[str]:
        """One hash for each prompt."""
        return [hash_of(ids) for ids in self.prompts]

    def take(self, look: Look, local: Path = LOCAL, published: Path = PUBLISHED) -> dict[str, Any]:
        """Record a look that is about to be taken; returns it as the report keeps it, for `publish`.

        A look that only counts as a repetition because its choice was published is told that publishing it would be
        refused, since other code or rounding has led to other settings.

        Raises:
            UserError: a ledger was edited, or the prompts were judged before with another choice.
        """
        error = round(self.error, 12)
        earlier = Ledger.read(published)
        earlier.admit(look, self.hashes, error, problems=self.problems, remedy=self.remedy, rerun=True)
        if not earlier.holds(look) and not earlier.affords(look, self.hashes, error, self.problems):
            warnings.warn(UNPUBLISHABLE.format(claim=self.claim, remedy=self.remedy), stacklevel=2)
        enter(local, look, self.hashes, error, self.problems, self.remedy)
        marks = {"hashes": self.hashes, **({"problem_hashes": self.problems} if self.problems else {})}
        return {**asdict(look), **{key: " ".join(sorted(found)) for key, found in marks.items()}}

    def before(self, method: Method, request: Request, ternary: bool, scope: Mapping[str, Any]) -> Taking:
        """What `gistgate.certificates.calibration.calibrate` calls before it decodes calibration prompts.

        Args:
            method: what is calibrated.
            request: what shall be certified.
            ternary: whether the exact bound may be used.
            scope: what decodes, see `gistgate.certificates.scope`.
        """
        return Taking(self, method, request, ternary, scope)


@dataclass
class Taking:
    """Records a look at the settings that development prompts chose."""

    looks: Looks
    method: Method
    request: Request
    ternary: bool
    scope: Mapping[str, Any]
    record: dict[str, Any] = field(default_factory=dict)
    """What the report keeps of the look; empty before it was taken."""

    def __call__(self, selection: Selection) -> None:
        settings = [self.method.settings(one) for one in selection.settings]
        bound = f"{'exact' if self.ternary else 'plug-in'} {self.request.stop}"
        decoding = {name: self.scope.get(name) for name in PARTS}
        decoding |= {name: self.scope[name] for name in SOMETIMES if self.scope.get(name)}
        sequence = [sequence_of(settings, self.request.budgets, bound), decoding]
        way = way_of(decoding, self.looks.ready_made)
        self.record = self.looks.take(self.looks.look(sequence, 1 - self.request.confidence, way))


def way_of(decoding: Mapping[str, Any], ready_made: bool = True) -> str:
    """Fingerprint of what decodes, as a scope names it, without what training anew may change by rounding."""
    kept = {name: value for name, value in decoding.items() if name not in TRAINED}
    trained = () if ready_made else [name for name in MODELS if kept.get(name)]
    return digest({**kept, **{name: {**kept[name], "fingerprint": None} for name in trained}})[:16]


def enter(
    path: Path, look: Look, hashes: Sequence[str], error: float, problems: Sequence[str] = (), remedy: str = FRESH
) -> None:
    """Admit a look to the ledger of this file, one process at a time.

    Raises:
        UserError: the ledger was edited, or has no error left for this look.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f".{path.name}.lock")):
        ledger = Ledger.read(path)
        ledger.admit(look, hashes, error, problems=problems, remedy=remedy)
        ledger.write(path)


def publish(taken: Mapping[str, Any], where: str, path: Path = PUBLISHED) -> None:
    """Enter a look that a report recorded into the published ledger.

    Args:
        taken: what `Looks.take` returned.
        where: the file that shows the result.
        path: the published ledger.

    Raises:
        UserError: the record is damaged or the ledger was edited, or the prompts were published with another choice.
    """
    try:
        record = dict(taken)
        hashes, problems = record.pop("hashes").split(), record.pop("problem_hashes", "").split()
        look = Look(**{**record, "published": where, "previous": ""})
    except (KeyError, TypeError, AttributeError) as error_:
        raise UserError("A calibration report has no record of its look. Run its stage again.") from error_
    enter(path, look, hashes, look.error, problems)


def level(confidence: float, looks: int) -> float:
    """Confidence of each look if several looks divide the error between them.

    Raises:
        UserError: no number of prompts reaches it, since the exact bound keeps a part of the error for its search.
    """
    error = (1 - confidence) / looks
    if error <= LEAST_ERROR:
        raise UserError(
            f"A confidence of {confidence:g} over {looks} looks leaves an error of {error:.2g} for each, which no "
            f"number of prompts can show. Lower the confidence or the looks until more than {LEAST_ERROR:g} is left."
        )
    return 1 - error
