"""Spans: what judges learn from mismatches, and the round that shows a mismatch again."""

import pytest
import torch

from gistgate.core.decoder import Decoder
from gistgate.core.features import extract
from gistgate.core.rule import Exact
from gistgate.drafters.model import ModelDrafter
from pipeline.labels.features import Replay
from pipeline.spans import span_rows
from tests.pipeline.labels.test_features import NAMES, REQUEST, prompts, recorded_by  # noqa: F401
from tests.tiny import tiny_pair


@pytest.fixture(scope="module")
def decoder():
    target, draft = tiny_pair(noise=0.15)
    return Decoder(target, ModelDrafter(draft), Exact(), 6)


@pytest.fixture(scope="module")
def mismatches(decoder, prompts):  # noqa: F811
    """Every mismatch of strict decoding with the features that the decode saw, and its texts."""
    return recorded_by(decoder, prompts, NAMES)


def test_a_replay_begins_its_block_with_the_mismatch(decoder, mismatches, prompts):  # noqa: F811
    """The same token is proposed, the strict rule refuses it, and the target saw the same text in
    front of it.
    """
    total = 0
    replay = Replay(decoder, prompts, ["h_tok:post"], 5)
    for part, block in replay.rounds(*mismatches, **REQUEST):
        assert block.draft_ids[:, 0].tolist() == part["draft_id"].tolist()
        assert block.top_ids[:, 0].tolist() == part["target_id"].tolist()
        state = extract(block, ["h_tok:post"])["h_tok:post"][:, 0].float()
        torch.testing.assert_close(state, part["h_tok:post"], atol=1e-3, rtol=1e-3)
        total += len(part["problem"])
    assert total == len(mismatches[0]["problem"]) >= 10


def test_a_span_shares_the_label_of_its_mismatch(decoder, mismatches, prompts):  # noqa: F811
    table, texts = mismatches
    table = {**table, "kept": torch.arange(len(table["problem"])).float() / 100}
    replay = Replay(decoder, prompts, ["h_tok:pre"], 5)
    for part, block in replay.rounds(table, texts, **REQUEST):
        rows = span_rows(part, block, ("h_tok:pre", "scalars"), 3)
        lengths = block.valid[:, :3].sum(-1)
        for name in ("kept", "problem"):
            assert torch.equal(rows[name], part[name].repeat_interleave(lengths))
        torch.testing.assert_close(rows["kl"], part["kl"].repeat_interleave(lengths))
        first = part["position"].repeat_interleave(lengths)
        assert {*(rows["position"] - first).tolist()} <= {0, 1, 2}
        assert torch.equal(rows["h_tok:pre"][0], block.hidden["pre"][0, 1].float())
