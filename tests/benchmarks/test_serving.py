"""What is asked of servers is checked before one starts, finished levels are kept, and servers end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import servers, serving
from benchmarks.answers import asked
from benchmarks.levels import check_levels, levels_of
from benchmarks.load import Level, Round, Waited, drive
from gistgate.errors import UserError
from gistgate.files import read_json
from pipeline.common.operating_point import Operating
from pipeline.pairs.source import ModelSource, PairSource
from tests.integrations.endpoints.scripted import Script
from tests.integrations.endpoints.scripted import serving as scripted

PAIR = PairSource(ModelSource("some/target"), ModelSource("some/draft"))


def test_every_level_has_its_requests():
    found = levels_of("1, 64", "0.5,4", each=4, most=100, seconds=10.0)
    assert found == {Level(users=1): 4, Level(users=64): 100, Level(rate=0.5): 5, Level(rate=4.0): 40}
    check_levels(found, 100)


@pytest.mark.parametrize(
    ("users", "rates", "said"),
    [
        ("1,8", "", "25 test prompts, and a round at 8 users asks 32. Lower --each, --most or --users"),
        ("", "2,4", "25 test prompts, and a round at 4 per second asks 40. Lower --seconds or --rates"),
        ("", "", "No load is asked for. Name --users, --rates or both"),
        ("x", "", "'x' in --users is no positive whole number"),
        ("", "0", "'0' in --rates is no positive number"),
    ],
)
def test_a_load_that_cannot_be_is_refused(users: str, rates: str, said: str):
    with pytest.raises(UserError, match=said):
        check_levels(levels_of(users, rates, each=4, most=256, seconds=10.0), 25)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The benchmark with 25 prompts and servers that are nothing but their names; returns those that started."""
    names: list[str] = []

    @contextmanager
    def server(_configuration: Any, log: Path) -> Iterator[str]:
        names.append(log.stem)
        yield log.stem

    points = {"fly": Operating("fly", "fly", "model", 8, {"theta": 0.5})}
    about = {"pair": SimpleNamespace(name="tiny"), "points": points, "request": {"max_new_tokens": 4}}
    workload = SimpleNamespace(ids=[[place] for place in range(25)], **about)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(serving.Workload, "load", lambda _num: workload)
    monkeypatch.setattr(serving, "read_pair", lambda _name: PAIR)
    monkeypatch.setattr(serving, "serving", server)
    return names


def test_nothing_starts_before_the_options_are_right(started: list[str]):
    with pytest.raises(UserError, match="a round at 8 users asks 32"):
        serving.main(users="1,8")
    with pytest.raises(UserError, match="'strikt' is no server of this run. Did you mean 'strict'"):
        serving.main(users="1", only="strikt")
    assert started == []


def test_finished_levels_are_written_when_a_later_one_fails(started: list[str], monkeypatch: Any, tmp_path: Path):
    def driven(_address: str, _model: str, _prompts: Any, level: Level, _length: int, seed: int) -> Round:
        if level.users == 2:
            raise UserError("The server did not answer a request.")
        return Round(1.0 + seed, [Waited(30, 0.1, 0.5)])

    monkeypatch.setattr(serving, "drive", driven)
    with pytest.raises(UserError, match="did not answer"):
        serving.main(users="1,2", only="strict, fly", conditions="quiet", results=tmp_path)
    (path,) = tmp_path.glob("serving-*.json")
    found = read_json(path)
    assert list(found["levels"]) == ["1 users"] and found["conditions"] == "quiet"
    assert set(found["levels"]["1 users"]) == set(found["servers"]) == {"plain", "strict", "fly"}
    assert found["levels"]["1 users"]["fly"]["vs_plain"] == {"mean": 1, "low": 1, "high": 1, "kind": "range"}
    assert started == ["server-plain", "server-strict", "server-fly"]


def test_servers_differ_in_their_drafts_and_rules_alone(started: list[str]):
    workload = serving.Workload.load(1)
    found = serving.configurations(workload, "python", 6, Path("gate"), 16, [])
    assert list(found) == ["plain", "strict", "fly", "gate", "gate-aside"]
    drafts = {"method": "draft_model", "model": "some/draft", "num_speculative_tokens": 6}
    assert found["plain"].speculation is None and found["plain"].gistgate is None
    assert {name: one.gistgate for name, one in found.items()} == {
        "plain": None, "strict": {"strict": True}, "fly": {"rule": "fly", "settings": {"theta": 0.5}},
        "gate": {"gate": "gate"}, "gate-aside": {"gate": "gate"},
    }  # fmt: skip
    assert all(found[name].speculation == drafts for name in ("strict", "fly", "gate"))
    schedule = {"num_speculative_tokens_per_batch_size": [[1, 16, 6], [17, serving.MOST, 0]]}
    assert found["gate-aside"].speculation == {**drafts, **schedule}


def test_a_pair_without_a_draft_model_is_refused(started: list[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(serving, "read_pair", lambda _name: PairSource(ModelSource("some/target"), drafter="suffix"))
    with pytest.raises(UserError, match="no draft model.*Choose a pair with a draft model"):
        serving.main(users="1")
    assert started == []


def test_one_request_that_fails_is_one_sentence():
    with scripted(Script(statuses={8: 500})) as url:
        address = url.removesuffix("/v1")
        with pytest.raises(UserError, match="did not answer a request .InternalServerError.* no 8 today.*Its log"):
            drive(address, "adder", [[7], [8]], Level(users=2), length=20, seed=0)
        row = {"ids": [8], "max_new_tokens": 4, "stops": []}
        with pytest.raises(UserError, match="did not answer a request"):
            asked(address, [row], 1, lambda *_: 1.0)


def test_a_server_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(servers, "STOP", 0.2)
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); signal.pause()"
    process = subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"up\n"
    servers.stop(process)
    assert process.returncode == -9
    process.stdout.close()
