"""How well batches were filled: what files tell, and pieces that count once in whichever start they were decoded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gistgate.certificates.outcomes import Answer, cached
from gistgate.request.slots import Usage
from gistgate.request.statistics import Statistics
from pipeline.certification.usage import PieceUsage, as_json, keep_beside, kept_beside, summed, told
from pipeline.labels.cost import Cost


def test_a_file_tells_the_counts_and_the_share_of_idle_slots():
    found = as_json(Usage(busy=30, available=40, tokens=7, forwards=3))
    assert found == {"slots": 40, "slots_used": 30, "idle_share_of_slots": 0.25}
    assert told({"n": 5, **found}) == Usage(busy=30, available=40)
    assert found.items() <= Cost(slots=40, slots_used=30).as_json().items(), "passes of labels name theirs alike"


def test_nothing_decoded_has_no_share_and_a_file_of_before_tells_nothing():
    assert as_json(Usage()) == {"slots": 0, "slots_used": 0, "idle_share_of_slots": None}
    assert told(as_json(Usage())) == Usage()
    assert told({"n": 5}) is None and told(as_json(None)) is None


def test_slots_add_up_and_one_that_is_not_known_makes_the_sum_unknown():
    assert summed([Usage(3, 4), Usage(1, 6)]) == Usage(4, 10)
    assert summed([Usage(3, 4), None]) is None and summed([]) == Usage()


def test_what_lies_beside_a_piece_is_found_again(tmp_path: Path):
    piece = tmp_path / "train-00000.jsonl"
    assert kept_beside(piece) is None
    keep_beside(piece, Usage(busy=3, available=4))
    assert kept_beside(piece) == Usage(busy=3, available=4) and not piece.exists()


def decoder(usage: PieceUsage, folder: Path, decoded: list[int]) -> Any:
    """A start of a stage: every prompt that it decodes takes ten slots, of which nine hold a row."""

    def decode(_settings: dict[str, Any], prompts: Any, start: int) -> list[Answer]:
        decoded.append(start)
        for _ in prompts:
            usage.add(Usage(busy=9, available=10))
        return [Answer([1], Statistics()) for _ in prompts]

    return cached(decode, folder, "fly", watcher=usage)


def test_a_piece_counts_once_and_in_every_start_alike(tmp_path: Path):
    prompts = [{"ids": [n], "stops": [], "max_new_tokens": 4} for n in range(6)]
    first, second, decoded = PieceUsage(), PieceUsage(), list[int]()
    answers = decoder(first, tmp_path, decoded)
    answers({"theta": 0.5}, prompts[:2], 0)
    assert first.total == Usage(busy=18, available=20)
    answers = decoder(second, tmp_path, decoded)
    for start, size in ((0, 2), (2, 4), (0, 2)):  # the first piece is there; the last call asks for it again
        answers({"theta": 0.5}, prompts[start : start + size], start)
    assert decoded == [0, 2] and second.total == Usage(busy=54, available=60)
    third = PieceUsage()
    decoder(third, tmp_path, decoded)({"theta": 0.5}, prompts[2:], 2)
    assert decoded == [0, 2] and third.total == Usage(busy=36, available=40)


def test_a_piece_whose_slots_nobody_kept_makes_the_sum_unknown(tmp_path: Path):
    prompts = [{"ids": [1], "stops": [], "max_new_tokens": 4}]
    decoder(PieceUsage(), tmp_path, [])({}, prompts, 0)
    [beside] = tmp_path.glob("*.json")
    beside.unlink()
    usage = PieceUsage()
    [answer] = decoder(usage, tmp_path, [])({}, prompts, 0)
    assert answer.ids == [1] and usage.total is None
