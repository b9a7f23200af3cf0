"""What the benchmarks compute of what they measure, and which loads and batches they ask for."""

from pathlib import Path

import pytest

from benchmarks import serving, speed
from benchmarks.serving import Configuration, Level, Round, Waited
from gistgate.core.request import Statistics
from gistgate.core.utils import UserError
from gistgate.measure.speed import Contender
from gistgate.measure.statistics import over_rounds

FAST = Contender("a", lambda batch: ([ids[:1] for ids in batch], Statistics(forwards=1)), 4)


def test_contenders_are_compared_on_equal_prompts():
    def entry(*seconds: float) -> dict[str, object]:
        return {
            "block": 2,
            "seconds": [[one] for one in seconds],
            "tokens": [10] * len(seconds),
            "loops": 1,
        }

    times = {"plain": entry(4, 2), "fast": entry(2, 1), "row by row: fast": entry(6, 3)}
    found = speed.compared(times, ["plain", "row by row: plain"])
    assert set(found) == {"plain", "fast"} and found["fast"]["tokens_per_second"] == pytest.approx(
        20 / 3
    )
    assert found["fast"]["vs_plain"] == pytest.approx({"mean": 2.0, "low": 2.0, "high": 2.0})
    assert found["fast"]["vs_batch_1"]["mean"] == pytest.approx(3.0)
    assert "vs_plain" not in found["plain"] and (found["fast"]["n"], found["fast"]["loops"]) == (
        2,
        1,
    )


def test_rows_one_by_one_are_the_rows_of_the_batch_and_no_prompt_comes_twice():
    ids = [[n, n] for n in range(10)]
    assert speed.row_by_row(FAST).decode(ids)[0] == FAST.decode(ids)[0]
    assert [len(batch) for batch in speed.batches_of(ids, 2, 4)] == [2] * 4
    with pytest.raises(UserError, match="Name sizes from 1 to 2 with --batches"):
        speed.batches_of(ids, 3, 100)


def test_loads_are_closed_loops_of_users_and_open_loops_of_arrivals():
    levels = serving.levels_of("1,100", "0.5", each=4, most=256, seconds=9.0)
    assert levels == {Level(users=1): 4, Level(users=100): 256, Level(rate=0.5): 5}
    assert [one.name for one in levels] == ["1 users", "100 users", "0.5 per second"]
    assert serving.arrivals(3, Level(users=2), 0) == [0.0] * 3
    times = serving.arrivals(400, Level(rate=4.0), 0)
    assert (
        times == sorted(times)
        and 80 < times[-1] < 120
        and times == serving.arrivals(400, Level(rate=4.0), 0)
    )
    for users, rates in (("", ""), ("", "inf"), ("1.5", "")):
        with pytest.raises(UserError):
            serving.levels_of(users, rates, 4, 256, 9.0)


def test_servers_are_compared_round_by_round():
    plain = [Round(2.0, [Waited(10, 0.5, 2.0)]), Round(2.0, [Waited(10, 0.5, 2.0)])]
    own = [Round(1.0, [Waited(10, 0.1, 1.0)]), Round(2.0, [Waited(12, 0.3, 2.5)])]
    found = serving.against(own, plain)
    assert found["vs_plain"] == pytest.approx(
        {"mean": 22 / 3 / 5, "low": 6 / 5, "high": 2.0, "kind": "range"}
    )
    assert found["best_tokens_per_second"] == 10.0 and found["between_tokens"] == pytest.approx(
        (0.1 + 0.2) / 2
    )
    assert over_rounds(lambda x, axis: x.mean(axis), [1.0, 2.0] * 4)["kind"] == "bootstrap"


def test_a_server_listens_on_this_machine_alone():
    words = Configuration(
        Path("t"), {"method": "x"}, {"strict": True}, options=["--seed", "1"]
    ).command(1234)
    assert words[words.index("--host") + 1] == "127.0.0.1" and words[-2:] == ["--seed", "1"]
    assert words[words.index("--additional-config") + 1] == '{"gistgate": {"strict": true}}'
