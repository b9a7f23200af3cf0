"""A problem: who, what, how many, which operations. Its arithmetic decides the answer, all else is ornament."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from math import prod
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from gistgate.core.files import write_json_lines
from pipeline.params import WorldParams
from pipeline.paths import WORLD

# ---- The words of the world, and for every site of a text the wordings that say the same.


HER, HIS = ("she", "her"), ("he", "his")
WOMEN = "Anna Bella Clara Dora Emma Frida Greta Hanna Iris Julia Lena Mia"
MEN = "Adam Ben Carl David Emil Felix Georg Hugo Ivan Jonas Leo Max"
PEOPLE = [*((name, *HER) for name in WOMEN.split()), *((name, *HIS) for name in MEN.split())]
"""Name, pronoun, possessive."""
ITEMS = ["apples", "beads", "books", "buttons", "cards", "coins", "cookies", "eggs", "marbles", "nuts", "pencils"]
ITEMS += ["shells", "stamps", "stones", "tickets", "toys"]
COLOURS = ["black", "blue", "brown", "green", "orange", "pink", "purple", "red", "white", "yellow"]
CONTAINERS = ["bag", "basket", "box", "bucket", "chest", "crate", "drawer", "jar"]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
PLACES = ["beach", "castle", "garden", "harbour", "library", "market", "museum", "park", "school", "station"]

QUESTION: dict[str, list[str]] = {
    "q_start": [
        "{name} has {start} {items}{stored}.",
        "{name} owns {start} {items}{stored}.",
        "There are {start} {items} that {name} keeps{stored}.",
        "{name} starts with {start} {items}{stored}.",
        "Today {name} counts {start} {items}{stored}.",
    ],
    "q_stored": [
        " in a {colour} {container}, next to a {other_colour} {other_container}",
        " in a {colour} {container} behind a {other_colour} {other_container}",
        " inside a {colour} {container}, not in the {other_colour} {other_container}",
        " in the {colour} {container} and none in the {other_colour} {other_container}",
    ],
    "q_meeting": [
        "{friend} waits at the {place}.",
        "{friend} comes along to the {place}.",
        "At the {place} is {friend}.",
        "{friend} is a friend from the {place}.",
    ],
    "q_step.gain": [
        "{when} {name} finds {amount} more.",
        "{when} {name} buys {amount} more.",
        "{when} {name} wins {amount} new {items}.",
        "{when} somebody brings {amount} more.",
        "{when} {amount} new {items} arrive.",
    ],
    "q_step.lose": [
        "{when} {name} loses {amount} of them.",
        "{when} {name} gives {amount} away.",
        "{when} {amount} of them break.",
        "{when} {name} sells {amount} {items}.",
        "{when} somebody takes {amount} of them.",
    ],
    "q_step.double": [
        "{when} the number doubles.",
        "{when} {name} doubles the {items}.",
        "{when} there are twice as many.",
        "{when} each of them becomes two.",
    ],
    "q_step.triple": [
        "{when} the number triples.",
        "{when} {name} triples the {items}.",
        "{when} there are three times as many.",
        "{when} each of them becomes three.",
    ],
    "q_ask": [
        "How many {items} does {name} have now?",
        "How many {items} are there in the end?",
        "How many {items} remain?",
        "What is the number of {items} now?",
        "Count the {items} at the end.",
    ],
}

SOLUTION: dict[str, list[str]] = {
    "opener": ["At first", "To begin with", "Originally", "In the beginning", "Before all this", "Initially"],
    "have": [
        "{name} had {start} {items}",
        "there were {start} {items}",
        "we had {start} {items}",
        "{pronoun} owned {start} {items}",
        "the number of {items} was {start}",
        "we counted {start} {items}",
    ],
    "stored": [
        " in the {colour} {container}",
        " inside {possessive} {colour} {container}",
        ", kept in a {colour} {container}",
        ", all of them in the {colour} {container}",
        "",
    ],
    "connective": ["Then", "Next", "After that", "Later", "Now", "Afterwards"],
    "detail": [", on {day},", ", at the {place},", ", with {friend},", " on that {day}", " near the {place}", ""],
    "subject": ["{name}", "{pronoun}", "we", "they", "the friends"],
    "verb.gain": [
        "got {amount} more",
        "added {amount}",
        "found {amount} more",
        "gained {amount}",
        "put {amount} on top",
    ],
    "verb.lose": ["lost {amount}", "gave away {amount}", "removed {amount}", "took off {amount}", "dropped {amount}"],
    "verb.double": [
        "doubled the number",
        "had twice as many",
        "multiplied by two",
        "saw the number double",
        "counted everything twice",
    ],
    "verb.triple": [
        "tripled the number",
        "had three times as many",
        "multiplied by three",
        "saw the number triple",
        "counted everything three times",
    ],
    "link": [", so there were", ", which makes", ", giving", " and had", ": that is", ", in numbers"],
    "equation.gain": ["{before} + {amount} = {after}", "{amount} + {before} = {after}"],
    "equation.lose": ["{before} - {amount} = {after}", "- {amount} + {before} = {after}"],
    "equation.double": ["{before} * 2 = {after}", "2 * {before} = {after}", "{before} + {before} = {after}"],
    "equation.triple": ["{before} * 3 = {after}", "3 * {before} = {after}"],
    "tail": [" {items}", " in total", " altogether", " pieces", " of them", ""],
    "final": [
        "So {name} has {after} {items}.",
        "The answer is {after}.",
        "In the end there are {after} {items}.",
        "That leaves {after}.",
        "Finally {pronoun} has {after}.",
        "Therefore we have {after} {items}.",
    ],
}

SITES = {**QUESTION, **SOLUTION}
"""Every site; QUESTION and SOLUTION share no name."""

OPERATIONS = ("gain", "lose", "double", "triple")
PARTS = {"corpus": range(0, 12), "train": range(12, 17), "test": range(17, 20)}
"""Twentieths of all arithmetic cores that belong to the models' corpora, the task's training and its test file."""


@dataclass(frozen=True)
class Step:
    """One operation; `amount` counts for gain and lose only."""

    operation: str
    amount: int
    day: str

    def apply(self, total: int) -> int:
        """The total after this step."""
        return {
            "gain": total + self.amount,
            "lose": total - self.amount,
            "double": total * 2,
            "triple": total * 3,
        }[self.operation]


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
    container: str
    other_colour: str
    other_container: str
    place: str

    @property
    def totals(self) -> list[int]:
        """Totals after every step."""
        totals, total = [], self.start
        for step in self.steps:
            total = step.apply(total)
            totals.append(total)
        return totals

    @property
    def answer(self) -> int:
        """The last total."""
        return self.totals[-1]


def core(start: int, steps: list[tuple[str, int]]) -> str:
    """Normal form of an arithmetic, such as `24 +5 *2`: the start, then each operation with its number."""
    sign = {"gain": "+{}", "lose": "-{}", "double": "*2", "triple": "*3"}
    return " ".join([str(start), *(sign[operation].format(amount) for operation, amount in steps)])


def part_of(core: str) -> str:
    """The part that a core belongs to. A fixed hash decides, so parts are disjoint for every seed and setting."""
    twentieth = int.from_bytes(hashlib.sha256(core.encode()).digest()[:4], "big") % 20
    return next(part for part, range_ in PARTS.items() if twentieth in range_)


Arithmetic = tuple[int, list[tuple[str, int]]]
"""A start, then each operation with its number."""


def draw_arithmetic(params: WorldParams, part: str, rng: random.Random, num_steps: int) -> Arithmetic:
    """Draw a start and operations whose totals stay within the world's bounds and whose core belongs to `part`."""
    while True:
        start = rng.randint(*params.numbers)
        total, steps = start, []
        for _ in range(num_steps):
            operation, amount = rng.choice(OPERATIONS), rng.randint(2, 9)
            total = Step(operation, amount, "").apply(total)
            if not 1 <= total <= params.max_total:
                break
            steps.append((operation, amount))
        if len(steps) == num_steps and part_of(core(start, steps)) == part:
            return start, steps


