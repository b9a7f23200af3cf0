"""Rows that take the slot of a finished one are decoded as if they were alone, and slots do not
stay empty.
"""

from typing import Any

import pytest
import torch

from gistgate.core.batches import PromptCache, decode_all
from gistgate.core.block import Sampling
from gistgate.core.decoder import Decoder
from gistgate.core.drafter import Drafter
from gistgate.core.guards import LoopGuard
from gistgate.core.parts import Terms
from gistgate.core.reader import WASTE
from gistgate.core.request import Generation, Row, Slots, Stop, Usage
from gistgate.core.session import Queue, QueuedRow, Session
from gistgate.core.utils import UserError
from gistgate.drafters.adaptive import AdaptiveDrafter, Costs, ModelOrTextDrafter, Option
from gistgate.drafters.model import ModelDrafter
from gistgate.drafters.suffix import SuffixDrafter
from gistgate.drafters.text import PromptLookup, TokenRecycling
from gistgate.rules import make_rule
from tests.architectures import greedy, pair, prompts
from tests.core.test_independence import seen
from tests.core.watching import HalfGate, Markers
from tests.rules.extremes import LOOSE
from tests.trees.growing import tree_drafter

MANY = prompts(5, 60, 1, 17, 2, 33, 9, 40, 3, 12)
SEEDS = list(range(30, 40))
ENDS = range(0, 259, 12)
"""Ids that end an answer: some after one token, some not before the limit."""
NUM = 24
RULES: list[tuple[str, dict[str, Any]]] = [
    ("exact", {}),
    ("fly", {"theta": 0.2, "window": 1, "strict_window": False}),
    ("csd", LOOSE["csd"]),
    ("regret-budget", {"budget": 3.0}),
    ("wisv", {"risk": 0.3}),
    ("random", {"rate": 0.4}),
    ("autojudge", {"risk": -1.0}),
    ("autojudge", {"risk": 0.5}),
]


def drafter_of(kind: str, name: str) -> Drafter:
    draft = pair(kind, noise=0.05)[1]
    options = [Option(PromptLookup()), Option(ModelDrafter(draft), 0.1)]
    drafters: dict[str, Any] = {
        "model": lambda: ModelDrafter(draft),
        "lookup": PromptLookup,
        "suffix": SuffixDrafter,
        "recycle": TokenRecycling,
        "choice": lambda: AdaptiveDrafter(options, verify=1.0, block=8, weight=16.0),
        "hybrid": lambda: ModelOrTextDrafter(
            ModelDrafter(draft), Costs(1.0, 0.1, {4: 1.0}), block=4
        ),
        "tree": lambda: tree_drafter(draft, nodes=8, width=2, branch=2),
    }
    drafter: Drafter = drafters[name]()
    return drafter


def decoder_of(
    rule: str = "exact",
    settings: dict[str, Any] | None = None,
    kind: str = "llama",
    draft: str = "model",
    **parts: Any,
) -> Decoder:
    judge = make_rule(rule, **(settings or {}))
    return Decoder(
        pair(kind)[0],
        drafter_of(kind, draft),
        judge,
        4,
        gate=HalfGate(),
        tokenizer=Markers(),
        **parts,
    )


def alone(decoder: Decoder, **request: Any) -> list[Any]:
    rows = zip(MANY, SEEDS, strict=True)
    return [seen(decoder.generate([prompt], seeds=[seed], **request))[0] for prompt, seed in rows]


def check_refilled(decoder: Decoder, batch_size: int = 3, **request: Any) -> list[Generation]:
    """Equal answers alone and in slots, which are returned."""
    request = {"max_new_tokens": NUM, "eos_ids": ENDS, **request}
    steps: list[int] = []
    answers = decode_all(
        decoder, MANY, batch_size=batch_size, seeds=SEEDS, progress=steps.append, **request
    )
    for (*text, counts), (*expected, counted) in zip(seen(answers), alone(decoder, **request)):
        assert text == expected
        extra = counted.pop("extra")
        assert counts.pop("extra") == pytest.approx(extra, abs=1e-3) and counts == counted
    assert steps == [1] * len(MANY)
    assert len({len(answer.ids) for answer in answers}) > 3
    return answers


def test_some_answers_end_with_their_first_token_and_others_at_the_limit():
    lengths = [len(ids) for ids, *_ in alone(decoder_of(), max_new_tokens=NUM, eos_ids=ENDS)]
    assert min(lengths) == 1 and max(lengths) == NUM


@pytest.mark.parametrize("rule, settings", RULES)
def test_every_kind_of_state_follows_its_row(rule: str, settings: dict[str, Any]):
    answers = check_refilled(decoder_of(rule, settings))
    is_strict = rule == "exact" or settings.get("risk", 0.0) < 0
    assert any(answer.statistics.loose for answer in answers) != is_strict


@pytest.mark.parametrize("draft", ["lookup", "suffix", "recycle", "choice", "hybrid", "tree"])
@pytest.mark.parametrize("rule, settings", [("exact", {}), ("autojudge", {"risk": 0.5})])
def test_every_drafter_follows_its_rows(draft: str, rule: str, settings: dict[str, Any]):
    check_refilled(decoder_of(rule, settings, draft=draft))


@pytest.mark.parametrize("kind", ["mistral", "gemma2", "gpt2"])
def test_windows_and_other_positions(kind: str):
    check_refilled(decoder_of("prob", {"r": 0.02}, kind))


@pytest.mark.parametrize("sampling", [Sampling(1.0), Sampling(0.7, top_k=20, top_p=0.9)])
def test_sampled_answers_do_not_depend_on_slots(sampling: Sampling):
    check_refilled(decoder_of(), sampling=sampling)


