"""The compiled engine writes what the eager one writes, with the memory and the programs of earlier
requests too.
"""

import warnings
from itertools import chain
from typing import Any

import pytest
import torch

from benchmarks.gpu import gate_of
from gistgate.compiled import memory as store
from gistgate.compiled import program, rounds
from gistgate.core.block import Sampling
from gistgate.core.decoder import Decoder
from gistgate.core.request import Slots, Usage
from gistgate.core.utils import UserError
from gistgate.drafters.model import ModelDrafter
from gistgate.drafters.text import PromptLookup
from gistgate.models.packed import quantise
from gistgate.rules import RULES, make_rule
from tests.architectures import greedy, pair, prompts, tiny_model
from tests.compiled.test_fall_back import FALLS_BACK
from tests.core.test_independence import seen
from tests.core.watching import HalfGate, Markers
from tests.rules.extremes import LOOSE, LOSSLESS, OPEN

BATCH = prompts(5, 17, 1, 10)
"""A ragged batch; the third prompt has no token before its last."""
NUM = 20
"""New tokens."""
FEW = 24
"""Ids of a vocabulary in which prompt lookup finds something at every turn."""
EXACT = make_rule("exact")
HAS_COMPILER = program.missing_compiler(torch.device("cpu")) is None


def both(
    models: Any,
    rule: Any,
    block: int,
    batch: list[list[int]] = BATCH,
    drafter: str = "model",
    **request: Any,
) -> Any:
    """What either engine writes and counts; a fall-back is an error."""
    answers, (target, draft) = [], pair(models) if isinstance(models, str) else models
    for engine in ("eager", "compiled"):
        made: Any = ModelDrafter(draft) if drafter == "model" else PromptLookup()
        decoder = Decoder(
            target, made, rule, block, gate=HalfGate(), tokenizer=Markers(), engine=engine
        )
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            answers.append(seen(decoder.generate(batch, max_new_tokens=NUM, **request)))
    return answers


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is ready from earlier requests."""
    monkeypatch.setattr(store, "_stores", type(store._stores)())


@pytest.mark.parametrize("block", [0, 1, 4])
@pytest.mark.parametrize("rows", [1, 3, 4])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "gpt2"])
def test_it_writes_the_greedy_texts(traced: None, kind: str, rows: int, block: int):
    eager, compiled = both(kind, EXACT, block, BATCH[:rows])
    assert compiled == eager
    assert [ids for ids, *_ in compiled] == [
        greedy(kind, tuple(prompt), NUM) for prompt in BATCH[:rows]
    ]


WHOLE, CUT = Sampling(0.9), Sampling(1.2, top_k=12, top_p=0.95)
"""The second one forbids tokens that are drafted all the same."""
AS_USUAL: list[tuple[str, dict[str, Any]]] = [
    (name, LOOSE.get(name, {}))
    for name, rule in RULES.items()
    if rule.temperatures != "greedy" and (name == "csd" or name not in FALLS_BACK)
]
"""Rules that are programs; of `csd` only an online table is none."""
REPLACING: list[tuple[str, dict[str, Any]]] = [
    ("typical", {"superset": False, "scale": 0.3}),
    ("ensemble", {"w": 0.2, "superset": False}),
    ("fsd", {"threshold": 0.2, "reduced": False, "replacement": "p"}),
    ("sgl-threshold", {"acc": 0.02}),
]
"""Settings that stand in place of the strict test and draw the own token in another way."""


@pytest.mark.parametrize(
    ("rule_id", "settings", "drafter", "sampling"),
    [
        (rule_id, settings, drafter, sampling)
        for rule_id, settings in AS_USUAL + REPLACING
        for drafter, sampling in (("model", WHOLE), ("model", CUT), ("lookup", CUT))
        if drafter == "model" or "q" not in RULES[rule_id].needs
    ],
)
def test_every_rule_draws_the_same_tokens(
    traced: None, rule_id: str, settings: dict[str, Any], drafter: str, sampling: Sampling
):
    rule, batch = make_rule(rule_id, **settings), prompts(5, 17, 1, 10, vocabulary=FEW)
    request = {"sampling": sampling, "seeds": [3, 1, 4, 1], "eos_ids": {23}}
    eager, compiled = both(pair("llama", FEW, noise=0.1), rule, 4, batch, drafter, **request)
    assert compiled == eager
    assert any(counts["loose"] for *_, counts in eager) == (rule_id not in LOSSLESS)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.8)])
def test_large_drafts_are_programs_of_one_step(
    traced: None, fresh: None, sampling: Sampling, monkeypatch: pytest.MonkeyPatch
):
    """Steps of one draft are the same programs whatever K is, since building them takes long."""
    monkeypatch.setattr(rounds, "MOST_LAYERS", 0)
    for block in (2, 5):
        eager, compiled = both("llama", EXACT, block, sampling=sampling, seeds=[3, 1, 4, 1])
        assert compiled == eager
    names = [key[2:4] for key in store.store_of(pair("llama")[1]).programs]
    built = [name for name in names if name[0] != "draft"]  # whole blocks call those of one step
    assert sorted(built, key=str) == [
        ("draft token", 1),
        ("draft token", 2),
        ("prefill", rounds.STRETCH["cpu"]),
    ]
    assert sorted(name[1] for name in names if name[0] == "draft") == [2, 5]


def test_protocol_tokens_are_strict_in_programs_too(traced: None):
    """Every other token is accepted loosely; a second request on the same programs protects other
    tokens.
    """
    target, draft = pair("llama", noise=0.1)
    answers: dict[str, list[Any]] = {"eager": [], "compiled": []}
    for engine, found in answers.items():
        for protected in ((), tuple(range(3, 130))):
            rule = make_rule("random", rate=1.0)
            decoder = Decoder(target, ModelDrafter(draft), rule, 4, engine=engine)
            decoder = decoder.having(protocol_ids=protected)
            for ends in ([], list(range(200, 259))):
                found.append(
                    seen(
                        decoder.generate(
                            BATCH, max_new_tokens=NUM, eos_ids=ends, seeds=[1, 2, 3, 4]
                        )
                    )
                )
            assert not decoder.engine.fell_back
    assert answers["eager"] == answers["compiled"]
    assert (
        len({str(one) for one in answers["compiled"]}) == 4
    )  # protection and ends change the texts


@pytest.mark.parametrize("block", [0, 3])
def test_without_a_draft_model(traced: None, block: int):
    eager, compiled = both("llama", EXACT, block, drafter="lookup")
    assert compiled == eager


def test_stops_inside_a_block(traced: None):
    text = greedy("llama", tuple(BATCH[0]), NUM)
    eager, compiled = both("llama", EXACT, 4, eos_ids=[text[6]])
    assert compiled == eager and compiled[0][0] == text[: text.index(text[6]) + 1]


@pytest.mark.parametrize("heavy", [False, True])
def test_texts_longer_than_a_stretch_and_one_session_after_another(
    traced: None, fresh: None, monkeypatch: pytest.MonkeyPatch, heavy: bool
):
    """Memory is used again, full of the request before; heavy models read prompts without a
    program.
    """
    monkeypatch.setitem(rounds.STRETCH, "cpu", 8)
    if heavy:  # as few tokens at a time as memory for the scores allows
        for name, value in (("HEAVY", 0), ("FEWEST", 3), ("MOST_SCORES", 1)):
            monkeypatch.setattr(rounds, name, value)
    for batch in (
        [prompts(30, seed=1)[0]],
        [prompts(9, seed=2)[0]],
        [prompts(8, seed=3)[0]],
        BATCH,
    ):
        eager, compiled = both("llama", EXACT, 4, batch)
        assert compiled == eager
    programs = [key for model in pair("llama") for key in store.store_of(model).programs]
    assert any("prefill" in key for key in programs) is not heavy


def test_what_a_broken_request_left_reaches_no_other(traced: None):
    target, draft = pair("llama")
    decoder = Decoder(target, ModelDrafter(draft), EXACT, 4, engine="compiled")
    wanted = decoder.generate(BATCH[:2], max_new_tokens=NUM)
    for model in (target, draft):
        for kept in chain.from_iterable(store.store_of(model).memories.values()):
            kept.fill_(torch.nan)
    assert [one.ids for one in decoder.generate(BATCH[:2], max_new_tokens=NUM)] == [
        one.ids for one in wanted
    ]


@pytest.mark.slow
def test_a_gate_is_where_the_target_is_before_it_is_traced(
    traced: None, monkeypatch: pytest.MonkeyPatch
):
    order: list[Any] = []

    class Moving(HalfGate):
        def to(self, device: torch.device) -> None:
            order.append(device)

    build = store.build
    monkeypatch.setattr(
        store, "build", lambda *given, **named: order.append("build") or build(*given, **named)
    )
    target, draft = tiny_model("llama"), tiny_model("llama", seed=1)
    decoder = Decoder(
        target, ModelDrafter(draft), make_rule("autojudge"), 3, gate=Moving(), engine="compiled"
    )
    decoder.generate(BATCH[:1], max_new_tokens=2)
    assert order[0] == target.device and "build" in order


def test_programs_belong_to_their_inputs_and_to_the_form_of_the_model(traced: None):
    """A rule that draws feeds a draft program with numbers that another rule has not."""
    target, draft = tiny_model("llama"), tiny_model("llama", seed=1)
    for rule in (EXACT, make_rule("random", rate=0.5)):
        Decoder(target, ModelDrafter(draft), rule, 3, engine="compiled").generate(
            BATCH[:1], max_new_tokens=6
        )
    known, kept = store.store_of(draft), store.store_of(target)
    assert len([key for key in known.programs if "draft" in key]) == 2
    quantise(draft, "int8")
    assert store.store_of(draft) is not known and store.store_of(target) is kept


def test_the_model_is_left_as_it_was(traced: None):
    both("llama", EXACT, 2)
    assert {model.config._attn_implementation for model in pair("llama")} == {"sdpa"}


def test_weights_are_read_where_they_lie(traced: None):
    """A weight that changes in place between two requests changes the second answer."""
    model = tiny_model("llama", seed=7)
    decoder = Decoder(model, None, EXACT, 0, engine="compiled")
    first = decoder.generate(BATCH[:1], max_new_tokens=8)[0].ids
    with torch.no_grad():
        model.get_output_embeddings().weight.neg_()
    second = decoder.generate(BATCH[:1], max_new_tokens=8)[0].ids
    plain = Decoder(model, None, EXACT, 0).generate(BATCH[:1], max_new_tokens=8)[0].ids
    assert second == plain != first


@pytest.mark.parametrize("drafter", ["model", "lookup"])
def test_more_prompts_than_slots_run_in_batches(traced: None, drafter: str):
    """A program cannot refill slots: every batch runs to its end, and the last one may be
    smaller.
    """
    texts, usage, steps = [*BATCH, BATCH[0][::-1]], Usage(), list[int]()
    made = ModelDrafter(pair("llama")[1]) if drafter == "model" else PromptLookup()
    decoder = Decoder(pair("llama")[0], made, EXACT, 4, engine="compiled")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        slots = Slots(2, steps.append, usage)
        answers = decoder.generate(texts, max_new_tokens=NUM, eos_ids=range(20), slots=slots)
    plain = Decoder(pair("llama")[0], None, EXACT, 0)
    expected = [
        plain.generate([text], max_new_tokens=NUM, eos_ids=range(20))[0].ids for text in texts
    ]
    assert [answer.ids for answer in answers] == expected and len(
        {len(ids) for ids in expected}
    ) > 2
    assert steps == [1] * 5 and usage.busy < usage.available
    assert usage.busy == sum(answer.statistics.forwards for answer in answers)


def test_reading_a_prompt_belongs_to_the_time_of_its_answer(
    traced: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No round reads it, so that nothing else would count it."""
    read, now = rounds.PromptReader.read, [0.0]

    def slowly(self: rounds.PromptReader, *arguments: Any) -> Any:
        now[0] += 300
        return read(self, *arguments)

    monkeypatch.setattr("gistgate.compiled.session.perf_counter", lambda: now[0])
    monkeypatch.setattr(rounds.PromptReader, "read", slowly)
    target, draft = pair("llama")
    [answer] = Decoder(target, ModelDrafter(draft), EXACT, 3, engine="compiled").generate(
        prompts(9), max_new_tokens=4
    )
    seconds = answer.statistics.seconds
    assert (seconds["draft"], seconds["verify"], seconds["total"]) == (300, 300, 600)


