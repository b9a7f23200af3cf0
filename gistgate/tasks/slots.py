"""Whether a text gives a value to what it belongs to: black is a colour and no material, and an
adult pays the price of adults.
"""

import re

from gistgate.tasks.denials import BREAK
from gistgate.tasks.facts import Fact, Span
from gistgate.tasks.prose import SENTENCE_END

SLOTS = {  # labels of a fact, and the slot that they name
    "to": "reader",
    "addressed to": "reader",
    "signed by": "sender",
    "from": "sender",
    "when": "day",
    "date": "day",
    "time": "hour",
    "begins at": "hour",
    "place": "city",
    "where": "room",
    "please bring": "item",
    "to bring": "item",
    "participants": "guests",
    "product": "name",
    "article": "name",
    "color": "colour",
    "made of": "material",
    "dimensions": "size",
    "guarantee": "warranty",
    "made in": "origin",
}
NAMES = ("name", "reader", "sender")
CLOSING = r"(?:regards|wishes|sincerely|yours|cheers|best|love|truly)"

# The words directly in front of a value that say which slot it fills.
LEADS = {
    "reader": r"(?:dear|hi|hello|hey)",
    "sender": rf"{CLOSING}[,!]?",
    "item": r"bring(?:ing)?(?: (?:a|an|the|your|along))*",
    "price": r"(?:costs?|costing|priced at|price (?:is|of|tag of)|sells for|pays?)",
    "budget": r"budget (?:is|of)",
    "weight": r"(?:weighs|weighing|weight (?:is|of))(?: (?:just|only|about))?",
    "size": r"(?:measures|measuring|(?:size|dimensions) (?:is|are|of))",
    "warranty": r"(?:warranty|guarantee) (?:is|of)",
    "colour": r"colou?r(?: is| of)?",
    "material": r"(?:made|crafted|built|woven) (?:of|from)(?: pure)?",
    "origin": r"(?:made in|(?:comes|hails|imported|originates) from|originat\w+ in)",
    "hour": r"(?:begins?|starts?) at",
}
LEADS_IN = {slot: re.compile(rf"\b{lead}\s*$") for slot, lead in LEADS.items()}
ALSO_AT = ("price", "room", "city")  # a price starts at something, an event in a place
WRONG = {  # words in front of a value that never lead to this slot
    "day": r"\b(?:in|at)$",
    "hour": r"\b(?:in|day|date)$",
    "reader": r"\b(?:in|at|on|day of)$",
    "sender": r"\b(?:in|at|on|day of)$",
    "origin": r"\b(?:pure|solid|genuine)$",
}
QUALIFIES = re.compile(r"[ -](?!(?:from|and|or|in|for|with|by|at|on|to)\b)[a-z]")
"""A colour with a further word, as in "made of black leather"."""

ROLES = {  # the two values of a kind in a notice, and words that say which one is meant
    "opening": r"\b(?:open\w*|from|start\w*)\b",
    "closing": r"\b(?:clos\w*|until|till|to|shut\w*|end\w*)\b",
    "adult": r"\b(?:adults?|grown-ups?)\b",
    "child": r"\b(?:child|children|kids?)\b",
    "director": r"\b(?:direct\w*|runs?|run|manag\w*|head\w*)\b",
    "guide": r"\b(?:guid\w*|tours?|lead\w*)\b",
    "large hall": r"\b(?:large\w*|big\w*|main)\b",
    "small hall": r"\b(?:small\w*|little)\b",
    "first home": r"\b(?:first|began|begun|original\w*|initial\w*|start\w*|was|used)\b",
    "home today": r"\b(?:today|now|current\w*|present\w*)\b",
}
PAIRS = dict(zip(list(ROLES)[::2], list(ROLES)[1::2], strict=True))
OTHER = PAIRS | {second: first for first, second in PAIRS.items()}
CLAUSE = re.compile(rf"{BREAK.pattern}|\b(?:and|or)\b|{SENTENCE_END.pattern}")


def slot_of(entry: Fact) -> str:
    """The slot that the label of a fact names."""
    label = entry["label"].casefold()
    return SLOTS.get(label, label)


def is_misplaced(entry: Fact, text: str, span: Span) -> bool:
    """Whether a text in lower case gives a mentioned value to something else."""
    label = entry["label"].casefold()
    if label in ROLES:
        return plays_other_role(label, text, span)
    slot = slot_of(entry)
    start, end = span
    front = text[max(0, start - 40) : start].rstrip("$ \n")
    if slot in WRONG and re.search(WRONG[slot], front):
        return True
    if slot == "room" and re.match(r" o'clock", text[end:]):
        return True
    for led, lead in LEADS_IN.items():
        if led != slot and lead.search(front):
            is_start = led == "hour" and slot in ALSO_AT
            is_quality = slot in ("colour", "material") and QUALIFIES.match(text[end:])
            return not is_start and not is_quality
    return False


def plays_other_role(role: str, text: str, span: Span) -> bool:
    """Whether the clause around a mention has words of the other role alone."""
    start, end = span
    breaks = [match.span() for match in CLAUSE.finditer(text)]
    first = max((stop for begin, stop in breaks if stop <= start), default=0)
    last = min((begin for begin, stop in breaks if begin >= end), default=len(text))
    clause = text[first:start] + "~" + text[end:last]
    return bool(re.search(ROLES[OTHER[role]], clause)) and not re.search(ROLES[role], clause)
