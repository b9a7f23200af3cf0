"""Decoders from names: what a certificate covers, what is certified of a gate, and lighter
drafts.
"""

import copy
import warnings
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gistgate.build import Builder
from gistgate.build import build as build_decoder
from gistgate.core.decoder import Decoder
from gistgate.core.files import fingerprint
from gistgate.core.guards import LoopGuard
from gistgate.core.identity import gate_hash, identify_model, identify_tokenizer, model_scope
from gistgate.core.utils import UserError
from gistgate.coverage.certificate import Certificate
from gistgate.coverage.choose import Choice
from gistgate.coverage.covers import covers
from gistgate.drafters import DRAFTERS
from gistgate.drafters.adaptive import ModelOrTextDrafter
from gistgate.drafters.stopping import Stopping
from gistgate.gate import Gate
from gistgate.models.lighter import Subset
from gistgate.models.options import DecodeOptions
from gistgate.models.sources import asks_draft
from gistgate.retrieval.corpus import CorpusDrafter
from gistgate.retrieval.sense import SenseDrafter, SenseTree
from tests.architectures import pair
from tests.certificates import proofs
from tests.pipeline.parameters import block
from tests.retrieval.test_sense import store_of
from tests.tiny import byte_tokenizer

TOKENIZER = byte_tokenizer()
TARGET, DRAFT = pair("llama")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a draft model, a gate and certificates of `prob` and of `sen`."""
    folder = tmp_path_factory.mktemp("parts")
    DRAFT.save_pretrained(folder / "draft")
    gate = proofs.linear_gate(TARGET, DRAFT)
    gate.save(folder / "gate")
    proofs.proof_for(gate, proofs.point(0.03, settings={"risk": 0.7})).save(folder / "gate")
    certificate().save(folder / "proof")
    return folder


def certificate(settings: dict[str, Any] | None = None, **changes: Any) -> Certificate:
    """A certificate of `prob` with the draft model, whose scope names everything that can be
    compared.
    """
    scope = {
        "target": model_scope(identify_model(TARGET)),
        "draft": model_scope(identify_model(DRAFT)),
        "tokenizer": identify_tokenizer(TOKENIZER).vocabulary,
        "gate": None,
        "prompting": asdict(block("prompting")),
        "temperature": 0.0,
        "engine": "eager",
        "guards": [],
        **changes.pop("scope", {}),
    }
    found = proofs.point(0.01, settings=settings or {"r": 0.4})
    return proofs.certificate(
        found, **{"rule": "prob", "knob": "r", "block": 5, "scope": scope, **changes}
    )


def build(place: Path, **parts: Any) -> Decoder:
    options = DecodeOptions(**{"draft": str(place / "draft"), **parts})
    return build_decoder(TARGET, TOKENIZER, options).decoder


def certified(place: Path, **parts: Any) -> Decoder:
    return build(place, certificate=str(place / "proof"), **parts)


def test_a_certificate_says_everything(place: Path) -> None:
    decoder = certified(place)
    assert (decoder.rule.id, decoder.rule.r, decoder.block) == ("prob", 0.4, 5)  # type: ignore[attr-defined]
    same = certified(place, rule="prob", drafter="model", block=5, settings={"r": 0.4})
    assert same.rule == decoder.rule
    with pytest.raises(UserError, match="holds no certificate.json"):
        build(place, certificate=str(place / "draft"))


@pytest.mark.parametrize(
    "asked, sentence",
    [
        ({"rule": "fly"}, "the rule 'prob' was certified, not 'fly'"),
        ({"drafter": "lookup"}, "drafter is lookup, but model was certified"),
        ({"block": 0}, "block is 0, but 5 was certified"),
        ({"settings": {"r": 0.1}}, "r 0.1 is not among the certified values"),
        ({"segments": "somewhere"}, "segments are asked for"),
        ({"budget": 0.005}, "no setting certified for a budget of 0.005"),
        ({"guards": ["loop"]}, r"the guards are \['loop'\], but none were certified"),
        ({"gate": "gate"}, r"the gate is another one \(none certified"),
        ({"draft": None}, "needs a draft model"),
    ],
)
def test_what_a_certificate_does_not_say_is_refused(
    place: Path, asked: dict[str, Any], sentence: str
) -> None:
    if "gate" in asked:
        asked = {"gate": str(place / "gate")}
    with pytest.raises(UserError, match=sentence):
        certified(place, **asked)


def gated(place: Path, **parts: Any) -> tuple[Decoder, list[str]]:
    """The decoder of the gate, and what it warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        decoder = build(place, gate=str(place / "gate"), **parts)
    return decoder, [str(warning.message) for warning in caught]