@pytest.mark.parametrize("fails", [False, True])
def test_a_drafter_keeps_nothing_of_a_batch_that_is_over(traced: None, fails: bool) -> None:
    sizes: list[int] = []

    class Watched(PromptLookup):
        def start(self, batch: int) -> None:
            sizes.append(batch)
            super().start(batch)

        def keep(self, kept: Any, *more: Any) -> None:
            if fails:
                raise RuntimeError("stopped")
            super().keep(kept, *more)

    decoder = Decoder(pair("llama")[0], Watched(), EXACT, 3, engine="compiled")
    with pytest.raises(RuntimeError, match="stopped") if fails else warnings.catch_warnings():
        decoder.generate(prompts(9, 4), max_new_tokens=4)
    assert sizes == [2, 0]


def test_unknown_engine():
    with pytest.raises(UserError, match="no engine 'fast'"):
        Decoder(pair("llama")[0], None, EXACT, 0, engine="fast")


@pytest.mark.slow
@pytest.mark.skipif(not HAS_COMPILER, reason="no C++ compiler")
def test_compiled_for_real():
    """Strict decoding, a trained kind of gate, and the rules beside it in the tables, through the
    compiler.
    """
    target, draft = pair("llama", noise=0.1)
    torch.manual_seed(0)  # some untrained gates open nowhere
    gate, loose = gate_of(target), {}
    rules = [
        ("exact", {}),
        ("autojudge", {"risk": 0.5}),
        ("ensemble", {"w": 0.2}),
        ("fly", OPEN["fly"]),
    ]
    for (rule_id, settings), block in zip(rules, (2, 4, 4, 4), strict=True):
        eager, compiled = (
            Decoder(
                target,
                ModelDrafter(draft),
                make_rule(rule_id, **settings),
                block,
                gate=gate,
                engine=engine,
            )
            for engine in ("eager", "compiled")
        )
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)  # falling back
            wanted, found = (
                one.generate(BATCH[:1], max_new_tokens=NUM)[0] for one in (eager, compiled)
            )
        assert (found.ids, found.reasons) == (wanted.ids, wanted.reasons)
        loose[rule_id] = found.statistics.loose
    assert loose.pop("exact") == 0 and min(loose.values()) > 0
