"""pipeline/studies/certify/params.yaml: what is certified with more prompts than the run's."""

from __future__ import annotations

from pipeline.common.paths import STUDIES
from pipeline.common.reading import Count, Share, block, read

FILE = STUDIES / "certify/params.yaml"


@block
class CertifyParams:
    """What `make certify` certifies beside the run, with prompts of its own."""

    methods: tuple[str, ...]
    """Methods, by name; the learned one first, the large table's among them."""
    budgets: tuple[Share, ...]
    """Largest losses that are certified, as shares of prompts."""
    prompts: Count
    """Calibration prompts that no other stage uses, in prompts."""
    block: Count
    """K of all methods, in tokens: long enough that no method meets its ceiling of K + 1."""
    ece_problems: Count
    """Further problems on whose gated texts the calibration error is measured, in prompts."""


def read_certify_params() -> CertifyParams:
    """Read the study's file.

    Raises:
        UserError: it is missing, or holds an unknown key, a wrong type or a value out of range.
    """
    return read(CertifyParams, FILE)
