"""Whether a text denies what it mentions: "it is not black", "Black? No.", "that is wrong"."""

import re

from gistgate.tasks.facts import Span
from gistgate.tasks.prose import SENTENCE_END

# Parts of the patterns below, in which a space is written "\ ".
BE = r"(?:is|are|was|were|be|been|'s|'re)"
NOT = r"(?:not|never|no\ longer)"
AUXILIARY = r"(?:is|are|was|were|does|do|did|has|have|had|will|would|can|could|should|must)"
NEGATED = rf"(?:{AUXILIARY}n't|won't|can't|shan't|cannot|ain't|am\ not|{AUXILIARY}\ {NOT})"
WHO = r"(?:i|we|you|he|she|it|they|this|that|there)"
SAID = (
    r"(?:this|that|it|these|those|they|which|(?:this|that|the)\ "
    r"(?:above|latter|number|price|date|name|part|value|statement|claim|fact))"
)
UNTRUE = (
    r"(?:wrong|false|incorrect|untrue|mistaken|made\ up|nonsense|invented|"
    r"(?:just\ |only\ )?an?\ (?:lie|mistake|error|joke|myth|rumou?r|typo))"
)
TRUE = r"(?:true|right|correct|so|accurate|the\ case|real|valid)"
ANOTHER = (
    r"(?:another|a\ different)\ "
    r"(?:one|day|date|hour|time|place|price|colou?r|number|city|room|material)"
)
SURELY = r"(?:of\ course|certainly|definitely|absolutely|surely|sadly|well)"