def draw_problem(params: WorldParams, part: str, rng: random.Random) -> Problem:
    """Draw one problem of `part`."""
    start, steps = draw_arithmetic(params, part, rng, rng.randint(params.min_steps, params.max_steps))
    (name, pronoun, possessive), (friend, _, _) = rng.sample(PEOPLE, 2)
    colour, other_colour = rng.sample(COLOURS, 2)
    container, other_container = rng.sample(CONTAINERS, 2)
    days = rng.sample(DAYS, len(steps))
    return Problem(
        name=name,
        pronoun=pronoun,
        possessive=possessive,
        friend=friend,
        items=rng.choice(ITEMS),
        start=start,
        steps=tuple(Step(operation, amount, day) for (operation, amount), day in zip(steps, days, strict=True)),
        colour=colour,
        container=container,
        other_colour=other_colour,
        other_container=other_container,
        place=rng.choice(PLACES),
    )


# ---- A style ranks the wordings of every site and chooses among them with Zipf's law.


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


# ---- Tell a problem: its question and its worked solution, in GSM8K's form with `#### answer` at the end.


class Teller:
    """Writes texts in one style; with ornaments or without."""

    def __init__(self, style: Style, ornaments: bool) -> None:
        self.style = style
        self.ornaments = ornaments

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
        stored = say("stored") if self.ornaments else ""
        sentences = [f"{say('opener')} {say('have')}{stored}."]
        befores = [problem.start, *problem.totals]
        for step, before, after in zip(problem.steps, befores, problem.totals, strict=False):
            sentences.append(self._step(say, step, before, after))
        return " ".join([*sentences, say("final", after=problem.answer)]) + f"\n#### {problem.answer}"

    def _step(self, say: Callable[..., str], step: Step, before: int, after: int) -> str:
        fill = {"amount": step.amount, "day": step.day, "before": before, "after": after}
        detail = say("detail", **fill) if self.ornaments else ""
        action = f"{say('connective')}{detail} {say('subject')} {say(f'verb.{step.operation}', **fill)}"
        return f"{action}{say('link')} {say(f'equation.{step.operation}', **fill)}{say('tail')}."

    def _speaker(self, problem: Problem, rng: random.Random) -> Callable[..., str]:
        facts = vars(problem)

        def say(site: str, **fill: object) -> str:
            return self.style.choose(site, rng, SITES[site]).format(**{**facts, **fill})

        return say


