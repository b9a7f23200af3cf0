"""The words of the world, and for every site of a text the wordings that say the same.

A site is a place in a text where one of several wordings is chosen. In a site's name the part after the dot is the
operation that the wordings express. `{...}` are filled from the problem.
"""

from __future__ import annotations

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
