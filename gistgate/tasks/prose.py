"""Whether a text is running English, rather than bare values, a form, the prompt once more, the
same words again, or words in no order.

Nothing here parses: sentences need a finite verb, texts need words of grammar in a possible order.
"""

import re
from collections.abc import Sequence
from itertools import pairwise

from gistgate.tasks.facts import Fact

TOLD = 0.5  # least share of a text's words in sentences with a verb that the prompt does not have
GRAMMAR = 0.15  # least share of words of grammar; English letters have half, advertisements a third
REPEATED = 0.3  # largest share of runs of four words that stand earlier in the text
DISORDER = 0.03  # largest share of pairs of words that English does not have
COPIED = 5  # words in a row that make a copy of the prompt
WHOLE = 0.5  # share of the prompt from which on a text is a copy of it

SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+|\n+")
WORD = re.compile(r"[^\W_]+(?:['.,:-][^\W_]+)*")


def vocabulary(text: str) -> frozenset[str]:
    """The set of the words in a text."""
    return frozenset(text.split())


DETERMINERS = vocabulary("the a an our your my their its every")
SUBJECTS = vocabulary("i we they he she")
OBJECTS = vocabulary("you it me us them him")
PREPOSITIONS = vocabulary(
    "of at from with for into in on by to about as after before between without over under through"
    " during until since near behind beside"
)
CONJUNCTIONS = vocabulary("and or but if because while so than that")
FINITE = vocabulary("is are was were am will would can could has had does did")
MODALS = vocabulary("will would can could must should may might shall")
AUXILIARIES = FINITE | vocabulary("have do be been being may might must shall should")
OTHERS = vocabulary(
    "this these those there here what which who whose when where why how not no any some all both"
    " each more most other such only just also very too up out his her let please"
)
GRAMMATICAL = DETERMINERS | SUBJECTS | OBJECTS | PREPOSITIONS | CONJUNCTIONS | AUXILIARIES | OTHERS
VERBS = vocabulary("""
    join meet begin begins bring brings hold holds costs weighs measures come comes make makes give
    gives take takes offers invite invites write writes hope hopes let lets see sees enjoy enjoys
    adds keep keeps serve serves need needs want wants feel feels turns combine combines boasts
    stands fits opens closes pay pays leads runs directs thank know knows like likes love loves
    think thinks remember remind confirm confirms announce expect expects send reply ask asks find
    finds helps get gets go goes catches lends treat imagine discover experience elevate transform
    enhances complements features provides ensures guarantees sells promises presents introduce
    introducing introduces blends hosts attend gather celebrate arrive arrives hangs greets looks
    began came went wrote became said hurry bids starts fit pack packs accommodate accommodates
    brightens captures brings includes reach welcome
    """)
VOWEL = re.compile(r"(?!one|once|eu)[aeio]")
CONSONANT = re.compile(r"(?!ho|hei)[bcdfghjklmnpqrstvwz]\w\w|[2-79]")
CLAUSE = re.compile(r"[.!?,;:()\"]+(?=\s|$)|[(\"]|\s-\s")
CONTRACTED = re.compile(r"\w+(?:n't|'(?:s|re|ve|ll|d|m))$")

THIRD_PERSON = vocabulary(  # forms that are no nouns
    "weighs brings comes makes gives takes writes sees enjoys adds keeps serves brightens enhances"
    " ensures provides invites begins lends goes gets knows sells combines"
)
STARTERS = vocabulary(
    "let bring join enjoy please thank if when where who what why because so there"
)
# Words, and words that cannot stand directly behind them.
IMPOSSIBLE = (
    (
        DETERMINERS,
        DETERMINERS
        | SUBJECTS
        | OBJECTS
        | FINITE
        | THIRD_PERSON
        | STARTERS
        | vocabulary("of at from with for into in on by as to and or but be been that than this"),
    ),
    (
        vocabulary("of at from with for into by in on"),
        FINITE | SUBJECTS | THIRD_PERSON | vocabulary("to and or but if be please let"),
    ),
    (vocabulary("of at with for into to"), vocabulary("of with for from into")),
    (vocabulary("in on by from"), vocabulary("of")),
    (vocabulary("to"), FINITE | SUBJECTS | THIRD_PERSON | vocabulary("and or but than if")),
    (SUBJECTS, DETERMINERS | vocabulary("of from into to by with for and or than")),
    (vocabulary("i we they you"), THIRD_PERSON | vocabulary("is has does")),
    (vocabulary("and or but than"), vocabulary("and or but of than")),
    (MODALS, FINITE | THIRD_PERSON | vocabulary("of from with into by to and or than")),
    (vocabulary("is are was were am be"), FINITE | THIRD_PERSON | vocabulary("be have do than")),
    (vocabulary("have has had"), FINITE | THIRD_PERSON | vocabulary("have of")),
    (vocabulary("very"), DETERMINERS | SUBJECTS | FINITE | PREPOSITIONS),
)
UNFINISHED = (  # words that end no sentence
    DETERMINERS
    | SUBJECTS
    | vocabulary("and or but of from into than is are will would can't don't")
)
UNBEGUN = vocabulary("of than been")  # words that begin no sentence


