"""Rollouts that have come to their end, kept the moment they do: a shard that was interrupted goes on behind them.

A walk or a pass of labels is made again from its beginning, and whatever it asks for that an earlier start has made is
handed out at once. In bfloat16 the rollouts that are left then share other batches, which near ties may notice, and
the first rollouts, which audit the ways of stopping early, may be others. What was read and scouted is paid twice.
"""

from __future__ import annotations

import json
import sqlite3
from dataclasses import asdict, fields, replace
from pathlib import Path
from time import perf_counter

from gistgate.block import Sampling
from gistgate.files import fingerprint
from gistgate.sqlite import opened
from pipeline.common.resume import Shards
from pipeline.labels.cost import Cost
from pipeline.labels.rollouts import ANSWERED, REJOINED, Ended, Rollout, Supply

PARTS = (REJOINED, ANSWERED)
"""Finishes of rollouts that stopped early."""
ENDS = ("eos", "stop", "length", *PARTS)
"""Finishes that tell an outcome; others are a supply's own reasons, such as that nobody wants it any more."""
LOST = "its rollouts are then made again"
"""What a damaged file costs."""


def kept_file(shards: Shards, index: int) -> Path:
    """Where the rollouts of a shard wait, beside the finished shards."""
    return shards.folder / f"rollouts-{index:05d}.sqlite"


class KeptRollouts:
    """The rollouts of one shard, and what they have cost."""

    def __init__(self, path: Path, cost: Cost) -> None:
        """Open or create the file; what an earlier start has spent is added to `cost`.

        Raises:
            UserError: the file is damaged or cannot be written.
        """
        self.path, self.cost = path, cost
        with opened(path, LOST) as base, base:
            base.execute("create table if not exists kept (key text primary key, ids text, finish text)")
            base.execute("create table if not exists spent (only_one integer primary key, cost text)")
            self._known = {key: Ended(json.loads(ids), end) for key, ids, end in base.execute("select * from kept")}
            row = base.execute("select cost from spent").fetchone()
        spent = Cost() if row is None else Cost(**json.loads(row[0]))
        for one in fields(Cost):
            setattr(cost, one.name, getattr(cost, one.name) + getattr(spent, one.name))
        self._started = perf_counter() - spent.seconds

    def over(self, supply: Supply, sampling: Sampling | None) -> Supply:
        """A supply that asks for the same rollouts, without those that are known."""
        return Known(supply, self, asdict(sampling or Sampling()))

    def find(self, key: str) -> Ended | None:
        """The rollout with this key, if it was made before."""
        return self._known.get(key)

    def keep(self, key: str, ended: Ended) -> None:
        """Write one that has ended, with the cost so far.

        Raises:
            UserError: the file cannot be written.
        """
        # Labels are counted when all outcomes are known, and the shard's own clock runs until then.
        spent = replace(self.cost, labels=0, seconds=perf_counter() - self._started)
        with opened(self.path, LOST) as base, base:
            write(base, key, ended, spent)
        self._known[key] = ended


def write(base: sqlite3.Connection, key: str, ended: Ended, spent: Cost) -> None:
    """Write one rollout and the cost in one transaction."""
    base.execute("insert or replace into kept values (?, ?, ?)", (key, json.dumps(ended.ids), ended.finish))
    base.execute("insert or replace into spent values (1, ?)", (json.dumps(asdict(spent)),))


class Known:
    """Stands in front of a supply: it is told at once what was made before, and asked for the rest."""

    def __init__(self, supply: Supply, kept: KeptRollouts, sampling: dict[str, object]) -> None:
        self.supply, self.kept, self.sampling = supply, kept, sampling

    def take(self, num: int) -> list[Rollout]:
        """At most `num` rollouts that nobody has made."""
        while taken := self.supply.take(num):
            if fresh := [rollout for rollout in taken if not self._told(rollout)]:
                return fresh
        return []

    def decided(self, rollout: Rollout, answer: list[int]) -> str | None:
        """As the supply says."""
        return self.supply.decided(rollout, answer)

    def end(self, rollout: Rollout, ended: Ended) -> None:
        """Keep it, and tell the supply."""
        if ended.finish in ENDS:
            self.kept.keep(self._key(rollout), ended)
        self.supply.end(rollout, ended)

    def _told(self, rollout: Rollout) -> bool:
        """Hand out the rollout if it is known; one that had stopped early only where it may stop there again."""
        ended = self.kept.find(self._key(rollout))
        if ended is None:
            return False
        reason = self.supply.decided(rollout, ended.ids)
        if reason is None and ended.finish in PARTS:
            return False
        # A whole one stays whole: where it could stop early now, it might have another outcome than it had.
        self.supply.end(rollout, ended if reason is None or reason in PARTS else Ended(ended.ids, reason))
        return True

    def _key(self, rollout: Rollout) -> str:
        text = rollout.text[: rollout.position]
        return fingerprint(rollout.problem, text, rollout.token, rollout.seed, self.sampling)
