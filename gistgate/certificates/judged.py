"""The ledger of looks: which calibration prompts have been judged, for which claim, and how much error that has spent.

A certificate at 95 % confidence is wrong with probability 5 % over the draw of its calibration prompts, provided that
they are judged once. Whoever changes a choice after a look at the results and judges the same prompts again tests a
second hypothesis on them. The ledger therefore keeps every look. Repeating a look spends nothing: the same prompts with
the same tested sequence, or with the same choice by the same code and the same way of decoding, whose sequence differs
by rounding at most. Another look at prompts of which even one was judged for the same claim before has to pay from what
the earlier looks have left of the error; a first look that spent the whole error leaves nothing. How much error there
is to spend was said at the first look. A prompt is known by its token ids and by its problem, which is the same when it
is asked in another way.

The file is JSON, kept in Git. Every entry holds the hash of the entry before it and the file that of the last, so that
an edit by hand is noticed.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from filelock import FileLock

from gistgate.certificates.bounds import GAMMA
from gistgate.certificates.calibration import Method, Request
from gistgate.certificates.search import Selection
from gistgate.core.files import read_json, write_json
from gistgate.core.utils import UserError, dataclass_from

DIGITS = 10
"""Hexadecimal digits that stand for one prompt; two of 10,000 prompts agree by chance once in 20,000 ledgers."""
TOLERANCE = 1e-9
"""Rounding that a sum of spent errors may show."""
EARLIER = 0.05
"""Error that all looks together may spend where entries of earlier versions do not say it: that of 95 % confidence."""
FRESH = "Draw fresh calibration prompts."
"""What helps after a refusal."""


LATER = ("way", "error", "problems")
"""Entries of a look that earlier versions did not write."""


@dataclass(frozen=True)
class Look:
    """One test of one claim on one set of calibration prompts."""

    claim: str
    """What was certified: pair, task, score and method, in one line."""
    prompts: str
    """Fingerprint of the calibration prompts; `Ledger.draws` holds their single hashes."""
    code: str
    """Fingerprint of the code that chose the tested settings."""
    sequence: str
    """Fingerprint of the tested settings in their order, with budgets, bounds and models."""
    spent: float
    """Probability of a false certificate that the test was allowed, in (0, 1)."""
    choice: str = ""
    """Fingerprint of the parameters that led to the tested settings; empty where they are not known."""
    published: str = ""
    """Where the result was published; empty for a look that stayed unpublished."""
    previous: str = ""
    """Hash of the entry before; empty for the first."""
    way: str = ""
    """Fingerprint of what decodes without its weights: rule, drafter, K, forms of models; empty in old entries."""
    error: float = 0.0
    """Probability of a false certificate that all looks at these prompts may spend together; 0 in old entries."""
    problems: str = ""
    """Fingerprint of the prompts' problems, whose hashes `Ledger.problems` holds; empty in old entries."""

    @property
    def entry(self) -> dict[str, Any]:
        """The look as its file holds it; what old entries do not say leaves them their form and their hash."""
        return {key: value for key, value in asdict(self).items() if key not in LATER or value}

    @property
    def hash(self) -> str:
        """Hash of the entry, the one before included."""
        return digest(self.entry)

    def repeats(self, other: Look, rerun: bool = False) -> bool:
        """Whether both are one test: the same claim, prompts and error, and the same sequence or the same choice.

        An equal choice excuses another sequence only where rule, drafter, K and the forms of the models are the same:
        rounding changes weights and the settings that they lead to, and nothing else. `rerun` takes an equal choice for
        a repetition even if other code made it: whoever runs a published choice again with a later version, or on
        another machine, has not chosen anything.
        """
        if (self.claim, self.prompts, self.spent) != (other.claim, other.prompts, other.spent):
            return False
        chosen = self.choice != "" and (self.choice, self.way) == (other.choice, other.way)
        return self.sequence == other.sequence or (chosen and (rerun or self.code == other.code))


