"""Corpus retrieval proposes what most often follows the latest tokens in a corpus."""

import random
from collections import Counter

import pytest

from gistgate.retrieval.corpus import CorpusDrafter, SuffixArray
from tests.architectures import SIZES, prompts
from tests.drafters.proposing import decoded, num_accepted, proposed, wanted


def having(drafter: CorpusDrafter, **settings: int) -> CorpusDrafter:
    """A drafter with other settings than its own."""
    vars(drafter).update(settings)
    return drafter


def random_documents(seed: int, num: int = 12, alphabet: int = 4) -> list[list[int]]:
    dice = random.Random(seed)
    return [[dice.randrange(alphabet) for _ in range(dice.randint(0, 30))] for _ in range(num)]


def by_search(
    documents: list[list[int]], text: list[int], num: int, n_min: int, n_max: int
) -> list[int]:
    """The same by looking through all documents."""
    for n in range(min(n_max, len(text)), n_min - 1, -1):
        rests = [
            doc[i + n :]
            for doc in documents
            for i in range(len(doc) - n + 1)
            if doc[i : i + n] == text[-n:]
        ]
        if rests:
            ids: list[int] = []
            while len(ids) < num and any(rests):
                counts = Counter(rest[0] for rest in rests if rest)
                ids.append(min(counts, key=lambda token: (-counts[token], token)))
                rests = [rest[1:] for rest in rests if rest[:1] == ids[-1:]]
            return ids
    return []


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("n_min, n_max, depth", [(2, 5, 16), (1, 3, 3), (1, 1, 1), (2, 16, 16)])
def test_continuations_by_definition(seed: int, n_min: int, n_max: int, depth: int):
    documents, dice = random_documents(seed), random.Random(seed)
    drafter = having(CorpusDrafter(SuffixArray.build(documents, depth)), n_max=n_max, n_min=n_min)
    texts = [[dice.randrange(4) for _ in range(dice.randint(1, 12))] for _ in range(40)]
    assert proposed(drafter, texts, 6) == [
        by_search(documents, text, 6, n_min, n_max) for text in texts
    ]


def test_of_too_many_hits_evenly_spaced_ones_are_counted():
    documents = [[1, 1, 2]] * 30 + [[1, 1, 3]] * 60
    drafter = having(CorpusDrafter(SuffixArray.build(documents)), max_hits=9)
    assert proposed(drafter, [[1, 1]], 1) == [[3]]


@pytest.mark.parametrize("kind", SIZES)
def test_strict_answers_are_the_greedy_ones(kind: str):
    batch = prompts(5, 17, 2, 10)
    texts = [prompt + answer for prompt, answer in zip(batch, wanted(kind, batch), strict=True)]
    broken = [text[:25] + [3] + text[25:] for text in texts]
    for documents in (texts, broken, prompts(200, 300, seed=9)):
        drafter = having(CorpusDrafter(SuffixArray.build(documents)), n_min=1)
        for block in (3, 16):
            answers = decoded(drafter, kind, batch, block)
            assert [one.ids for one in answers] == wanted(kind, batch)
            assert [one.ids for one in decoded(drafter, kind, batch[:1], block)] == wanted(
                kind, batch[:1]
            )
        if documents is texts:
            assert num_accepted(answers) > 100


def test_ids_that_the_models_do_not_know_are_not_proposed():
    drafter = CorpusDrafter(SuffixArray.build([[1, 2, 50]]))
    assert proposed(drafter, [[1, 2]], 4, vocabulary=51) == [[50]]
    assert proposed(drafter, [[1, 2]], 4, vocabulary=50) == [[]]
