"""A pair, prompts and one way to decode them by segments, for the tests of this folder."""

import torch

from gistgate.core.decoder import Decoder
from gistgate.core.request import eos_ids
from gistgate.core.rule import Exact
from gistgate.segments.build import segment_decoder
from gistgate.segments.judging import Opinion, SegmentRule
from gistgate.segments.writing import Boundaries, SegmentWriter
from tests.architectures import pair
from tests.tiny import byte_tokenizer

TARGET, DRAFT = pair("llama", noise=0.06)
TOKENIZER = byte_tokenizer()
PROMPTS = [[5, 6, 7], [9, 30, 31, 32, 40], [80, 81]]
SEEDS = [1, 2, 3]
STYLE = "re:[a-zA-Z]$"  # random bytes: letters come often enough
NUM = 40
STRICT = SegmentRule(threshold=2.0)


class Constant(Opinion):
    """Finds every segment as good as the other."""

    def __init__(self, rate):
        self.rate = rate

    def score(self, block, drafter):
        return torch.full(block.draft_ids.shape[:1], self.rate, device=block.logits.device)


def decoder(opinion, rule, draft=DRAFT, limit=8, **parts):
    return segment_decoder(
        TARGET, draft, TOKENIZER, opinion, rule, **{"style": STYLE, "limit": limit, **parts}
    )


def decode(opinion, rule, prompts=PROMPTS, request=None, **parts):
    return decoder(opinion, rule, **parts).generate(prompts, max_new_tokens=NUM, **(request or {}))


def writer():
    return SegmentWriter(
        TARGET, TOKENIZER, Boundaries(TOKENIZER, STYLE, eos_ids(TARGET, TOKENIZER)), 8
    )


def texts(answers):
    return [answer.ids for answer in answers]


def forwards(answers):
    return sum(answer.statistics.forwards for answer in answers)


def greedy(prompts=PROMPTS):
    return texts(Decoder(TARGET, None, Exact(), 0).generate(prompts, max_new_tokens=NUM))


class Watch:
    """Keeps (row, answer before, drafted tokens, accepted, matching, judged) of every round."""

    layers, wants_q = (), False

    def __init__(self):
        self.rounds = []

    def __call__(self, block, acceptance, rows):
        for b, row in enumerate(rows):
            drafted = block.draft_ids[b][block.valid[b]].tolist()
            judged = bool(drafted) and float(block.gate_probs[b, 0]) > 0
            matching = int(block.match[b].long().cumprod(-1).sum())
            self.rounds.append(
                (row.index, row.answer, drafted, int(acceptance.length[b]), matching, judged)
            )