def test_guards_follow_their_rows():
    check_refilled(
        decoder_of("prob", {"r": 0.02}, guards=[LoopGuard(period=2, repeats=2, window=5)])
    )


@pytest.mark.parametrize("num", [0, 1, 2])
def test_answers_that_leave_no_room_for_a_draft(num: int):
    """The draft model reads nothing while there is no room, and rows come in beside it all the
    same.
    """
    answers = decode_all(decoder_of(), MANY, batch_size=3, max_new_tokens=num, eos_ids=ENDS)
    assert [answer.ids for answer in answers] == [
        ids for ids, *_ in alone(decoder_of(), max_new_tokens=num, eos_ids=ENDS)
    ]


def test_one_prompt_no_prompt_and_no_slots():
    decoder = decoder_of()
    [answer] = decode_all(decoder, MANY[:1], batch_size=4, max_new_tokens=NUM)
    assert answer.ids == greedy("llama", tuple(MANY[0]), NUM)
    assert decode_all(decoder, [], batch_size=4, max_new_tokens=NUM) == []
    with pytest.raises(UserError, match="batch of 0 rows"):
        decode_all(decoder, MANY, batch_size=0, max_new_tokens=NUM)


@pytest.mark.parametrize("draft", ["model", "lookup", "choice"])
def test_prompts_that_are_remembered_come_in_as_well(draft: str):
    decoder = decoder_of(draft=draft)
    memory = PromptCache(limit_mb=1)
    request: dict[str, Any] = {"max_new_tokens": NUM, "eos_ids": ENDS}
    expected = [ids for ids, *_ in alone(decoder, **request)]
    for _ in range(2):
        steps: list[int] = []
        answers = decode_all(
            decoder,
            MANY,
            batch_size=3,
            seeds=SEEDS,
            memory=memory,
            progress=steps.append,
            **request,
        )
        assert [answer.ids for answer in answers] == expected and steps == [1] * len(MANY)


def test_continued_texts_come_in_as_others_are_decided():
    """Memories are asked for when there is a slot, four of them at a time, and come back fit to go
    on from.
    """
    decoder = decoder_of("prob", {"r": 0.02})
    read = []

    def read_ahead() -> Any:
        for start in range(0, len(MANY), 4):
            read.append(len(MANY[start : start + 4]))
            yield from decoder.remember(MANY[start : start + 4])

    done = decoder.resume(
        read_ahead(),
        [(len(prompt), []) for prompt in MANY],
        [len(prompt) for prompt in MANY],
        max_new_tokens=NUM,
        is_decided=lambda row: "enough" if len(row.answer) > 2 * row.index else None,
        slots=Slots(3),
    )
    assert read == [4, 4, 2]
    for index, (prompt, (answer, memory)) in enumerate(zip(MANY, done, strict=True)):
        whole = decoder.generate([prompt], max_new_tokens=NUM)[0].ids
        assert answer.finish == "enough" and answer.ids == whole[: len(answer.ids)]
        assert 2 * index < len(answer.ids) <= 2 * index + 5
        assert memory is not None
        [(again, _)] = decoder.resume(
            [memory], [(len(memory.text), [])], [len(prompt)], max_new_tokens=NUM, remember=False
        )
        assert again.ids == whole


@pytest.mark.parametrize("number", [4, 16])
def test_in_a_long_run_less_than_a_tenth_of_the_slots_is_idle(number: int):
    """Scripted answers of 4 to 40 tokens, most of them short and few long, as real ones are."""
    drawn = torch.rand(20 * number, generator=torch.Generator().manual_seed(0))
    ends = (4 + 36 * drawn.square()).long().tolist()
    usage = Usage()
    plain = Decoder(pair("llama")[0], None, make_rule("exact"), 0)
    done = plain.resume(
        plain.remember(prompts(*[5] * len(ends))),
        [(5, [])] * len(ends),
        [5] * len(ends),
        max_new_tokens=99,
        is_decided=lambda row: "scripted" if len(row.answer) == ends[row.index] else None,
        remember=False,
        slots=Slots(number, usage=usage),
    )
    assert [len(answer.ids) for answer, _ in done] == ends and usage.busy == sum(ends)
    assert 0.9 * usage.available < usage.busy < usage.available


def test_a_refused_prompt_is_named_by_its_own_place():
    """Although the longest is decoded first."""
    for wrong, sentence in (([10**6], "Prompt 1 holds the token id"), ([], "Prompt 1 is empty")):
        with pytest.raises(UserError, match=sentence):
            decode_all(decoder_of(), [[5], wrong, [5, 6, 7]], batch_size=2, max_new_tokens=4)


def test_holes_are_given_back_while_no_row_leaves():
    """Some row of a batch nearly always keeps most of its draft, so that the cache would grow as if
    all of them did.
    """
    target, draft = pair("llama", noise=0.1)
    held = []

    class Watching:
        layers = ()
        wants_q = False

        def __call__(self, _block: Any, _acceptance: Any, rows: Any) -> None:
            held.append((session.verifier.reader.slots, max(len(row.text) for row in rows)))

    decoder = Decoder(target, ModelDrafter(draft), make_rule("exact"), 4, observer=Watching())
    batch = prompts(*[6] * 8)
    rows = [QueuedRow(Row(index, list(prompt), 6, index)) for index, prompt in enumerate(batch)]
    session = Session(Terms(decoder.parts, Stop(60), Sampling(), Slots(8)), Queue(rows, 8))
    with torch.inference_mode():
        answers = [answer.ids for answer, _ in session.run()]
    assert answers == [greedy("llama", tuple(prompt), 60) for prompt in batch]
    assert held and all(slots <= WASTE * longest + 5 for slots, longest in held)
