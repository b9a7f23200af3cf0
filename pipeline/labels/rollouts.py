"""Rollouts: how a text goes on behind one forced token. Whoever wants some supplies them while others are made."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from transformers import PreTrainedTokenizerBase

from gistgate.block import Sampling
from gistgate.request.stopping import Stop
from pipeline.common.progress import bar

REJOINED, ANSWERED = "rejoined", "answered"
"""Finish of a rollout that came back to the words of its reference, and of one whose answer nothing can change."""

Answered = Callable[["Rollout", list[int]], bool]
"""(rollout, answer so far as token ids) -> whether what the task finds in the answer cannot change any more."""
Decided = Callable[["Rollout", list[int]], str | None]
"""(rollout, answer so far as token ids) -> why it may end here; None: it has to go on."""
Outcome = TypeVar("Outcome")


@dataclass(frozen=True, eq=False)
class Rollout:
    """One continuation to make."""

    problem: int
    """Index of its prompt."""
    prompt: list[int]
    """Prompt as token ids."""
    text: list[int]
    """The answer that the prefix is taken from, as token ids."""
    position: int
    """Tokens of the text to keep."""
    token: int
    """The token to force behind them."""
    reference: list[int]
    """The target's own answer; a rollout that rejoins it may stop early."""
    seed: int = 0


@dataclass(frozen=True)
class Ended:
    """A rollout that has come to its end, or as far as its outcome needs."""

    ids: list[int]
    """The whole answer, the kept prefix and the forced token included, as token ids."""
    finish: str
    """As of `gistgate.request.rows.Generation`, or REJOINED, or ANSWERED, or a reason of the supply's own."""


class Supply(Protocol):
    """Asks for rollouts, also for such as depend on how others end."""

    def take(self, num: int) -> list[Rollout]:
        """At most `num` rollouts to make next; none: there is nothing to make before another one has ended."""

    def decided(self, rollout: Rollout, answer: list[int]) -> str | None:
        """Why a rollout may end here; None: it has to go on. `answer`: what there is of it, as token ids."""

    def end(self, rollout: Rollout, ended: Ended) -> None:
        """Take in one that has ended."""


class Serves(Protocol):
    """Makes rollouts, many at once."""

    def serve(self, supply: Supply, sampling: Sampling | None = None) -> None:
        """Make what `supply` asks for until it asks for nothing more; greedily by default."""


class Listed(Generic[Outcome]):
    """A supply of rollouts that are all known beforehand."""

    def __init__(
        self,
        rollouts: Sequence[Rollout],
        decided: Decided,
        outcome: Callable[[Rollout, Ended], Outcome],
        first: Collection[Rollout] = (),
    ) -> None:
        """`outcome` is what is wanted of each of them; those of `first` are made before the others."""
        self.decided, self.outcome = decided, outcome
        self._asked, self._found = rollouts, dict[Rollout, Outcome]()
        self._shown: Any = bar(title=None, unit="rollout")
        # Rollouts that have about as much of the answer ahead of them end together.
        self._waiting = sorted(rollouts, key=lambda one: (one not in first, one.position - len(one.reference)))

    def take(self, num: int) -> list[Rollout]:
        """The next `num`."""
        taken, self._waiting = self._waiting[:num], self._waiting[num:]
        return taken

    def end(self, rollout: Rollout, ended: Ended) -> None:
        """Keep what is wanted of it."""
        self._found[rollout] = self.outcome(rollout, ended)
        self._shown.update(1)

    def made_by(self, roller: Serves, sampling: Sampling | None = None, title: str | None = None) -> list[Outcome]:
        """What is wanted of every rollout, in the order of the rollouts; `title` shows a progress bar."""
        with bar(title=title, unit="rollout", total=len(self._asked)) as self._shown:
            roller.serve(self, sampling)
        return [self._found[rollout] for rollout in self._asked]


def decided(rollout: Rollout, answer: list[int], rejoin: int | None, answered: Answered | None) -> str | None:
    """Whether a rollout's outcome is known: it came back to its reference's words, or its answer is given.

    Args:
        rollout: which one.
        answer: what there is of it, as token ids.
        rejoin: tokens in a row that have to equal the reference's; None: however many do, it goes on.
        answered: tells whether its answer is given, which ends it; None: never.
    """
    # All of it is looked at: an audit that was still going on may have passed over the place.
    if rejoin is not None and rejoined_at(rollout, answer, rejoin) is not None:
        return REJOINED
    return ANSWERED if answered is not None and answered(rollout, answer) else None


def rejoined_at(rollout: Rollout, answer: Sequence[int], num: int) -> int | None:
    """Where `num` tokens in a row, all behind the forced one, stand in the reference as well; None if nowhere."""
    reference = rollout.reference
    grams = {tuple(reference[at : at + num]) for at in range(len(reference) - num + 1)}
    starts = range(rollout.position + 1, len(answer) - num + 1)
    return next((at for at in starts if tuple(answer[at : at + num]) in grams), None)


def stop_of(
    tokenizer: PreTrainedTokenizerBase | None,
    *,
    max_new_tokens: int,
    eos_ids: Collection[int] = (),
    stops: Sequence[str] = (),
) -> Stop:
    """What ends an answer, of the arguments that all prompts share."""
    return Stop(max_new_tokens, frozenset(eos_ids), tuple(stop for stop in stops if stop), tokenizer)
