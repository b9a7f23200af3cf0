"""What the benchmarks compute of what they measure, and how a server is started."""

import pytest

from benchmarks import serving, speed
from benchmarks.serving import Round, Server, Waited
from gistgate.core.utils import UserError


def test_contenders_are_compared_on_equal_prompts():
    def times(*seconds: float) -> dict[str, object]:
        repeats = [[each] for each in seconds]
        return {"block": 2, "seconds": repeats, "tokens": [10] * len(seconds), "loops": 1}

    compared = speed.compared({"plain": times(4, 2), "fast": times(2, 1)}, ["plain"])
    fast = compared["fast"]
    assert fast["tokens_per_second"] == pytest.approx(20 / 3)
    assert fast["vs_plain"] == pytest.approx({"mean": 2.0, "low": 2.0, "high": 2.0})
    assert (fast["n"], fast["loops"]) == (2, 1) and "vs_plain" not in compared["plain"]


def test_no_prompt_comes_twice():
    ids = [[n, n] for n in range(10)]
    assert speed.batches_of(ids, 2, 4) == [ids[:2], ids[2:4], ids[4:6], ids[6:8]]
    assert speed.batches_of(ids, 4, 4) == [ids[:4], ids[4:8]]


def test_a_mistyped_name_is_refused_with_the_nearest_one():
    assert speed.names("fly,prob", ["fly", "prob"], "is not certified here") == ["fly", "prob"]
    with pytest.raises(UserError, match="'fyl' is not certified here. Did you mean 'fly'"):
        speed.names("prob,fyl", ["fly", "prob"], "is not certified here")


def test_servers_are_compared_round_by_round():
    plain = [Round(2.0, [Waited(10, 0.5, 2.0)]), Round(2.0, [Waited(10, 0.5, 2.0)])]
    loose = [Round(1.0, [Waited(10, 0.1, 1.0)]), Round(2.0, [Waited(12, 0.3, 2.5)])]
    figures = serving.against(loose, plain)
    assert figures["vs_plain"] == pytest.approx({"mean": 22 / 3 / 5, "low": 6 / 5, "high": 2.0})
    assert figures["first_token"] == pytest.approx(0.2)
    assert figures["between_tokens"] == pytest.approx((0.1 + 0.2) / 2)


def test_a_server_listens_on_this_machine_alone():
    server = Server("t", "float32", options=["--seed", "1"], gistgate={"strict": True})
    words = server.command(1234)
    assert words[words.index("--host") + 1] == "127.0.0.1" and words[-2:] == ["--seed", "1"]
    assert words[words.index("--additional-config") + 1] == '{"gistgate": {"strict": true}}'
