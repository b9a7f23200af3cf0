"""Spans and pairs: what judges and CSD learn from mismatches, and the round that shows a mismatch
again.
"""

import pytest
import torch

from gistgate.core.decoder import Decoder
from gistgate.core.features import extract
from gistgate.core.files import save_tensors
from gistgate.drafters.model import ModelDrafter
from gistgate.rules import make_rule
from gistgate.rules.history import PairCounts
from pipeline.labels import spans
from pipeline.labels.features import Replay
from pipeline.labels.mining import MismatchRecorder, stamped
from pipeline.labels.schema import AnswerText, Policy, concatenated, pack
from pipeline.labels.spans import span_rows
from tests.tiny import tiny_pair

REQUEST = {"max_new_tokens": 24, "eos_ids": [2]}
PROMPTS = [{"ids": ids} for ids in ([5, 9, 30, 44], [7, 7, 120], [11, 200, 3, 90, 17, 18])]


@pytest.fixture(scope="module")
def pair():
    return tiny_pair(noise=0.15)


@pytest.fixture(scope="module")
def mismatches(pair):
    """Every mismatch of strict decoding, as the stage `collect` records it, with the states it
    saw.
    """
    recorder = MismatchRecorder(4, lambda block: extract(block, ["h_tok:post"]))
    recorder.layers = ["post"]
    decoder = Decoder(pair[0], ModelDrafter(pair[1]), make_rule("exact"), 4, observer=recorder)
    answers = decoder.generate([prompt["ids"] for prompt in PROMPTS], **REQUEST)
    tables = [
        stamped(table, i, Policy.STRICT) for i, table in enumerate(recorder.take(answers)) if table
    ]
    texts = {
        (i, Policy.STRICT): AnswerText(i, Policy.STRICT, answer.ids)
        for i, answer in enumerate(answers)
    }
    return concatenated(tables), texts


def test_a_replay_shows_the_block_that_begins_with_the_mismatch(pair, mismatches):
    """The same token is proposed, the strict rule refuses it, and the target saw the same text in
    front of it.
    """
    table, texts = mismatches
    decoder = Decoder(pair[0], ModelDrafter(pair[1]), make_rule("exact"), 4)
    seen = 0
    for part, block in Replay(decoder, PROMPTS, ["h_tok:post"], 5).rounds(table, texts, **REQUEST):
        assert block.draft_ids[:, 0].tolist() == part["draft_id"].tolist()
        assert block.top_ids[:, 0].tolist() == part["target_id"].tolist()
        state = extract(block, ["h_tok:post"])["h_tok:post"][:, 0].float()
        torch.testing.assert_close(state, part["h_tok:post"], atol=1e-3, rtol=1e-3)
        seen += len(part["problem"])
    assert seen == len(table["problem"]) >= 10


def test_a_span_shares_the_label_of_its_mismatch(pair, mismatches):
    table, texts = mismatches
    table = {**table, "kept": torch.arange(len(table["problem"])).float() / 100}
    decoder = Decoder(pair[0], ModelDrafter(pair[1]), make_rule("exact"), 4)
    for part, block in Replay(decoder, PROMPTS, ["h_tok:pre"], 5).rounds(table, texts, **REQUEST):
        found = span_rows(part, block, ("h_tok:pre", "scalars"), 3)
        lengths = block.valid[:, :3].sum(-1)
        assert found["kept"].tolist() == part["kept"].repeat_interleave(lengths).tolist()
        assert found["problem"].tolist() == part["problem"].repeat_interleave(lengths).tolist()
        places = [
            int(at) + j
            for at, num in zip(part["position"], lengths, strict=True)
            for j in range(int(num))
        ]
        assert found["position"].tolist() == places
        assert torch.equal(found["h_tok:pre"][0], block.hidden["pre"][0, 1].float())


def test_refused_pairs_are_counted_over_all_shards(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for index, pairs in enumerate([[(1, 2), (1, 2), (3, 4)], [(1, 2), (4, 3)]]):
        x, t = torch.tensor(pairs).T.contiguous()
        found = {
            "position": x,
            "draft_id": x.clone(),
            "target_id": t.clone(),
            "accepted": (x * 0).to(torch.int8),
        }
        found["behind"] = torch.full((len(x), 3), -1, dtype=torch.int32)
        records = pack(stamped(found, 0, Policy.STRICT), [])
        save_tensors(f"data/mismatches/strict/rows-{index:05d}.safetensors", records)
    spans.count_pairs()
    table = PairCounts.load(spans.PAIRS)
    asked = torch.tensor([1, 3, 4, 2]), torch.tensor([2, 4, 3, 1])
    assert table.look_up(*asked).tolist() == [3, 1, 1, 0]
