"""Every rule runs compiled or says why it cannot, and what cannot become a program runs on the
eager engine.
"""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gistgate.compiled import memory as store
from gistgate.compiled import session as compiled
from gistgate.compiled.session import reasons_against
from gistgate.core.block import Sampling
from gistgate.core.decoder import Decoder
from gistgate.core.domain import DomainGuard, fit
from gistgate.core.guards import LoopGuard
from gistgate.core.request import Generation
from gistgate.drafters.adaptive import Costs, ModelOrTextDrafter
from gistgate.drafters.model import ModelDrafter
from gistgate.drafters.text import TokenRecycling
from gistgate.rules import RULES, make_rule
from gistgate.rules.history import PairCounts
from tests.architectures import greedy, pair, prompts
from tests.core.watching import HalfGate, Markers, Watch, continued
from tests.rules.extremes import OPEN

BATCH = prompts(5, 17, 1, 10)
"""A ragged batch; the third prompt has no token before its last."""
NUM = 20
"""New tokens."""

FALLS_BACK = {
    "csd": "counts while it decodes",
    "reflective": "reads drafts a second time",
    "regret-budget": "remembers what a request has spent",
}
"""Rules that no program can hold, and why; all others run compiled."""


@pytest.mark.filterwarnings("ignore:This runs on the eager engine")
@pytest.mark.parametrize("rule_id", RULES)
def test_every_rule_loosely(traced: None, rule_id: str):
    """Both engines write the same; a rule either runs compiled or says why it cannot."""
    rule = make_rule(rule_id, **{"ensemble": {"w": 0.2}, **OPEN}.get(rule_id, {}))
    sampling = Sampling() if rule.temperatures != "sampled" else Sampling(0.9)
    target, draft = pair("llama", noise=0.1)
    eager, compiled = (
        Decoder(
            target,
            ModelDrafter(draft),
            rule,
            4,
            gate=HalfGate(),
            tokenizer=Markers(),
            engine=engine,
        )
        for engine in ("eager", "compiled")
    )
    answers = [
        one.generate(BATCH, max_new_tokens=NUM, sampling=sampling) for one in (eager, compiled)
    ]
    assert [(a.ids, a.reasons) for a in answers[0]] == [(a.ids, a.reasons) for a in answers[1]]
    assert any(a.statistics.loose for a in answers[1]) == (
        rule_id not in {"exact", "block", "traversal"}
    )
    why = FALLS_BACK.get(rule_id)
    assert len(compiled.engine.fell_back) == (why is not None)
    assert all(str(why) in said for said in compiled.engine.fell_back)


def test_one_warning_says_why():
    decoder = Decoder(
        pair("mistral")[0],
        ModelDrafter(pair("mistral")[1]),
        make_rule("exact"),
        4,
        engine="compiled",
    )
    with pytest.warns(UserWarning, match="eager engine instead .* sliding window"):
        decoder.generate(BATCH, max_new_tokens=NUM)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        answers = decoder.generate(BATCH, max_new_tokens=NUM)
    assert [answer.ids for answer in answers] == [
        greedy("mistral", tuple(prompt), NUM) for prompt in BATCH
    ]


@pytest.mark.parametrize(
    ("drafter", "why"),
    [
        (lambda: TokenRecycling(), "looks at every block"),
        (lambda: ModelDrafter(pair("gemma2")[1]), "sliding window"),
        (
            lambda: ModelOrTextDrafter(
                ModelDrafter(pair("llama")[1]), Costs(1.0, 0.1, {3: 1.0}), 3
            ),
            "asks its model in a way of its own",
        ),
    ],
)
def test_fall_backs(drafter: Any, why: str):
    decoder = Decoder(pair("llama")[0], drafter(), make_rule("exact"), 3, engine="compiled")
    with pytest.warns(UserWarning, match=why):
        answers = decoder.generate(BATCH[:1], max_new_tokens=NUM)
    assert answers[0].ids == greedy("llama", tuple(BATCH[0]), NUM)


def test_models_on_different_devices_fall_back():
    target, draft = pair("llama")
    decoder = Decoder(target, ModelDrafter(draft), make_rule("exact"), 3, engine="compiled")
    elsewhere = SimpleNamespace(device=torch.device("meta"))
    parts = replace(decoder.parts, drafter=ModelDrafter(draft))
    parts.drafter.model = elsewhere  # type: ignore[union-attr, assignment]
    assert next(reasons_against(parts, 1)) == "target and draft model are on different devices"


