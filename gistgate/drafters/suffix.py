"""Suffix decoding (arXiv 2411.04975): propose what most often followed the latest tokens."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from gistgate.drafters.text import TextDrafter, matches

DEPTH = 32  # longest run of tokens that is counted, match and proposal together
# Path probability (product of count of the longer run / count of the run) below which a proposal
# ends.
MIN_PROBABILITY = 0.1


class Path(NamedTuple):
    """Tokens behind a match."""

    score: float  # sum of the path probabilities
    ids: list[int]


class SuffixDrafter(TextDrafter):
    """For every match length walk the most frequent continuation; the path with the best score
    wins.

    Only accepted tokens are counted.
    """

    def continuation(self, text: Sequence[int], num_draft: int) -> list[int]:
        return best_path(text, num_draft).ids


def best_path(text: Sequence[int], num: int, depth: int = DEPTH) -> Path:
    """Of the paths behind all ends of the text that occurred before the one with the best score, of
    equals that of the longer end; a match of l tokens is followed for at most l tokens.
    """
    best = Path(0.0, [])
    runs = matches(text, depth - 1)
    for length in range(len(runs), 0, -1):
        longest = min(num, length, depth - length)
        if best.score >= longest:
            continue  # no path probability exceeds 1
        path = walk(text, [*runs[length - 1], len(text)], longest)
        if path.score > best.score:
            best = path
    return best


def walk(text: Sequence[int], places: Sequence[int], num: int) -> Path:
    """The path of up to `num` most frequent tokens behind a run that ends at these places."""
    ids: list[int] = []
    probability = 1.0
    score = 0.0
    while len(ids) < num:
        following = [place for place in places if place < len(text)]
        if not following:
            break
        [(token, count)] = Counter(text[place] for place in following).most_common(1)
        # A count on the edge stays, however it is rounded.
        if count < MIN_PROBABILITY * len(places) / probability - 1e-9:
            break
        probability *= count / len(places)
        score += probability
        ids.append(token)
        places = [place + 1 for place in following if text[place] == token]
    return Path(score, ids)
