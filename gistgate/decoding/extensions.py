"""The parts of the loop that can be exchanged, by id. What few decoders need is imported when one asks for it."""

from __future__ import annotations

from typing import Any

from gistgate.decoding.form import Chains
from gistgate.decoding.guarding import Unguarded
from gistgate.decoding.verifier import Verifier
from gistgate.registry import Registry

FORMS: Registry[type[Chains]] = Registry(
    "form of drafts", {"chain": Chains, "tree": "gistgate.optional.trees.form:Trees"}
)
"""What drafts look like, by `Drafter.form`."""

VERIFIERS: Registry[type[Verifier]] = Registry(
    "verifier", {"once": Verifier, "twice": "gistgate.optional.rereading.verifier:Rereader"}
)
"""How the target reads a draft, by `Rule.verifier`."""

GUARDING: Registry[Any] = Registry(
    "way of guarding", {"none": Unguarded, "guards": "gistgate.optional.guards.base:Guards"}
)
"""Who settles a block besides the rule."""