# What sounds like a denial and is none.
HARMLESS = re.compile(
    r"""
    (?:\bnot|n't|\bnever|\bcannot|\bwithout)\ (?:\w+\ ){0,2}?
      (?:hesitat\w+|worry|forget|miss|fail|late|wait|delay|regret|disappoint\w*|break|wrong|help
      |enough|beat|let|settle|look|mind|imagine|stop|happier|better|such|something
      |sacrific\w+|compromis\w+)\b
    | (?:\bnot|n't|\bnothing)\ (?:only|just|merely|simply|always|but|much|bad|least|to\ mention)
    | \b(?:no|not|n't)\ (?:later|fewer|less|more|earlier|longer)\ than
    | (?:\bnot|n't|\bnever)\ (?:\w+\ ){0,3}?(?:until|before|till)
    | \bno\ (?:doubt|need|problem|matter|wonder|worries|other|hidden|surprise|further|better
      |ordinary|one|finer|extra|additional|charge|cost|obligation|reason)\b
    | \bwithout\ (?:a\ )?(?:doubt|fail|further\ ado) | \b(?:complete|perfect|same)\ without
    | \bnever\ (?:goes|fails|looked|been|felt|tasted|too)
    | n't\ every\ day | \bwhether\ or\ not | \bif\ not | \bwhy\ not
    """,
    re.VERBOSE,
)
ALL_BUT = re.compile(r"\b(?:anything|anywhere|anyone|everything|everywhere|everyone|all) but\b")
BREAK = re.compile(
    r"[,;:()]|\s-\s|\b(?:but|while|although|though|because|so|if|when|whereas|which)\b"
    r"|\band (?=(?:we|you|i|it|they|he|she|this|that|there|the|our|your|its)\b)"
)
"""Where another clause begins."""
BEFORE = re.compile(
    rf"""
    \b(?:{NEGATED}|{NOT}|no|nor|neither|nobody|none|nothing|without|unlike|hardly|except|minus)\b
    | \w+n't\b
    | \b(?:instead|free|nowhere\ near|far|away|differs?|different|apart)\ (?:of|from)\b
    | \bnowhere\ near\b
    | \b(?:rather|other|fewer|less|another|different|later|earlier)\ (?:\w+\ ){{0,2}}?than\b
    | \b(?:lacks?|lacking|false|untrue|wrong|rumou?r|myth|refuses?|fails?|stopped|unsigned)\b
    """,
    re.VERBOSE,
)
"""Words that deny what follows in their clause."""
BEHIND = re.compile(
    rf"""
    (?:[\ -](?!(?:i|we|you|they|he|she|it|and|or|that|which)\b)\w+){{0,3}}?[\ -]
    (?: {NEGATED}\b
      | (?:{BE}|has\ been|have\ been)\ (?:all\ )?(?:wrong|false|incorrect|untrue|no\ good|cancell?ed
        |called\ off|off|(?:just\ )?an?\ (?:lie|mistake|error|joke|myth|rumou?r)
        |something\ (?:it|we|he|she)\ lacks?)
    )
    """,
    re.VERBOSE,
)
"""A denial whose subject ends with the mention."""
CANCELLED = re.compile(
    rf"""
    \b{SAID}\ ?(?:{BE}|{BE}\ all)\ {UNTRUE}\b
    | \b{SAID}\ ?(?:{BE}n't|{BE}\ (?:not|no\ longer|never))\ {TRUE}\b
    | \bneither\ (?:of\ \w+\ )?{BE}\ {TRUE}\b
    | \b(?:i|we)\ (?:was|were|am|are)\ (?:wrong|mistaken|lying|joking)\b
    | \b(?:i|we)\ (?:doubt|deny|(?:don't|do\ not|cannot|can't)\ believe)
      (?:\ (?:it|this|that))?\s*(?:[.,!;]|$)
    | \bor\ so\ they\ say\b
    | \b(?:forget|ignore|disregard|scratch|strike)\ (?:that|this|it|all\ of\ it|everything)
      (?:\ (?:number|price|date|hour|name|part))?\s*(?:[.,!;]|$)
    | \b(?:not\ really|not\ at\ all|(?:just|only)\ (?:kidding|joking))\b
    | ^\W*(?:{SURELY},?\ )?(?:no|nope|wrong|false|incorrect|untrue|not)\s*(?:[.,!;]|$)
    | \b{WHO}\ {NEGATED}\s*(?:[.,!;]|$)
    | \b{SAID}\ ?{BE}\ (?:(?:on|at|in)\ )?(?:somewhere\ else|elsewhere|{ANOTHER})\b
    | \b{SAID}\ has\ changed\b
    """,
    re.VERBOSE,
)
"""A clause or sentence that takes back what was said in front of it."""
ALL_CANCELLED = re.compile(
    rf"""
    \b(?:everything|all|each\ word|every\ word)(?:\ \w+){{0,5}}\ {BE}\ {UNTRUE}\b
    | \b(?:none|nothing)(?:\ \w+){{0,5}}\ (?:{BE}|(?:should|can)\ be)\ (?:{TRUE}|believed|trusted)\b
    | \b(?:ignore|disregard|forget)\ (?:all|everything|the\ above|this\ (?:email|message|text))\b
    | \bmade\ (?:it|this|that|these)(?:\ all)?\ up\b
    """,
    re.VERBOSE,
)
REACH = 10  # most words between a negation and what it denies
REACH_OF_NAMES = 3  # where the name of somebody or something is denied


def denies_all(text: str) -> bool:
    """Whether a text in lower case takes back all that it says."""
    return bool(ALL_CANCELLED.search(text))


def denies(text: str, span: Span, is_name: bool = False) -> bool:
    """Whether a text in lower case denies what it mentions at a place, or takes it back; the name
    of an article may be the subject of any denial.
    """
    start, end = span
    borders = [0, len(text)]
    for mark in SENTENCE_END.finditer(text):
        borders += mark.span()
    first = max(place for place in borders if place <= start)
    last = min(place for place in borders if place >= end)
    behind = HARMLESS.sub("~", text[end:last])
    following = SENTENCE_END.split(text[last:].lstrip("\n \"')]"), maxsplit=1)[0]
    return (
        is_negated(text[first:start], REACH_OF_NAMES if is_name else REACH)
        or (not is_name and bool(BEHIND.match(behind)))
        or bool(CANCELLED.search(behind))
        or bool(CANCELLED.search(HARMLESS.sub("~", following)))
    )


def is_negated(words: str, reach: int) -> bool:
    """Whether these words in front of a mention, from the beginning of its sentence, deny it."""
    words = ALL_BUT.sub("not", HARMLESS.sub("~", words))
    clause = BREAK.split(words)[-1]
    negations = list(BEFORE.finditer(clause))
    return bool(negations) and len(clause[negations[-1].end() :].split()) <= reach