@pytest.mark.parametrize("kappa", [0.0, 0.1])
def test_only_costs_that_matter_need_the_eager_engine(kappa: float):
    rule = make_rule("wisv", kappa=kappa)
    decoder = Decoder(pair("llama")[0], TokenRecycling(), rule, 3, gate=HalfGate())
    reasons = [*reasons_against(decoder.parts, 1)]
    assert ("the rule 'wisv' asks what a round costs" in reasons) == (kappa > 0)


def test_a_table_that_changed_is_another_program(traced: None):
    """Two rules with one path, or one table that another rule goes on filling, must not share what
    was traced.
    """
    target, draft = pair("llama", noise=0.1)
    table = PairCounts()
    rule = make_rule("csd", counts=table, tau_c=1e-9, min_count=0)
    decoders = [
        Decoder(target, ModelDrafter(draft), rule, 4, engine=engine)
        for engine in ("eager", "compiled")
    ]
    before = [one.generate(BATCH[:1], max_new_tokens=NUM)[0] for one in decoders]
    counting = make_rule("csd", counts=table, table="online", tau_c=2.0)
    Decoder(target, ModelDrafter(draft), counting, 4).generate(BATCH, max_new_tokens=NUM)
    eager, compiled = (one.generate(BATCH[:1], max_new_tokens=NUM)[0] for one in decoders)
    assert before[0].ids == before[1].ids and compiled.ids == eager.ids
    assert compiled.statistics.loose == eager.statistics.loose > 0 == before[1].statistics.loose
    with pytest.warns(UserWarning, match="'csd' counts while it decodes"):
        Decoder(target, ModelDrafter(draft), counting, 4, engine="compiled").generate(
            BATCH[:1], max_new_tokens=2
        )


def test_too_many_rows_and_no_compiler(monkeypatch: pytest.MonkeyPatch):
    decoder = Decoder(pair("llama")[0], None, make_rule("exact"), 0, engine="compiled")
    with pytest.warns(UserWarning, match="40 rows are more than"):
        decoder.generate([[5, 6]] * 40, max_new_tokens=1)
    monkeypatch.setattr(compiled, "missing_compiler", lambda _device: "there is no C++ compiler")
    with pytest.warns(UserWarning, match="no C\\+\\+ compiler"):
        decoder.generate([[5, 6]], max_new_tokens=1)


class Peeking(type(make_rule("prob"))):  # type: ignore[misc]
    """Looks at a value."""

    def accept(self, block: Any) -> Any:
        return block.valid if bool(block.valid.any()) else ~block.valid


def test_a_rule_that_looks_at_a_value_is_not_traced(traced: None, monkeypatch: pytest.MonkeyPatch):
    decoder = Decoder(
        pair("llama")[0], ModelDrafter(pair("llama")[1]), Peeking(0.1), 3, engine="compiled"
    )
    with pytest.warns(UserWarning, match="cannot be traced"):
        decoder.generate(BATCH[:1], max_new_tokens=5)
    monkeypatch.setattr(compiled, "CompiledSession", None)  # it is not tried again
    decoder.generate(BATCH[:1], max_new_tokens=5)


def test_one_rules_failure_is_not_anothers(traced: None, monkeypatch: pytest.MonkeyPatch):
    strict = Decoder(
        pair("llama")[0], ModelDrafter(pair("llama")[1]), make_rule("exact"), 3, engine="compiled"
    )
    with pytest.warns(UserWarning, match="cannot be traced"):
        strict.having(rule=Peeking(0.1)).generate(BATCH[:1], max_new_tokens=5)
    sessions: list[Any] = []
    made = compiled.CompiledSession
    monkeypatch.setattr(
        compiled, "CompiledSession", lambda *args: sessions.append(args) or made(*args)
    )
    strict.generate(BATCH[:1], max_new_tokens=5)
    assert len(sessions) == 1