@dataclass
class Ledger:
    """All looks so far, in the order in which they were taken."""

    looks: list[Look] = field(default_factory=list)
    draws: dict[str, list[str]] = field(default_factory=dict)
    """For each fingerprint of calibration prompts the sorted hashes of the single prompts."""
    problems: dict[str, list[str]] = field(default_factory=dict)
    """For each fingerprint of problems their sorted hashes."""

    @classmethod
    def read(cls, path: str | Path) -> Ledger:
        """Read a ledger; a file that does not exist is an empty one.

        Raises:
            UserError: the file is damaged, or an entry was changed, removed or put in between.
        """
        path = Path(path)
        if not path.exists():
            return cls()
        content = read_json(path)
        try:
            looks = [dataclass_from(Look, entry) for entry in content["looks"]]
            draws, problems = unpacked(content["draws"]), unpacked(content.get("problems", {}))
            head = content["head"]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UserError(f"{path} is no ledger of looks ({error}). Restore it from Git.") from error
        ledger = cls(looks, draws, problems)
        ledger._check(path, head)
        return ledger

    def write(self, path: str | Path) -> None:
        """Write the ledger, whole or not at all."""
        known = {"draws": packed(self.draws), **({"problems": packed(self.problems)} if self.problems else {})}
        write_json(path, {"looks": [look.entry for look in self.looks], **known, "head": self.head})

    @property
    def head(self) -> str:
        """Hash of the last entry; empty for an empty ledger."""
        return self.looks[-1].hash if self.looks else ""

    def _check(self, path: Path, head: str) -> None:
        before = ""
        for number, look in enumerate(self.looks, 1):
            if look.previous != before:
                raise UserError(
                    f"{path}: entry {number} does not follow from the entry before it, so the ledger was edited. "
                    "Restore it from Git; a look cannot be taken back."
                )
            named = {look.prompts: self.draws, **({look.problems: self.problems} if look.problems else {})}
            if any(fingerprint_of(known.get(name, [])) != name for name, known in named.items()):
                raise UserError(
                    f"{path}: the prompts of entry {number} do not have the fingerprint that the entry names, so the "
                    "ledger was edited. Restore it from Git."
                )
            before = look.hash
        if before != head:
            raise UserError(
                f"{path}: the last entry is not the one that the file names as its head, so the ledger was edited. "
                "Restore it from Git; a look cannot be taken back."
            )

    def marks(self, look: Look) -> list[str]:
        """The hashes of a look's prompts and of their problems."""
        return [*self.draws[look.prompts], *self.problems.get(look.problems, ())]

    def earlier(self, claim: str, hashes: Iterable[str], problems: Iterable[str] = ()) -> list[Look]:
        """The looks of this claim at any of these prompts, or at any of these problems in another form."""
        here = {*hashes, *problems}
        return [look for look in self.looks if look.claim == claim and not here.isdisjoint(self.marks(look))]

    def left(
        self, claim: str, hashes: Iterable[str], error: float, problems: Iterable[str] = ()
    ) -> tuple[float, float]:
        """What all looks together may spend, as the first of them said, and what is left of it."""
        before = self.earlier(claim, hashes, problems)
        whole = min([error, *(look.error or max(EARLIER, look.spent) for look in before)])
        return whole, whole - sum(look.spent for look in before)

    def affords(self, look: Look, hashes: Iterable[str], error: float, problems: Iterable[str] = ()) -> bool:
        """Whether earlier looks of the claim have left as much of the error as this one wants to spend."""
        return look.spent <= self.left(look.claim, hashes, error, problems)[1] + TOLERANCE

    def holds(self, look: Look, rerun: bool = False) -> bool:
        """Whether this look would only repeat one that was taken; `rerun` as for `Look.repeats`."""
        return any(look.repeats(old, rerun) for old in self.looks)

    def admit(
        self,
        look: Look,
        hashes: Sequence[str],
        error: float,
        *,
        problems: Sequence[str] = (),
        remedy: str = FRESH,
        rerun: bool = False,
    ) -> None:
        """Enter a look that is about to be taken, or to be published; a repeated one is there already.

        Args:
            look: the test; `previous` is filled in here.
            hashes: one hash for each calibration prompt, from `hash_of`.
            error: probability of a false certificate that all looks of the claim on these prompts may spend together;
                earlier looks may have said less.
            problems: one hash for each of the prompts' problems; none where nobody knows them.
            remedy: how fresh prompts are drawn, as a sentence.
            rerun: what counts as a repetition, see `Look.repeats`.

        Raises:
            UserError: earlier looks on these prompts have not left as much error as this look wants to spend.
        """
        if self.holds(look, rerun):
            return
        if not self.affords(look, hashes, error, problems):
            whole, left = self.left(look.claim, hashes, error, problems)
            raise UserError(
                f"The calibration prompts have already been judged for '{look.claim}' with another choice of settings, "
                f"which spent {whole - left:.3g} of the error {whole:.3g}; {max(left, 0):.3g} are left and this look "
                f"wants {look.spent:.3g}. {remedy} Several looks at the same prompts have to be planned before the "
                "first, so that they divide the error between them."
            )
        self.draws[look.prompts] = sorted(hashes)
        if problems:
            self.problems[look.problems] = sorted(problems)
        self.looks.append(replace(look, previous=self.head))


def packed(draws: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Lists of hashes as the file holds them."""
    return {key: " ".join(hashes) for key, hashes in sorted(draws.items())}


def unpacked(draws: Mapping[str, str]) -> dict[str, list[str]]:
    """Lists of hashes from the file."""
    return {key: hashes.split() for key, hashes in draws.items()}


def hash_of(prompt: Sequence[int]) -> str:
    """The hash that stands for one prompt, from its token ids [T]."""
    return digest(list(prompt))[:DIGITS]


def fingerprint_of(hashes: Iterable[str]) -> str:
    """The fingerprint of a set of prompts, whatever their order."""
    return digest(sorted(hashes))[:16]


def sequence_of(settings: Sequence[dict[str, Any]], budgets: Sequence[float], bound: str) -> str:
    """The fingerprint of a tested sequence: its settings in their order, the budgets, and the bound."""
    return digest([list(settings), sorted(budgets), bound])[:16]


def digest(value: Any) -> str:
    """SHA-256 of a value as canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


# ---- Looks at calibration prompts: recorded before the prompts are decoded, and again when the result is published.


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
            scope: what decodes, see `gistgate.certificates.calibration`.
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
