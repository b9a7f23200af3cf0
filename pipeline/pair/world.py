"""The embedded world: word problems with worked solutions, in GSM8K's form, and the tokenizer of
their words. A wording ranks what can be said at every site of a text and chooses with Zipf's law,
so that one problem is told in many ways; target and draft learn different wordings of the same
solutions. lexicon.yaml holds the words.
"""

import hashlib
import math
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from gistgate.core.files import write_json_lines
from pipeline.params import WorldParams
from pipeline.paths import read_yaml

LEXICON = read_yaml(Path(__file__).with_name("lexicon.yaml"))
WOMEN = [(name, "she", "her") for name in LEXICON["women"]]
PEOPLE = WOMEN + [(name, "he", "his") for name in LEXICON["men"]]
ITEMS = LEXICON["items"]
COLOURS = LEXICON["colours"]
CONTAINERS = LEXICON["containers"]
DAYS = LEXICON["days"]
PLACES = LEXICON["places"]
QUESTION = LEXICON["question"]
SOLUTION = LEXICON["solution"]
SITES: dict[str, list[str]] = {**QUESTION, **SOLUTION}  # the wordings of every site

OPERATIONS = ("gain", "lose", "double", "triple")
FACTORS = {"double": 2, "triple": 3}
PARTS = {"corpus": range(0, 12), "train": range(12, 17), "test": range(17, 20)}
"""Twentieths of all arithmetic cores that belong to the models' corpora, the task's training and
its test file.
"""

PAD = "<pad>"
BOS = "<s>"
EOS = "</s>"
PATTERN = r" ?[0-9]| ?[A-Za-z]+| ?[^\sA-Za-z0-9]+|\s+"
"""One pre-token per digit, word, run of signs or of blanks; a blank before it belongs to it. Round
trips are exact.
"""
CONTEXT = 512
"""Longest text in tokens that the models are declared for; problems of the default world need half
of it.
"""


@dataclass(frozen=True)
class Step:
    """One operation; `amount` counts for gain and lose only."""

    operation: str
    amount: int
    day: str

    def apply(self, total: int) -> int:
        """The total after this step."""
        if self.operation in FACTORS:
            return total * FACTORS[self.operation]
        return total + self.amount if self.operation == "gain" else total - self.amount


@dataclass(frozen=True)
class Problem:
    """Everything that a question or a solution can mention."""

    name: str
    pronoun: str
    possessive: str
    friend: str
    items: str
    start: int
    steps: tuple[Step, ...]
    colour: str
    other_colour: str
    container: str
    other_container: str
    place: str

    @property
    def totals(self) -> list[int]:
        """Totals after every step; the last one is the answer."""
        totals = [self.start]
        for step in self.steps:
            totals.append(step.apply(totals[-1]))
        return totals[1:]


def core(start: int, steps: list[tuple[str, int]]) -> str:
    """Normal form of an arithmetic, such as `24 +5 *2`: the start, then each operation with its
    number.
    """
    sign = {"gain": "+{}", "lose": "-{}", "double": "*2", "triple": "*3"}
    return " ".join([str(start), *(sign[operation].format(amount) for operation, amount in steps)])


def part_of(core: str) -> str:
    """The part that a core belongs to. A fixed hash decides, so parts are disjoint for every seed
    and setting.
    """
    twentieth = int.from_bytes(hashlib.sha256(core.encode()).digest()[:4], "big") % 20
    return next(part for part, range_ in PARTS.items() if twentieth in range_)


def draw_arithmetic(
    params: WorldParams,
    part: str,
    rng: random.Random,
) -> tuple[int, list[tuple[str, int]]]:
    """Draw a start and operations whose totals stay within the world's bounds and whose core
    belongs to `part`.
    """
    num_steps = rng.randint(params.min_steps, params.max_steps)
    while True:
        start = rng.randint(*params.numbers)
        total = start
        steps = []
        for _ in range(num_steps):
            step = (rng.choice(OPERATIONS), rng.randint(2, 9))
            total = Step(*step, "").apply(total)
            if not 1 <= total <= params.max_total:
                break
            steps.append(step)
        if len(steps) == num_steps and part_of(core(start, steps)) == part:
            return start, steps


def draw_problem(params: WorldParams, part: str, rng: random.Random) -> Problem:
    """Draw one problem of `part`."""
    start, drawn = draw_arithmetic(params, part, rng)
    person, (friend, _, _) = rng.sample(PEOPLE, 2)
    colour, other_colour = rng.sample(COLOURS, 2)
    container, other_container = rng.sample(CONTAINERS, 2)
    days = rng.sample(DAYS, len(drawn))
    steps = tuple(Step(*step, day) for step, day in zip(drawn, days))
    items = rng.choice(ITEMS)
    place = rng.choice(PLACES)
    ornaments = (colour, other_colour, container, other_container, place)
    return Problem(*person, friend, items, start, steps, *ornaments)


Wording = Mapping[str, list[float]]
"""Frequencies of what can be said, by site, in the order of the lexicon."""


def zipf(keys: list[float], skew: float) -> list[float]:
    """Frequencies 1 / rank^skew, normalised; the largest key has rank 1."""
    ranked = sorted(keys, reverse=True)
    raw = [(ranked.index(key) + 1) ** -skew for key in keys]
    return [weight / sum(raw) for weight in raw]


