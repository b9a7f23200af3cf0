"""What the tests of drafters share: a call of `propose`, and decoding beside plain greedy
decoding.
"""

from collections.abc import Sequence
from typing import Any

import torch

from gistgate.core.block import Sampling
from gistgate.core.decoder import Decoder
from gistgate.core.request import Generation
from gistgate.rules import make_rule
from tests.architectures import greedy, pair

NUM = 40
"""New tokens."""


def proposed(
    drafter: Any, texts: Sequence[Sequence[int]], num: int, vocabulary: int = 100
) -> list[list[int]]:
    """The chains that a drafter proposes for a greedy request."""
    if len(getattr(drafter, "rows", texts)) != len(texts):
        drafter.start(len(texts))
    draft = drafter.propose(
        texts, num, vocabulary=vocabulary, sampling=Sampling(), uniforms=None, want_q=False
    )
    lengths = draft.valid.sum(-1)
    assert torch.equal(draft.valid, torch.arange(draft.ids.shape[1]) < lengths[:, None])
    assert draft.ids.shape[1] == max(lengths.tolist()) and draft.forwards == 0
    return [ids[:length] for ids, length in zip(draft.ids.tolist(), lengths.tolist(), strict=True)]


def decoded(
    drafter: Any, kind: str, batch: Sequence[Sequence[int]], block: int = 5, **request: Any
) -> list[Generation]:
    """The strict answers with this drafter."""
    decoder = Decoder(pair(kind)[0], drafter, make_rule("exact"), block)
    return decoder.generate(batch, max_new_tokens=NUM, **request)


def wanted(kind: str, batch: Sequence[Sequence[int]]) -> list[list[int]]:
    """What plain greedy decoding writes."""
    return [greedy(kind, tuple(prompt), NUM) for prompt in batch]


def num_accepted(answers: Sequence[Generation]) -> int:
    """Draft tokens that stayed."""
    return sum(
        length * rounds for one in answers for length, rounds in one.statistics.histogram.items()
    )
