"""Blocks about what is decoded: how prompts are built, and how many of them each purpose gets."""

from __future__ import annotations

from pipeline.common.reading import Count, Natural, block


@block
class PromptingParams:
    """How a document becomes a prompt; stored in the gate, because gates are trained on what users serve."""

    num_fewshot: Natural | None = 0
    """Solved examples in front of the question, in documents; None takes the task's own number."""
    chat_template: bool = False
    """Wrap the prompt in the tokenizer's chat template, yes or no."""
    system: str | None = None
    """System text of the chat template; None for none."""


@block
class PromptsParams:
    """How many prompts each split gets; the splits share no problem."""

    train: Count = 320
    """Prompts whose mismatches are labelled, in prompts."""
    development: Count = 300
    """Prompts on which settings and heads are chosen, in prompts."""
    calibration: Count = 1000
    """Prompts that certify the chosen settings, in prompts."""
    draw: Count = 1
    """Which draw of calibration prompts certifies, from 1 on; every draw has prompts of its own."""
    guard: Natural = 300
    """Prompts that the domain guard is fitted on, in prompts; 0 fits none."""
    test: Count = 1000
    """Prompts of the final claims, in prompts."""