def is_prose(text: str, facts: Sequence[Fact], request: str = "") -> bool:
    """Whether a text in lower case is running English of its own beside the `request`, in whose
    lines the labels of the facts stand.
    """
    words = words_in(text)
    if not words:
        return False
    num_told = told_words(text, facts, request)
    grammar = sum(is_grammatical(word) for word in words)
    return (
        num_told >= TOLD * len(words)
        and grammar >= GRAMMAR * len(words)
        and repeats(words) <= REPEATED
        and not is_disordered(text)
    )


def sentences(text: str) -> list[str]:
    """The sentences and lines of a text."""
    return [sentence for sentence in SENTENCE_END.split(text) if sentence.strip()]


def words_in(text: str) -> list[str]:
    """The words and numbers of a text."""
    return WORD.findall(text)


def is_grammatical(word: str) -> bool:
    """Whether a word serves grammar."""
    return word in GRAMMATICAL or bool(CONTRACTED.match(word))


def tells(words: Sequence[str]) -> bool:
    """Whether a sentence has a finite verb, or a pronoun that is nothing without one; "am" may also
    be an hour's.
    """
    verbs = VERBS | SUBJECTS | AUXILIARIES - {"am"}
    if any(word in verbs or CONTRACTED.match(word) for word in words):
        return True
    pairs = pairwise(words)
    return any(word.endswith("ed") and behind in DETERMINERS for word, behind in pairs)


def told_words(text: str, facts: Sequence[Fact], request: str) -> int:
    """Words in sentences that have a verb; those of the prompt do not count in a text that has most
    of it.
    """
    source = runs(words_in(request.casefold()), COPIED)
    copied = source & runs(words_in(text), COPIED)
    if len(copied) < WHOLE * len(source):
        copied = set()
    num_told = 0
    for sentence in sentences(without_entries(text, facts)):
        words = words_in(sentence)
        if tells(words):
            num_told += len(words) - words_of_runs(words, copied)
    return num_told


def without_entries(text: str, facts: Sequence[Fact]) -> str:
    """A text without what the lines of the prompt say, such as "Hour: 9 am"."""
    for entry in facts:
        line = f"{entry['label']}: {entry['value']}".casefold()
        text = text.replace(line, ". ")
    return text


def runs(words: Sequence[str], length: int) -> set[tuple[str, ...]]:
    """All runs of this many words."""
    return {tuple(words[start : start + length]) for start in range(len(words) - length + 1)}


def words_of_runs(words: Sequence[str], source: set[tuple[str, ...]]) -> int:
    """Words that belong to a run of `source`."""
    copied = set[int]()
    for start in range(len(words) - COPIED + 1):
        if tuple(words[start : start + COPIED]) in source:
            copied.update(range(start, start + COPIED))
    return len(copied)


def repeats(words: Sequence[str]) -> float:
    """Share of runs of four words that stand in the text before."""
    number = len(words) - 3
    return 1 - len(runs(words, 4)) / number if number > 0 else 0.0


def is_disordered(text: str) -> bool:
    """Whether words of grammar follow each other as in no English sentence, more than once."""
    wrong = 0
    number = 0
    for part in CLAUSE.split(text):
        words = words_in(part)
        number += len(words)
        wrong += sum(map(is_impossible, words, words[1:]))
        wrong += bool(words) and (words[-1] in UNFINISHED) + (words[0] in UNBEGUN)
    return wrong > max(1, DISORDER * number)


def is_impossible(word: str, following: str) -> bool:
    """Whether two words cannot stand side by side."""
    if word == following:
        return word not in ("that", "had") and word.isalpha()
    if word == "a" and VOWEL.match(following):
        return True
    if word == "an" and CONSONANT.match(following):
        return True
    if word in DETERMINERS and CONTRACTED.match(following) and not following.endswith("'s"):
        return True
    return any(word in first and following in second for first, second in IMPOSSIBLE)