# ---- Documents of the world: the task's two files and the corpora that the models are taught.


def documents(
    params: WorldParams, seed: int, part: str, count: int, dialect: str = "target", stream: str = ""
) -> list[dict[str, str]]:
    """Draw `count` documents {"question", "answer"} of a part (`corpus`, `train`, `test`).

    The parts share no arithmetic. Within a part every document is drawn independently of the others, so that any two
    sets of documents of a part speak about the same problems, which certificates rely on; an arithmetic may come again
    in other words. (Without repetitions, later documents would be longer: there are fewer short problems.) Both
    dialects tell questions in the target's style, only solutions differ. Each `stream` draws other documents.
    """
    rng = random.Random(" ".join(filter(None, (str(seed), part, dialect, stream))))
    teller = Teller(make_style(params, dialect, seed), params.has_ornaments)
    problems = (draw_problem(params, part, rng) for _ in range(count))
    return [{"question": teller.question(one, rng), "answer": teller.solution(one, rng)} for one in problems]


def write_task_files(params: WorldParams, seed: int, folder: Path = WORLD) -> None:
    """Write train.jsonl and test.jsonl, byte by byte the same for the same parameters and seed."""
    for part, count in (("train", params.task_train), ("test", params.task_test)):
        write_json_lines(folder / f"{part}.jsonl", documents(params, seed, part, count))


def prompt_text(question: str) -> str:
    """The context of a problem, as `doc_to_text` of data/tasks/wordproblems.yaml builds it."""
    return f"Question: {question}\nAnswer:"


def answer_of(text: str) -> str | None:
    """The number after the first `####`, or None."""
    _, mark, rest = text.partition("#### ")
    digits = rest.split()[:1]
    return digits[0].rstrip(".") if mark and digits else None


# ---- Problems of the embedded world beside those of the task's files: an endless supply for calibration.


PURPOSES = ("calibration", "certify", "labels", "speed")
"""What draws problems: the run's own calibration, `make certify`, the study of labels, and `make speed`."""


def further_documents(params: WorldParams, seed: int, purpose: str, count: int, draw: int) -> list[dict[str, str]]:
    """The draw number `draw` (from 1 on) of `count` problems for a purpose.

    They are drawn exactly as those of the test file and independently of them, of other draws and of other purposes.
    A certificate that is made with them therefore speaks about the problems of the test file. An arithmetic may come
    twice, in other words; none of them is in the training file or in a corpus.
    """
    if purpose not in PURPOSES:
        raise ValueError(f"nothing draws problems for the purpose '{purpose}'")
    return documents(params, seed, "test", count, stream=f"{purpose} {draw}")


