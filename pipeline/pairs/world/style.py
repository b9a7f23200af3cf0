"""A style ranks the wordings of every site and chooses among them with Zipf's law."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.pairs.world.lexicon import QUESTION, SITES
from pipeline.pairs.world.params import WorldParams


@dataclass(frozen=True)
class Style:
    """Frequencies of the wordings, one list per site, in the order of the lexicon."""

    weights: Mapping[str, list[float]]

    def choose(self, site: str, rng: random.Random, wordings: list[str]) -> str:
        """Choose a wording of `site`."""
        return rng.choices(wordings, self.weights[site])[0]


def zipf(keys: list[float], skew: float) -> list[float]:
    """Frequencies 1 / rank^skew, normalised; the largest key has rank 1."""
    order = sorted(range(len(keys)), key=lambda i: -keys[i])
    raw = [0.0] * len(keys)
    for rank, i in enumerate(order, start=1):
        raw[i] = rank**-skew
    return [weight / sum(raw) for weight in raw]


def make_style(params: WorldParams, dialect: str, seed: int) -> Style:
    """The style of a dialect, `target` or `draft`.

    Both tell questions alike. In solutions the draft ranks the wordings by a mixture of the target's keys and its own:
    distance 0 gives the target's ranking, distance 1 an unrelated one. In the shifted world questions are told in a
    dialect that neither has read: its own ranking of the same wordings.
    """
    weights = {}
    for site, wordings in SITES.items():
        asked = "shifted" if params.kind == "shifted" and site in QUESTION else "target"
        target_keys, own_keys = (
            [random.Random(f"{seed} {who} {site} {i}").gauss(0, 1) for i in range(len(wordings))]
            for who in (asked, "draft")
        )
        distance = 0.0 if dialect == "target" or site in QUESTION else params.distance
        keep = math.sqrt(1 - distance**2)
        keys = [keep * a + distance * b for a, b in zip(target_keys, own_keys, strict=True)]
        weights[site] = zipf(keys, params.wording_skew)
    return Style(weights)
