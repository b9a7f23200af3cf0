"""Answers of servers that have come, in one SQLite file: each is kept the moment it is whole, until its run is over."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path

from gistgate.files import fingerprint
from gistgate.integrations.endpoints.server import Asked, Endpoint, Served
from gistgate.sqlite import opened

Waiting = dict[Future[Served], str]
"""Requests on their way, and the key of each."""


class KeptAnswers:
    """Asks a server once for each request, however often a run is started."""

    def __init__(self, path: Path, run: str) -> None:
        """Open or create the file.

        Args:
            path: the file, which several runs may share.
            run: id of the run. Answers of other runs are not used: a server may have been changed in between.

        Raises:
            UserError: the file is none that this class wrote, or cannot be written.
        """
        self.path, self.run = path, run
        with self._base() as base, base:
            base.execute("create table if not exists kept (run text, key text, answer text, primary key (run, key))")

    def __len__(self) -> int:
        """Answers of this run that have come."""
        with self._base() as base:
            return int(base.execute("select count(*) from kept where run = ?", (self.run,)).fetchone()[0])

    def answers(self, endpoint: Endpoint, asked: Sequence[Asked], concurrent: int) -> list[Served]:
        """Answers in the order of the requests, at most `concurrent` of them on their way at a time.

        Raises:
            UserError: a request failed, or an answer cannot be written; what came before it is kept.
        """
        keys = [fingerprint(endpoint.described(), asdict(one)) for one in asked]
        with self._base() as base:
            rows = base.execute("select key, answer from kept where run = ?", (self.run,))
            known = {key: Served(**json.loads(answer)) for key, answer in rows}
            request = {key: one for key, one in zip(keys, asked, strict=True) if key not in known}
            pool = ThreadPoolExecutor(max(concurrent, 1))
            waiting: Waiting = {pool.submit(endpoint.answer, one): key for key, one in request.items()}
            try:
                failures = [error for one in as_completed(waiting) if (error := self._keep(base, one, waiting, known))]
            except BaseException:
                endpoint.hang_up()  # after Ctrl-C nobody waits for a server, and what has come is kept
                for one in [one for one in waiting if one.done() and waiting[one] not in known]:
                    self._keep(base, one, waiting, known)
                raise
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
        if failures:
            raise failures[0]
        return [known[key] for key in keys]

    def finish(self) -> None:
        """Forget the answers of this run: the next one asks the servers as they are then."""
        with self._base() as base, base:
            base.execute("delete from kept where run = ?", (self.run,))

    def _keep(
        self, base: sqlite3.Connection, done: Future[Served], waiting: Waiting, known: dict[str, Served]
    ) -> BaseException | None:
        """Keep one answer; after a failure, which is returned, only requests on their way are still waited for."""
        if done.cancelled():
            return None
        if (error := done.exception()) is not None:
            for other in waiting:
                other.cancel()
            return error
        key = waiting[done]
        with base:
            base.execute(
                "insert or ignore into kept values (?, ?, ?)", (self.run, key, json.dumps(asdict(done.result())))
            )
        known[key] = done.result()
        return None

    def _base(self) -> AbstractContextManager[sqlite3.Connection]:
        return opened(self.path, "the answers are then asked again")