# ---- The tokenizer of the embedded pair: byte-level BPE in which every word of the world is one token.


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
    people = [word for person in PEOPLE for word in person]
    return sorted({*people, *ITEMS, *COLOURS, *CONTAINERS, *DAYS, *PLACES})


def padded_size(tokenizer: PreTrainedTokenizerFast) -> int:
    """Vocabulary size of the models: the next multiple of 16, which matrix kernels like."""
    return -(-len(tokenizer) // 16) * 16


# ---- Small requests for Python functions with unit tests: documents of the task `python-functions`, without a download.


SIZES = {"train": 1200, "test": 400}
"""Documents of each file."""
TESTS = 5
"""Unit tests of a document; the first is the example in its request."""
LETTERS = "abdegilmnorstu"
WORDS = (
    "amber", "anna", "apple", "arrow", "bread", "candle", "civic", "cloud", "eagle", "ember", "field", "garden",
    "glass", "harbor", "island", "kayak", "lemon", "level", "linen", "maple", "meadow", "mirror", "noon", "ocean",
    "olive", "orange", "otter", "paper", "pebble", "radar", "river", "rotor", "silver", "stone", "summer", "tulip",
    "umbrella", "valley", "violin", "window",
)  # fmt: skip


@dataclass(frozen=True)
class StepFunctions:
    """One step of a function: how it is asked for, its part of the function's name, and what it does."""

    said: str
    name: str
    do: Callable[[Any], Any]


def numbers_selected(draw: random.Random) -> StepFunctions:
    """Which numbers stay."""
    n, low = draw.randint(2, 7), draw.randint(-4, 15)
    return draw.choice(
        [
            StepFunctions(f"that are divisible by {n}", f"divisible_by_{n}", lambda x: x % n == 0),
            StepFunctions(f"that are not divisible by {n}", f"not_divisible_by_{n}", lambda x: x % n != 0),
            StepFunctions(f"that are greater than {low}", "large", lambda x: x > low),
            StepFunctions(f"that are smaller than {low}", "small", lambda x: x < low),
            StepFunctions("that are odd", "odd", lambda x: x % 2 == 1),
            StepFunctions("that are negative", "negative", lambda x: x < 0),
            StepFunctions(f"whose absolute value is at most {low + 6}", "near_zero", lambda x: abs(x) <= low + 6),
        ]
    )


def number_changed(draw: random.Random) -> StepFunctions:
    """What becomes of each number."""
    n = draw.randint(2, 9)
    return draw.choice(
        [
            StepFunctions("squares each of them", "squares", lambda x: x * x),
            StepFunctions(f"multiplies each of them by {n}", f"times_{n}", lambda x: x * n),
            StepFunctions(f"adds {n} to each of them", f"plus_{n}", lambda x: x + n),
            StepFunctions(f"subtracts each of them from {n}", f"from_{n}", lambda x: n - x),
            StepFunctions("takes the absolute value of each of them", "absolute", abs),
            StepFunctions("replaces each of them by the sum of its decimal digits", "digit_sums", digit_sum),
            StepFunctions(
                f"takes the remainder of each of them on division by {n} (as % does)", f"mod_{n}", lambda x: x % n
            ),
        ]
    )


def numbers_combined(draw: random.Random) -> StepFunctions:
    """What is returned."""
    return draw.choice(
        [
            StepFunctions("their sum", "sum", sum),
            StepFunctions("their product (1 if there is none)", "product", prod),
            StepFunctions("the largest of them (0 if there is none)", "max", lambda xs: max(xs, default=0)),
            StepFunctions("the smallest of them (0 if there is none)", "min", lambda xs: min(xs, default=0)),
            StepFunctions("the largest minus the smallest (0 if there is none)", "spread", spread),
            StepFunctions("a list of them in ascending order", "sorted", sorted),
            StepFunctions("a list of them without repetitions, in order of first appearance", "unique", unique),
            StepFunctions("a list of their running totals", "totals", lambda xs: list(accumulate(xs))),
            StepFunctions("a text of them joined by commas", "text", lambda xs: ",".join(map(str, xs))),
        ]
    )


def words_selected(draw: random.Random) -> StepFunctions:
    """Which words stay."""
    n, letter = draw.randint(3, 6), draw.choice(LETTERS)
    return draw.choice(
        [
            StepFunctions(f"with more than {n} letters", f"longer_than_{n}", lambda w: len(w) > n),
            StepFunctions(f"that contain the letter '{letter}'", f"with_{letter}", lambda w: letter in w),
            StepFunctions(f"that do not contain the letter '{letter}'", f"without_{letter}", lambda w: letter not in w),
            StepFunctions("that begin with a vowel", "vowel", lambda w: w[0] in "aeiou"),
            StepFunctions("that read the same backwards", "palindromes", lambda w: w == w[::-1]),
        ]
    )


def word_changed(draw: random.Random) -> StepFunctions:
    """What becomes of each word."""
    letter = draw.choice(LETTERS)
    return draw.choice(
        [
            StepFunctions("writes each of them in capitals", "capitals", str.upper),
            StepFunctions("reverses each of them", "reversed", lambda w: w[::-1]),
            StepFunctions("takes the last letter of each of them", "last_letters", lambda w: w[-1]),
            StepFunctions(
                f"removes every '{letter}' from each of them", f"no_{letter}", lambda w: w.replace(letter, "")
            ),
            StepFunctions("writes each of them twice in a row", "doubled", lambda w: w + w),
        ]
    )


def words_combined(draw: random.Random) -> StepFunctions:
    """What is returned."""
    return draw.choice(
        [
            StepFunctions("a list of them in alphabetical order", "sorted", sorted),
            StepFunctions("a list of them in reverse order", "backwards", lambda ws: ws[::-1]),
            StepFunctions("a text of them joined by hyphens", "joined", "-".join),
            StepFunctions("the number of their letters altogether", "letters", lambda ws: sum(map(len, ws))),
            StepFunctions("a list of them without repetitions, in order of first appearance", "unique", unique),
        ]
    )


KINDS: dict[str, tuple[tuple[Callable[[random.Random], StepFunctions], ...], Callable[[random.Random], list[Any]]]] = {
    "numbers": (
        (numbers_selected, number_changed, numbers_combined),
        lambda draw: [draw.randint(-12, 30) for _ in range(draw.randint(4, 8))],
    ),
    "words": (
        (words_selected, word_changed, words_combined),
        lambda draw: [draw.choice(WORDS) for _ in range(draw.randint(3, 7))],
    ),
}
"""The steps of a function and the lists that it is tested on, by the name of its argument."""
REQUESTS = (
    "Write a Python function `{name}({argument})` that selects the {argument} {selected}, {changed}, and returns "
    "{combined}.",
    "Write the Python function `{name}`. It gets a list `{argument}`, keeps those {selected}, {changed}, and returns "
    "{combined}.",
)


def digit_sum(number: int) -> int:
    """The sum of a number's decimal digits."""
    return sum(map(int, str(abs(number))))


def spread(values: Sequence[int]) -> int:
    """The largest minus the smallest."""
    return max(values) - min(values) if values else 0


def unique(values: Sequence[Any]) -> list[Any]:
    """The values without repetitions."""
    return list(dict.fromkeys(values))


def documents_functions(draw: random.Random) -> Iterator[dict[str, str]]:
    """Documents without end, no function twice."""
    seen: set[tuple[str, ...]] = set()
    while True:
        argument = draw.choice(list(KINDS))
        steps = [maker(draw) for maker in KINDS[argument][0]]
        key = tuple(step.said for step in steps)
        if key not in seen:
            seen.add(key)
            yield document(draw, argument, *steps)


def document(
    draw: random.Random, argument: str, selected: StepFunctions, changed: StepFunctions, combined: StepFunctions
) -> dict[str, str]:
    """The request for one function, its unit tests and its name."""
    name = f"{combined.name}_{changed.name}_{selected.name}"
    inputs = [*(KINDS[argument][1](draw) for _ in range(TESTS - 1)), []]
    calls = [f"{name}({given!r})" for given in inputs]
    values = [combined.do([changed.do(one) for one in given if selected.do(one)]) for given in inputs]
    said = {"selected": selected.said, "changed": changed.said, "combined": combined.said}
    request = draw.choice(REQUESTS).format(name=name, argument=argument, **said)
    return {
        "prompt": f"{request}\nExample: {calls[0]} == {values[0]!r}",
        "tests": "\n".join(f"assert {call} == {value!r}" for call, value in zip(calls, values, strict=True)),
        "entry_point": name,
    }


def write_functions(seed: int, folder: Path) -> None:
    """Write train.jsonl and test.jsonl, which share no request."""
    supply = documents_functions(random.Random(f"{seed} functions"))
    for split, size in SIZES.items():
        write_json_lines(folder / f"{split}.jsonl", list(islice(supply, size)))