def test_without_memory_for_programs_the_eager_engine_gets_what_they_held(
    traced: None, monkeypatch: pytest.MonkeyPatch
):
    """The next request may find more, so that nothing is remembered."""
    target, draft = pair("llama")
    decoder = Decoder(target, ModelDrafter(draft), make_rule("exact"), 3, engine="compiled")
    wanted = decoder.generate(BATCH[:1], max_new_tokens=5)[0].ids
    assert all(store.store_of(model).memories for model in (target, draft))

    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError

    with monkeypatch.context() as little:
        little.setattr(compiled, "CompiledSession", full)
        with pytest.warns(UserWarning, match="there is not enough memory for it"):
            assert decoder.generate(BATCH[:1], max_new_tokens=5)[0].ids == wanted
    assert not any(store.store_of(model).memories for model in (target, draft))
    assert decoder.generate(BATCH[:1], max_new_tokens=5)[0].ids == wanted
    assert all(store.store_of(model).memories for model in (target, draft))


# ---- What looks at every block, and what continues a text, runs on the eager engine although
# programs were asked for.


def decoder_of(engine: str, **parts: Any) -> Decoder:
    target, draft = pair("llama", noise=0.1)
    return Decoder(
        target, ModelDrafter(draft), make_rule("prob", r=1e-3), 4, engine=engine, **parts
    )


def seen(answers: list[Generation]) -> list[tuple[Any, ...]]:
    return [(one.ids, one.reasons, one.finish, one.statistics.extra) for one in answers]


def strange() -> DomainGuard:
    """A guard that finds every text strange."""
    states = torch.randn(200, 32, generator=torch.Generator().manual_seed(0))
    return DomainGuard(*fit(states, 8), far=0.0)


class Weary(LoopGuard):
    """Finds that every text loops from its fourth token on."""

    def is_loop(self, ids: Sequence[int]) -> bool:
        return len(ids) > 3


@pytest.mark.parametrize("guard", [strange(), Weary()], ids=["domain", "loop"])
def test_guards_are_asked_by_the_eager_engine(traced: None, guard: Any):
    """Two requests and one warning; without it the programs would write what nobody guarded."""
    programs, eager = decoder_of("compiled", guards=[guard]), decoder_of("eager", guards=[guard])
    with pytest.warns(
        UserWarning, match="eager engine instead .* guards look at every block"
    ) as said:
        answers = [programs.generate(BATCH, max_new_tokens=NUM) for _ in range(2)]
    guarded, free = (
        one.generate(BATCH, max_new_tokens=NUM) for one in (eager, decoder_of("compiled"))
    )
    assert len(said) == 1 and [seen(answer) for answer in answers] == [seen(guarded)] * 2
    assert [row.ids for row in free] != [row.ids for row in guarded]


def test_an_observer_is_told_by_the_eager_engine(traced: None):
    """It sees the same blocks, and without it the same decoder runs its programs."""
    watches = Watch(wants_q=True), Watch(wants_q=True)
    eager, programs = (decoder_of(engine) for engine in ("eager", "compiled"))
    with pytest.warns(
        UserWarning, match="eager engine instead .* an observer looks at every block"
    ) as said:
        found = programs.watched_by(watches[1]).generate(BATCH, max_new_tokens=NUM)
    wanted = eager.watched_by(watches[0]).generate(BATCH, max_new_tokens=NUM)
    assert len(said) == 1 and seen(found) == seen(wanted)
    blocks = [
        [(one.draft_ids.tolist(), kept.length.tolist(), texts) for one, kept, texts in w.seen]
        for w in watches
    ]
    assert blocks[1] == blocks[0] and len(blocks[0]) == max(
        one.statistics.forwards for one in wanted
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert seen(programs.generate(BATCH, max_new_tokens=NUM)) == seen(wanted)


def test_texts_are_continued_by_the_eager_engine_without_a_word(
    traced: None, monkeypatch: pytest.MonkeyPatch
):
    """Programs begin with a prompt: `resume` never builds any, and never counts as a fall-back."""
    eager, programs = (decoder_of(engine) for engine in ("eager", "compiled"))
    batch = prompts(5, 17, 2, 10)  # a prompt of one token could not be cut
    wanted = continued(eager, batch, NUM)
    monkeypatch.setattr(compiled, "CompiledSession", None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = continued(programs, batch, NUM)
    assert seen(found) == seen(wanted) and any(one.statistics.loose for one in wanted)
    assert not programs.engine.fell_back