def make_wording(params: WorldParams, dialect: str, seed: int) -> Wording:
    """The wording of a dialect, `target` or `draft`. Both tell questions alike, in the shifted
    world as neither has read them. In solutions the draft mixes the target's keys with its own: at
    distance 0 it ranks as the target.
    """

    def key(speaker: str, site: str, i: int) -> float:
        return random.Random(f"{seed} {speaker} {site} {i}").gauss(0, 1)

    wording = {}
    for site, sentences in SITES.items():
        speaker = "shifted" if params.kind == "shifted" and site in QUESTION else "target"
        distance = 0.0 if dialect == "target" or site in QUESTION else params.dialect_distance
        keep = math.sqrt(1 - distance**2)
        keys = [
            keep * key(speaker, site, i) + distance * key("draft", site, i)
            for i in range(len(sentences))
        ]
        wording[site] = zipf(keys, params.skew)
    return wording


@dataclass
class TextWriter:
    """Writes questions and worked solutions in one wording; with ornaments or without."""

    wording: Wording
    ornaments: bool

    def question(self, problem: Problem, rng: random.Random) -> str:
        """The question: start, one sentence per step, what is asked."""
        say = self._speaker(problem, rng)
        sentences = [say("q_start", stored=say("q_stored") if self.ornaments else "")]
        if self.ornaments:
            sentences.append(say("q_meeting"))
        for i, step in enumerate(problem.steps):
            when = f"On {step.day}" if self.ornaments else ("First", "Then", "Next", "Later")[i]
            sentences.append(say(f"q_step.{step.operation}", when=when, amount=step.amount))
        return " ".join([*sentences, say("q_ask")])

    def solution(self, problem: Problem, rng: random.Random) -> str:
        """The worked solution; its last line is `#### answer`."""
        say = self._speaker(problem, rng)
        answer = problem.totals[-1]
        stored = say("stored") if self.ornaments else ""
        sentences = [f"{say('opener')} {say('have')}{stored}."]
        befores = [problem.start, *problem.totals]
        for step, before, after in zip(problem.steps, befores, problem.totals):
            fill = {**vars(step), "before": before, "after": after}
            detail = say("detail", **fill) if self.ornaments else ""
            sentences.append(
                f"{say('connective')}{detail} {say('subject')}"
                f" {say(f'verb.{step.operation}', **fill)}"
                f"{say('link')} {say(f'equation.{step.operation}', **fill)}{say('tail')}."
            )
        return " ".join([*sentences, say("final", after=answer)]) + f"\n#### {answer}"

    def _speaker(self, problem: Problem, rng: random.Random) -> Callable[..., str]:
        def say(site: str, **fill: Any) -> str:
            sentence = rng.choices(SITES[site], self.wording[site])[0]
            return sentence.format(**{**vars(problem), **fill})

        return say


def documents(
    params: WorldParams,
    seed: int,
    part: str,
    count: int,
    dialect: str = "target",
    stream: str = "",
) -> list[dict[str, str]]:
    """Draw `count` documents {"question", "answer"} of a part (`corpus`, `train`, `test`). The
    parts share no arithmetic. Within a part every document is drawn independently of the others,
    which certificates rely on; an arithmetic may come again in other words. Each `stream` draws
    others.
    """
    rng = random.Random(" ".join(filter(None, (str(seed), part, dialect, stream))))
    writer = TextWriter(make_wording(params, dialect, seed), params.ornaments)
    rows = []
    for _ in range(count):
        problem = draw_problem(params, part, rng)
        question = writer.question(problem, rng)
        rows.append({"question": question, "answer": writer.solution(problem, rng)})
    return rows


def write_task_files(params: WorldParams, seed: int, folder: Path) -> None:
    """Write train.jsonl and test.jsonl, byte by byte the same for the same parameters and seed."""
    for part, count in {"train": params.task_train, "test": params.task_test}.items():
        write_json_lines(folder / f"{part}.jsonl", documents(params, seed, part, count))


def prompt_text(question: str) -> str:
    """The context of a problem, as `doc_to_text` of data/tasks/wordproblems.yaml builds it."""
    return f"Question: {question}\nAnswer:"


def answer_of(text: str) -> str | None:
    """The number after the first `####`, or None."""
    match = re.search(r"#### \s*(\S+)", text)
    return match[1].rstrip(".") if match else None


def train_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE in which every word of the world is one token; it depends on no seed and no
    dial.
    """
    texts = []
    for ornaments in (True, False):
        params = WorldParams(
            kind="similar",
            skew=0.0,
            dialect_distance=0.8,
            ornaments=ornaments,
            min_steps=2,
            max_steps=4,
            max_total=99,
            task_train=1,
            task_test=1,
        )
        rng = random.Random(0)
        writer = TextWriter(make_wording(params, "target", 0), ornaments)
        for _ in range(400):
            problem = draw_problem(params, "corpus", rng)
            texts.append(
                f"{prompt_text(writer.question(problem, rng))} {writer.solution(problem, rng)}"
            )
    raw = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(PATTERN), "isolated")
    in_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.pre_tokenizer = pre_tokenizers.Sequence([split, in_bytes])
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=8192,  # far more than needed: merging ends when every word is whole
        min_frequency=1,
        special_tokens=[PAD, BOS, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator([*texts, *(f" {word}" for word in words())], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=raw,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        padding_side="left",
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )


def words() -> list[str]:
    """Every filled-in word: names, pronouns, items, colours, containers, days, places."""
    people = [word for person in PEOPLE for word in person]
    return sorted({*people, *ITEMS, *COLOURS, *CONTAINERS, *DAYS, *PLACES})


def padded_size(tokenizer: PreTrainedTokenizerFast) -> int:
    """Vocabulary size of the models: the next multiple of 16, which matrix kernels like."""
    return -(-len(tokenizer) // 16) * 16