def test_a_gate_at_another_block_or_drafter_says_that_nothing_is_certified(place: Path) -> None:
    decoder, said = gated(place)
    assert (decoder.block, decoder.rule.risk, said) == (4, 0.7, [])  # type: ignore[attr-defined]
    decoder, said = gated(place, block=6)
    assert decoder.block == 6
    assert said == ["No certificate covers this: block is 6, but 4 was certified."]
    assert "drafter is lookup, but model was certified" in gated(place, drafter="lookup")[1][0]
    decoder, said = gated(place, block=0)  # plain decoding
    assert (decoder.block, said) == (0, [])


def test_texts_and_states_make_drafters(place: Path, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("Tom has five apples.\n\nAnna has two.\n")
    decoder = build(place, drafter="corpus", corpus=str(tmp_path / "texts.txt"))
    assert isinstance(decoder.drafter, CorpusDrafter)
    text, (known,) = (
        TOKENIZER("Tom has").input_ids,
        TOKENIZER([" five"], add_special_tokens=False).input_ids,
    )
    assert decoder.drafter.continuation(text, 5) == known
    store_of("llama", [TOKENIZER("Tom has").input_ids]).save(tmp_path / "store")
    for name, kind in (
        ("sen", SenseDrafter),
        ("sen-lexical", SenseDrafter),
        ("sen-tree", SenseTree),
    ):
        made = build(place, drafter=name, datastore=str(tmp_path / "store"))
        assert type(made.drafter) is kind and made.drafter.semantic == (name != "sen-lexical")
        assert (
            made.generate([text], max_new_tokens=8)[0].ids
            == build(place).generate([text], max_new_tokens=8)[0].ids
        )


def test_a_certificate_holds_for_one_datastore(place: Path, tmp_path: Path) -> None:
    for name, text in (("store", "Tom has"), ("other", "Anna gave")):
        store_of("llama", [TOKENIZER(text).input_ids]).save(tmp_path / name)
    data = fingerprint(tmp_path / "store")
    certificate(drafter="sen", scope={"draft": None, "drafter_data": data}).save(tmp_path / "proof")
    assert isinstance(
        certified(tmp_path, draft=None, datastore=str(tmp_path / "store")).drafter, SenseDrafter
    )
    with pytest.raises(UserError, match="the drafter reads other texts"):
        certified(tmp_path, draft=None, datastore=str(tmp_path / "other"))


@pytest.mark.parametrize(
    "dtype, engine, texts, kinds",
    [
        (torch.bfloat16, "eager", "own", []),
        (torch.bfloat16, "compiled", "own", ["engine"]),
        (torch.float32, "compiled", "own", []),  # there both engines give the same ids
        (torch.float32, "eager", "other", ["drafter_data"]),
    ],
)
def test_engine_and_texts_count_as_parts_of_the_setup(
    tmp_path: Path, dtype: torch.dtype, engine: str, texts: str, kinds: list[str]
) -> None:
    for name in ("own", "other"):
        (tmp_path / name).write_text(name)
    scope = {"drafter_data": fingerprint(tmp_path / "own")}
    certified = certificate(drafter="corpus", scope=scope)
    options = DecodeOptions(engine=engine, corpus=str(tmp_path / texts))
    target: Any = SimpleNamespace(dtype=dtype)
    setup = Builder(target, None, options).setup(certified, Choice("prob", {}, 5, "corpus"), None)
    assert [difference.kind for difference in covers(certified, setup)] == kinds


def test_guards_engine_and_batches_reach_the_decoder(place: Path) -> None:
    decoder = build(place, guards=["loop"], engine="compiled", speculate_up_to=4)
    assert decoder.parts.guards.guards == (LoopGuard(),)
    assert (decoder.engine.name, decoder.speculate_up_to) == ("compiled", 4)


def test_gates_and_certificates_know_each_other(place: Path, tmp_path: Path) -> None:
    gate = Gate.load(place / "gate")
    certificate(
        rule="autojudge", knob="risk", settings={"risk": 0.9}, scope={"gate": gate_hash(gate)}
    ).save(tmp_path)
    decoder = build(place, gate=str(place / "gate"), certificate=str(tmp_path))
    assert (decoder.rule.risk, decoder.block) == (0.9, 5)  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="gate"):
        build(place, certificate=str(tmp_path))


# ---- Lighter drafts and ends of drafts by name, and what certificates bind of them.

ENDS = Stopping(0.3, measured={"cost": 0.2, "verify": {"5": 1.0}, "block": 5})


