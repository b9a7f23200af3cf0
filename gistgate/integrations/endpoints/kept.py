"""Answers of servers that have come, in one SQLite file: each is kept the moment it is whole."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

from gistgate.errors import UserError
from gistgate.files import fingerprint
from gistgate.integrations.endpoints.server import Asked, Endpoint, Served

Waiting = dict[Future[Served], str]
"""Requests on their way, and the key of each."""


class KeptAnswers:
    """Asks a server once for each request, however often a run is started."""

    def __init__(self, path: Path) -> None:
        """Open or create the file.

        Raises:
            UserError: the file is none that this class wrote.
        """
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        with closing(self._open()) as base, base:
            base.execute("create table if not exists answers (key text primary key, answer text not null)")

    def answers(self, endpoint: Endpoint, asked: Sequence[Asked], concurrent: int) -> list[Served]:
        """Answers in the order of the requests, at most `concurrent` of them on their way at a time.

        Raises:
            UserError: a request failed; what came before it is kept.
        """
        keys = [fingerprint(endpoint.described(), asdict(one)) for one in asked]
        with closing(self._open()) as base, ThreadPoolExecutor(max(concurrent, 1)) as pool:
            rows = base.execute("select key, answer from answers")
            known = {key: Served(**json.loads(answer)) for key, answer in rows}
            missing = dict.fromkeys(key for key in keys if key not in known)
            request = dict(zip(keys, asked, strict=True))
            waiting: Waiting = {pool.submit(endpoint.answer, request[key]): key for key in missing}
            try:
                failures = [error for one in as_completed(waiting) if (error := self._keep(base, one, waiting, known))]
            finally:
                pool.shutdown(wait=False, cancel_futures=True)  # after Ctrl-C nobody waits for the whole queue
        if failures:
            raise failures[0]
        return [known[key] for key in keys]

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
        known[key] = done.result()
        with base:
            base.execute("insert into answers values (?, ?)", (key, json.dumps(asdict(known[key]))))
        return None

    def _open(self) -> sqlite3.Connection:
        try:
            base = sqlite3.connect(self.path)
            base.execute("pragma schema_version")
        except sqlite3.DatabaseError as error:
            raise UserError(
                f"{self.path} cannot be read ({error}). Remove it; the answers are then asked again."
            ) from error
        return base
