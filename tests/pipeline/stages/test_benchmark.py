"""Who is timed: transformers' speculation at the K that development prompts chose, beside our
methods.
"""

from types import SimpleNamespace
from typing import Any

import pytest

from gistgate.measure.baselines import ASSISTED, LOOKUP, static
from gistgate.measure.speed import Contender
from pipeline.operating import Operating
from pipeline.stages import benchmark as stage
from tests.architectures import greedy, noisy_copy, prompts, tiny_model
from tests.pipeline.parameters import parameters

REQUEST = {"max_new_tokens": 6, "stops": [], "eos_ids": []}
TAKEN = Contender(ASSISTED, lambda _batch: ([], None), 4, is_baseline=True)
PARAMS = parameters(methods={"exact": {"rule": "exact"}})


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(
        stage, "operating_point", lambda _params, name: Operating(name, "exact", "model", 8)
    )
    target = tiny_model("llama")
    draft = noisy_copy(target, 0.03)
    about = {"tokenizer": None, "drafter": "model", "names": {}, "name": "tiny"}
    return SimpleNamespace(target=target, draft=draft, draft_model=draft, **about)


@pytest.mark.parametrize("run", ["whole", pytest.param("static", marks=pytest.mark.long)])
def test_everything_that_is_timed_writes_the_greedy_text(pair: Any, run: str):
    ids = prompts(7)[0]
    field = [*stage.ours(PARAMS, pair, REQUEST, "eager"), stage.generates(pair, REQUEST)]
    if run == "static":
        field = [static(pair, REQUEST, 16)]
    else:
        assert [one.name for one in field] == [
            "plain",
            "strict",
            "strict_8",
            "transformers_generate",
        ]
        assert all(one.is_baseline for one in field) and field[1].also == ("exact",)
    for one in field:
        assert one.decode([ids])[0] == [greedy("llama", tuple(ids), 6)], one.name


def test_the_stage_chooses_on_development_prompts_and_notes_what_fails(
    pair: Any, monkeypatch: pytest.MonkeyPatch
):
    seen: dict[str, Any] = {}
    test = [{"ids": ids, "max_new_tokens": 6} for ids in ([1, 2], [3])]
    stand_ins = {
        "read_params": lambda: PARAMS,
        "load_pair": lambda _params: pair,
        "read_prompts": {"test": test, "development": [{"ids": [7]}] * 20}.__getitem__,
        "request_of": lambda _prompts, _pair: REQUEST,
        "chosen": lambda _pair, _request, ids: (
            seen.update(development=ids),
            ([TAKEN], {LOOKUP: "unable"}),
        )[1],
        "race": lambda field, batches, *_more: seen.update(batches=batches),
        "times_of": lambda field, _laps: {one.name: {"block": one.block} for one in field},
        "working": lambda field, _batch: ([], {field[0].name: "no"}),
        "write_json": lambda _path, value: seen.update(written=value),
    }
    for name, stand_in in stand_ins.items():
        places = [place for place in (stage, stage.speed, stage.baselines) if hasattr(place, name)]
        monkeypatch.setattr(places[0], name, stand_in)
    stage.main()
    assert seen["development"] == [[7]] * 8 and seen["batches"] == [[[1, 2]], [[3]]]
    written = seen["written"]
    assert written["chosen_on"] == 8 and written["failed"] == {
        "transformers_static": "no",
        LOOKUP: "unable",
        "llama_cpp": "The target comes from no GGUF file.",
    }
    assert written["baselines"][ASSISTED] == {"block": 4}
    assert written["methods"] == {"exact": {"block": PARAMS.decoding.strict_block}}
