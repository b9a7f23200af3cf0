"""The tokenizer of the embedded pair: byte-level BPE in which every word of the world is one token."""

from __future__ import annotations

import random

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from pipeline.pairs.world import lexicon
from pipeline.pairs.world.corpus import prompt_text
from pipeline.pairs.world.params import WorldParams
from pipeline.pairs.world.problem import draw_problem
from pipeline.pairs.world.style import make_style
from pipeline.pairs.world.telling import Teller

PAD, BOS, EOS = "<pad>", "<s>", "</s>"
PATTERN = r" ?[0-9]| ?[A-Za-z]+| ?[^\sA-Za-z0-9]+|\s+"
"""One pre-token per digit, word, run of signs or of blanks; a blank before it belongs to it. Round trips are exact."""
CONTEXT = 512
"""Longest text in tokens that the models are declared for; problems of the default world stay below half of it."""


def train_tokenizer() -> PreTrainedTokenizerFast:
    """Train the tokenizer on neutral texts of the lexicon; it depends on no seed and no dial."""
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=8192,  # far more than needed: merging ends when every word is whole
        min_frequency=1,
        special_tokens=[PAD, BOS, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator(_texts(), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=raw,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        padding_side="left",
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )


def _texts() -> list[str]:
    """Uniformly worded texts, with ornaments and without, then every word of the lexicon after a blank."""
    texts = []
    for ornaments in (True, False):
        params = WorldParams(skew=0.0, max_steps=4, ornaments=ornaments)
        rng, teller = random.Random(0), Teller(make_style(params, "target", 0), ornaments)
        for _ in range(400):
            problem = draw_problem(params, "corpus", rng)
            texts.append(f"{prompt_text(teller.question(problem, rng))} {teller.solution(problem, rng)}")
    return [*texts, *(f" {word}" for word in words())]


def words() -> list[str]:
    """Every filled-in word: names, pronouns, items, colours, containers, days, places."""
    people = [word for person in lexicon.PEOPLE for word in person]
    return sorted({*people, *lexicon.ITEMS, *lexicon.COLOURS, *lexicon.CONTAINERS, *lexicon.DAYS, *lexicon.PLACES})


def padded_size(tokenizer: PreTrainedTokenizerFast) -> int:
    """Vocabulary size of the models: the next multiple of 16, which matrix kernels like."""
    return -(-len(tokenizer) // 16) * 16
