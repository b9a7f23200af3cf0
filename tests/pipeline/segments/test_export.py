"""The method `segments` decodes with the trained probes; its export follows from the calibration
alone.
"""

import warnings
from pathlib import Path

import pytest
import torch

from gistgate.build import build
from gistgate.core.files import write_json
from gistgate.core.request import total
from gistgate.coverage.choose import Choice
from gistgate.models.options import DecodeOptions
from gistgate.segments.probes import Probe, Probes
from pipeline.decode import make_decoder
from pipeline.pair.pair import Pair
from pipeline.paths import SEGMENTS, calibration_file
from pipeline.run import run
from pipeline.stages import export
from tests.architectures import pair
from tests.pipeline.parameters import parameters
from tests.tiny import byte_tokenizer

TARGET, DRAFT = pair("llama", noise=0.06)
PAIR = Pair(TARGET, DRAFT, byte_tokenizer(), "tiny")
PROMPTS = [[5, 6, 7], [9, 30, 31, 32, 40]]
PARAMS = parameters(
    methods={
        "segments": {
            "rule": "segment",
            "drafter": "segment",
            "knob": "threshold",
            "grid": [0.9, 0.5],
            "fixed": {"opinion": "probe"},
        }
    }
)
METHOD = PARAMS.methods["segments"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A run whose probes are trained, and whose token gate is a folder that nobody reads; code is
    not written.
    """
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(3)
    Probes(Probe(32, 8), Probe(32, 8), "re:[a-zA-Z]$", 8).save(SEGMENTS, TARGET, DRAFT, seed=1)
    monkeypatch.setattr(export, "read_params", lambda: PARAMS)
    monkeypatch.setattr(export, "load_pair", lambda params: PAIR)
    monkeypatch.setattr(export.shutil, "copytree", lambda source, place: None)
    monkeypatch.setattr(export, "write_code", lambda folder, entry: None)
    return tmp_path


def decode(settings):
    decoder = make_decoder(PAIR, Choice(METHOD.rule, settings, 8, METHOD.drafter))
    return decoder.generate(PROMPTS, max_new_tokens=40)


def test_the_method_is_decoded_with_the_probes_of_the_run(folder):
    loose, again, strict = (decode({"threshold": value}) for value in (0.0, 0.0, 2.0))
    assert total([answer.statistics for answer in strict]).loose == 0
    statistics = total([answer.statistics for answer in loose])
    assert statistics.loose > 0
    assert [answer.ids for answer in loose] == [answer.ids for answer in again]


@pytest.mark.parametrize("certified", [True, False])
def test_the_export_runs_at_the_certified_value(folder, certified, monkeypatch):
    verdict = {
        "certified": certified,
        "knob": 0.5,
        "fixed": {"opinion": "probe", "risk": None},
        "n": 1000,
        "bound": 0.008,
    }
    report = {"confidence": 0.95, "budgets": {"0.03": verdict}}
    write_json(calibration_file("segments"), report)
    monkeypatch.setattr("sys.argv", ["export", "segments"])
    with pytest.raises(SystemExit, match="0"):
        run(export.main)
    card = Path("models/segments-export/README.md").read_text()
    assert ("bound 0.0080" if certified else "decodes strictly") in card
    with warnings.catch_warnings():
        warnings.simplefilter(
            "error" if certified else "ignore"
        )  # without a certificate a warning says so
        wishes = DecodeOptions(segments="models/segments-export", draft=DRAFT)
        decoder = build(TARGET, PAIR.tokenizer, wishes).decoder
    assert decoder.rule.threshold == (0.5 if certified else 2.0)
