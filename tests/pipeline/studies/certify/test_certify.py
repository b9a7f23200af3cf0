"""`make certify`: what it compares, and that a decoder runs by the certificates that it writes."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from transformers import LlamaForCausalLM

from gistgate.build.decoder import build_decoder
from gistgate.build.wishes import Wishes
from gistgate.certificates.calibration import Finding
from gistgate.certificates.fixed_sequence import fixed_sequence
from gistgate.certificates.outcomes import Decoded
from gistgate.certificates.search import Selection, Setting
from gistgate.errors import UserError
from gistgate.files import read_json, write_text
from gistgate.integrations.lm_eval.prompting import Prompting
from gistgate.request.statistics import Statistics
from gistgate.rules import make_rule
from pipeline.common.closure import ROOT
from pipeline.pairs.pair import Pair
from pipeline.params import MethodParams, Params
from pipeline.studies.certify import certify as stage
from pipeline.studies.certify.params import CertifyParams
from tests.tiny import byte_tokenizer, tiny_pair


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Folders of a tiny target and draft."""
    place = tmp_path_factory.mktemp("pair")
    for name, model in zip(("target", "draft"), tiny_pair(), strict=True):
        model.save_pretrained(place / name)
        byte_tokenizer().save_pretrained(place / name)
    return place / "target", place / "draft"


def test_the_summary_compares_what_was_certified():
    def report(learned, tau, refusal=None):
        row = {
            "refusal": refusal, "mean_accepted_length": tau, "rounds": [[int(10 * tau), 10]] * 20, "settings": {},
            "block": 16, "n": 20, "loss": 0.0, "bound": 0.01, "harm": 0.0, "harm_bound": 0.1, "discordant": 0,
        }  # fmt: skip
        return {"learned": learned, "budgets": {"0.02": row}}

    both = {"gate": report(True, 8.0), "fly": report(False, 4.0), "sense": report(False, 5.0)}
    ratio = stage.compared(both, "0.02")["ratio"]
    assert (ratio["learned"], ratio["free"], ratio["value"]) == ("gate", "sense", 1.6)
    assert ratio["interval"] == pytest.approx([1.6, 1.6])
    refused = {"gate": report(True, 8.0, "no"), "fly": report(False, 4.0)}
    assert stage.compared(refused, "0.02")["ratio"] is None


def test_what_make_certify_certifies_decodes_by_its_own_file(tmp_path, monkeypatch, folders):
    monkeypatch.chdir(tmp_path)
    for name in ("models/pairs/embedded.yaml", "pipeline/studies/table/params.yaml"):
        write_text(Path(name), (ROOT / name).read_text())
    target, draft = (LlamaForCausalLM.from_pretrained(folder) for folder in folders)
    pair, given = Pair(target, draft, byte_tokenizer(), "tiny"), MethodParams("prob-ratio", knob="r", grid=(0.5, 0.2))
    params = Params(methods={"ratio": given})
    own = CertifyParams(methods=("ratio",), budgets=(0.001, 0.02), prompts=5000, block=5, ece_problems=1)
    limits = {"stops": [], "max_new_tokens": 5}
    task = SimpleNamespace(name="sums", metric="exact", prompting=Prompting(), problem=str, **limits)
    setup = SimpleNamespace(
        params=replace(params, methods={"ratio": replace(given, block=5)}), pair=pair, task=task, gate=lambda _: None,
        prompts={"calibration": [{"ids": [1], "doc": "one"}]}, scorer=SimpleNamespace(id="task", ternary=True),
    )  # fmt: skip

    def calibrated(method, _outcomes, request, look):
        look(Selection([Setting(0.5)], []))
        decoded = Decoded(np.zeros(500), [Statistics(own=1, forwards=1)] * 500)
        verdicts = fixed_sequence([[decoded]], request.budgets, 0.95, "lost")
        return Finding(method, request, Selection([Setting(0.5)], []), verdicts)

    monkeypatch.setattr(stage, "calibrate", calibrated)
    monkeypatch.setattr(stage, "outcomes_of", lambda setup, name: (None, stage.method_of(setup.params, name)))
    for name, found in {"table_params": params, "read_certify_params": own, "setup_of": setup}.items():
        monkeypatch.setattr(stage, name, lambda *_, found=found: found)
    Path("reports/certify/ratio/0.5").mkdir(parents=True)  # of an earlier run
    stage.main("ratio")

    assert [folder.name for folder in Path("reports/certify/ratio").iterdir()] == ["0.02"]
    served = build_decoder(
        target, byte_tokenizer(), Wishes(draft=str(folders[1]), certificate="reports/certify/ratio/0.02")
    )
    assert (served.rule, served.block) == (make_rule("prob-ratio", r=0.5), 5)
    with pytest.raises(UserError, match="because of another draft"):
        build_decoder(target, byte_tokenizer(), Wishes(draft=str(folders[0]), certificate="reports/certify/ratio/0.02"))
    report = read_json("reports/certify/ratio.json")["budgets"]
    assert report["0.001"]["refusal"] and report["0.02"]["rounds"] == [[1, 1]] * 500
