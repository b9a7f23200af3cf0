"""The loop guard of the vLLM plug-in closes as the library's own does, for loops that hold loose
tokens.
"""

from random import Random
from typing import Any

import torch

from gistgate.core.guards import LoopGuard
from gistgate.vllm.loops import DeviceLoopGuard

WINDOW = 8
LOOP = [1, 2] * 4
"""A loop of period 2 at the end of its last token alone."""


def guard(slots: int = 1, **settings: int) -> DeviceLoopGuard:
    kind: Any = type("Guard", (DeviceLoopGuard,), {"window": WINDOW, **settings})
    made: DeviceLoopGuard = kind(slots, torch.device("cpu"))
    return made


def write(
    made: DeviceLoopGuard, *ids: int, loose: bool = False, slot: int = 0, read: int = -1
) -> bool:
    """Let a request write tokens in one round; returns whether its gate is closed behind them."""
    round_ = [[slot], [read], [[*ids, -1]], [loose]]
    made.saw(*map(torch.tensor, round_))
    return bool(made.closed_S[slot] > 0)


def test_only_a_loop_with_a_loose_token_in_it_closes_the_gate():
    made = guard()
    assert not any(write(made, *LOOP) for _ in range(4)), "the target itself may repeat itself"
    assert write(made, 1, 2, loose=True)
    made = guard()
    assert [write(made, one, loose=place == 2) for place, one in enumerate(LOOP)] == [False] * 7 + [
        True
    ]


def test_the_gate_opens_again_behind_the_window():
    made = guard()
    assert write(made, *LOOP, loose=True)
    assert [write(made, token) for token in range(10, 10 + WINDOW)] == [True] * (WINDOW - 1) + [
        False
    ]
    assert not write(made, *LOOP), "there is no loose token since the last alarm"
    assert write(made, 1, 2, loose=True)


def test_requests_do_not_close_each_other_and_a_slot_begins_anew():
    made = guard(slots=2)
    assert not write(made, *LOOP[:6], loose=True, slot=1)
    assert write(made, *LOOP, loose=True, slot=0) and made.closed_S[1] == 0
    made.forget(0)
    assert not write(made, *LOOP[6:], loose=True, slot=0)
    assert write(made, *LOOP[6:], slot=1), "its loose token stands before its loop"


PERIOD, REPEATS, ROUNDS, LONGEST = 5, 3, 60, 4


def wandering(rng: Random) -> list[int]:
    """A text over three ids that goes on at random and now and then repeats itself, with a period
    of up to 7.
    """
    text: list[int] = []
    while len(text) < ROUNDS * LONGEST:
        text += rng.choices(range(3), k=rng.randint(7, 12))
        period = rng.randint(1, PERIOD + 2)
        for _ in range(rng.randint(period, period * REPEATS)):
            text.append(text[-period])
    return text


def test_random_texts_are_loops_where_the_librarys_guard_finds_a_period():
    """With a window of one token the gate is closed exactly behind the rounds in which a loop
    stood.
    """
    rng, slots = Random(0), 40
    ours, theirs = (
        guard(slots, window=1, period=PERIOD, repeats=REPEATS),
        LoopGuard(PERIOD, REPEATS, span=10**6),
    )
    texts, ends = [wandering(rng) for _ in range(slots)], [0] * slots
    found, expected = [], []
    for number in range(ROUNDS):
        order = rng.sample(range(slots), slots)
        lengths = [rng.randint(1, LONGEST) for _ in range(slots)]
        rows = [
            [*texts[slot][ends[slot] :][: lengths[slot]], *[-1] * (LONGEST - lengths[slot])]
            for slot in order
        ]
        read_B = torch.tensor([texts[slot][ends[slot] - 1] if number else -1 for slot in order])
        ours.saw(
            torch.tensor(order), read_B, torch.tensor(rows), torch.ones(slots, dtype=torch.bool)
        )
        found += (ours.closed_S > 0).tolist()
        for slot, text in enumerate(texts):
            new = range(ends[slot] + 1, ends[slot] + lengths[slot] + 1)
            expected.append(any(theirs.is_loop(text[:end]) for end in new))
            ends[slot] += lengths[slot]
    assert found == expected
    assert 0.05 < sum(expected) / len(expected) < 0.95