@pytest.fixture
def lighter(tmp_path: Path) -> Path:
    """A folder with a draft model, a certificate that was made with `ENDS`, that policy, and a
    draft vocabulary.
    """
    DRAFT.save_pretrained(tmp_path / "draft")
    certificate(scope={"drafting": {"stopping": ENDS.binding}}).save(tmp_path / "ended")
    certificate().save(tmp_path / "whole")
    ENDS.save(tmp_path / "stop.json")
    texts = TOKENIZER(["Tom has five apples."]).input_ids
    Subset.count(texts, 40, TOKENIZER, DRAFT, [TOKENIZER.eos_token_id]).save(
        tmp_path / "words.json"
    )
    return tmp_path


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"draft": TARGET, "quantise_draft": "int8"}, "Target and draft are one loaded model"),
        ({"drafter": "lookup", "quantise_draft": "int4"}, "asks no draft model"),
        ({"drafter": "lookup", "corpus": "texts.txt"}, "reads no corpus"),
        ({"drafter": "corpus", "corpus": "texts.txt", "datastore": "store"}, "reads no datastore"),
        ({"drafter": "sen"}, "datastore=<folder>"),
        ({"drafter": "corpus"}, "corpus=<file>"),
        ({"drafter": "senn"}, "Did you mean 'sen'"),
        ({"drafter": "model", "draft": None}, "needs a draft model"),
        ({"guards": ["lop"]}, "no guard 'lop'"),
        ({"engine": "quick"}, "no engine 'quick'"),
        ({"quantise_draft": "int3"}, "cannot be quantised to 'int3'"),
        ({"stop_drafting": "nothing.json"}, "nothing.json is missing"),
        ({"stop_drafting": "stop.json", "drafter": "lookup"}, "'lookup' never ends drafts early"),
        ({"drafter": "hybrid"}, "measured costs"),
        ({"draft_vocabulary": "nothing.json"}, "nothing.json is missing"),
    ],
)
def test_what_is_missing_or_would_change_nothing_or_the_target_is_refused(
    lighter: Path, parts: dict[str, Any], message: str
) -> None:
    before = identify_model(TARGET)
    with pytest.raises(UserError, match=message):
        build(lighter, **parts)
    assert identify_model(TARGET) == before
    assert build(lighter, drafter="lookup", quantise_draft="none").drafter.model is None  # type: ignore[union-attr]


def test_a_lighter_draft_is_another_one_for_certificates(lighter: Path) -> None:
    parts = {"quantise_draft": "int8", "draft_vocabulary": str(lighter / "words.json")}
    model = build(lighter, **parts).drafter.model  # type: ignore[union-attr]
    found = identify_model(model)
    assert (
        found.quantisation == "int8"
        and found.draft_vocabulary == Subset.load(lighter / "words.json").digest
    )
    for name, value in parts.items():
        shown = {
            "quantise_draft": "quantisation none",
            "draft_vocabulary": "draft_vocabulary none",
        }[name]
        with pytest.raises(
            UserError, match=rf"the draft model is another one \(.*{shown}.* certified"
        ):
            build(lighter, certificate=str(lighter / "whole"), **{name: value})


def test_ends_of_drafts_are_bound_both_ways(lighter: Path) -> None:
    stop = {"stop_drafting": str(lighter / "stop.json")}
    Stopping(0.4).save(lighter / "other.json")
    other = {"stop_drafting": str(lighter / "other.json")}
    decoder = build(lighter, certificate=str(lighter / "ended"), **stop)
    assert decoder.drafter.binding == {"stopping": ENDS.binding}  # type: ignore[union-attr]
    for name, parts in (("ended", {}), ("whole", stop), ("ended", other)):
        with pytest.raises(UserError, match="drafts end by another policy"):
            build(lighter, certificate=str(lighter / name), **parts)


def test_a_hybrid_takes_costs_and_ends_from_its_policy(lighter: Path) -> None:
    drafter = build(lighter, drafter="hybrid", stop_drafting=str(lighter / "stop.json")).drafter
    assert isinstance(drafter, ModelOrTextDrafter) and drafter.options[1].cost == 0.2
    assert (
        asks_draft("hybrid")
        and asks_draft("model")
        and not asks_draft("lookup")
        and not asks_draft("sen")
    )
    assert {name for name in DRAFTERS if asks_draft(name)} == {"model", "tree", "hybrid"}


@pytest.mark.parametrize("drafter", ["model", "hybrid"])
def test_a_policy_of_another_rule_is_told(lighter: Path, drafter: str) -> None:
    for rule in ("fly", "exact"):
        replace(ENDS, measured={**ENDS.measured, "rule": rule}).save(lighter / "stop.json")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            build(lighter, drafter=drafter, stop_drafting=str(lighter / "stop.json"), rule="exact")
        said = "fitted to the rule 'fly', and 'exact' keeps another share"
        assert [said in str(one.message) for one in caught] == [True] * (rule == "fly")


def test_a_loaded_draft_is_made_lighter_in_place(lighter: Path) -> None:
    draft = copy.deepcopy(DRAFT)
    for _ in range(2):
        assert build(lighter, draft=draft, quantise_draft="int8").drafter.model is draft  # type: ignore[union-attr]
    with pytest.raises(UserError, match="quantised already"):
        build(lighter, draft=draft, quantise_draft="int4")
