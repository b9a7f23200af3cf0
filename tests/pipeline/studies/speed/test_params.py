"""Methods at their own K."""

import pytest

from gistgate.errors import UserError
from gistgate.files import write_json
from pipeline.params import parse_params
from pipeline.studies.speed.params import FILE, speed_params

CORE = parse_params({"methods": {"free": {"prob": {"rule": "prob", "knob": "r", "grid": [0.5]}}}})


def test_the_methods_named_have_their_own_k_and_no_others_remain(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_json(FILE, {"blocks": {"prob": 3}})
    assert {name: method.block for name, method in speed_params(CORE).methods.items()} == {"prob": 3}


def test_an_unknown_method_has_no_k_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_json(FILE, {"blocks": {"probb": 3}})
    with pytest.raises(UserError, match="blocks.probb.*Did you mean 'prob'"):
        speed_params(CORE)
