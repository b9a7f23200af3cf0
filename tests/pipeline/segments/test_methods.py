"""Every way of judging decodes; what is exported and shown follows from the reports alone."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gistgate.core.utils import UserError
from gistgate.segments.probes import Probe, Probes
from pipeline.pair.pair import Pair
from pipeline.params import read_segment_params
from pipeline.segments.methods import METHOD, METHODS, OpinionParts, card, certificate_of, methods_of
from tests.architectures import pair
from tests.tiny import byte_tokenizer

OWN = read_segment_params(Path(__file__).parents[3] / "pipeline/studies/segments/params.yaml")
TARGET, DRAFT = pair("llama", noise=0.06)
PROMPTS = [[5, 6, 7], [9, 30, 31, 32, 40]]


class Unsure:
    """A token gate that lets nothing pass."""

    layers, wants_q = frozenset(), False

    def __call__(self, block):
        return torch.zeros(block.draft_ids.shape)


def parts():
    torch.manual_seed(3)
    probes = Probes(Probe(32, 8), Probe(32, 8), "re:[a-zA-Z]$", 8)
    return OpinionParts(Pair(TARGET, DRAFT, byte_tokenizer(), "tiny"), probes, Unsure(), OWN)


@pytest.mark.parametrize("name", methods_of(OWN))
def test_every_way_of_judging_decodes_and_counts_its_segments(name):
    method = METHODS[name]
    decoder = method.decoder(parts(), method.grid[0] if method.grid else 0.5)
    answers = decoder.generate(PROMPTS, max_new_tokens=40)
    again = decoder.generate(PROMPTS, max_new_tokens=40)
    assert [answer.ids for answer in answers] == [answer.ids for answer in again]
    assert sum(answer.statistics.extra.get("segments", 0) for answer in answers) > 0


def test_the_gate_alone_lets_tokens_pass_and_no_segment():
    """Every token is harmless to this gate: what it alone decides is accepted, and `strict` accepts none of it."""

    class Sure(Unsure):
        def __call__(self, block):
            return torch.ones(block.draft_ids.shape)

    def loose(name):
        decoder = METHODS[name].decoder(replace(parts(), gate=Sure()), METHODS[name].grid[0])
        return sum(answer.statistics.loose for answer in decoder.generate(PROMPTS, max_new_tokens=40))

    assert loose("gate-only") > 0 == loose("strict")


def test_a_reward_model_is_compared_only_where_one_is_named():
    assert "prm" not in methods_of(OWN) and "prm" in methods_of(replace(OWN, reward_model="some/model"))
    with pytest.raises(UserError, match="needs a reward model"):
        METHODS["prm"].decoder(parts(), 0.7)


def calibrated(certified, values=(0.9, 0.8)):
    points = [{"value": value, "bound": {"n": 1000, "value": value / 100}} for value in values]
    return {"certified": certified, "budget": 0.03, "calibration": points}


def test_the_export_runs_at_the_certified_value():
    found = certificate_of(OWN, 0.95, "probe-gate", calibrated(0.8))
    assert found["method"] == "probe-gate" and found["bound"] == 0.008
    assert found["settings"] == {"threshold": 0.8, "replacement": "token", "opinion": "probe", "risk": OWN.risk}
    assert "bound 0.0080" in card(found)
    alone = certificate_of(OWN, 0.95, "probe", calibrated(0.9))
    assert alone["method"] == "probe" and alone["settings"]["risk"] is None
    nothing = certificate_of(OWN, 0.95, METHOD, calibrated(None))
    assert nothing == {} and "decodes strictly" in card(nothing)
