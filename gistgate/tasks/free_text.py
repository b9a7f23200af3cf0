"""Free text with an exact check, made from fixed seeds: letters from facts, descriptions of
articles from a record, and replies to questions about a notice.

A document has a `request`, the words of the prompt, and `facts`, those that a text has to have. A
reply has one fact to state, so that it is right or wrong; the values of its notice are `known`.
"""

from collections.abc import Callable, Sequence
from itertools import islice
from random import Random
from typing import Any

from gistgate.tasks.facts import Fact, fact
from gistgate.tasks.grader import score
from gistgate.tasks.task import Document

SIZES = {"train": 6000, "test": 1500}  # documents of each split


def words(text: str) -> list[str]:
    """The entries of a list that commas divide."""
    return [" ".join(entry.split()) for entry in text.split(",")]


FIRST = words(
    """
    Alma, Boris, Carla, Dmitri, Elena, Farid, Greta, Hassan, Ines, Jonas, Keiko, Lars, Miriam,
    Nadia, Oscar, Priya, Quentin, Rosa, Samir, Teresa, Umar, Vera, Walter, Ximena, Yusuf, Zoe,
    Amelia, Bruno, Chloe, Diego, Esther, Felix, Hannah, Ivan, Julia, Kofi, Lucia, Marco, Nora,
    Owen, Petra, Rafael, Sofia, Tobias, Valerie
    """
)
LAST = words(
    """
    Abbott, Bauer, Castillo, Dalton, Eriksen, Fischer, Grant, Hughes, Ivanov, Jensen, Keller,
    Lopez, Moreau, Novak, Okafor, Patel, Quinn, Rossi, Schmidt, Tanaka, Ueda, Vargas, Weber,
    Yilmaz, Zimmer, Brooks, Carver, Dixon, Emerson, Foster, Haines, Larsen, Mercer, Nolan,
    Porter, Russell, Sutton, Turner, Walsh, Winters
    """
)
CITIES = words(
    """
    Lisbon, Oslo, Geneva, Prague, Dublin, Vienna, Helsinki, Turin, Krakow, Seville, Hamburg,
    Lyon, Antwerp, Bristol, Cardiff, Denver, Boston, Seattle, Montreal, Toronto, Kyoto, Osaka,
    Sydney, Perth, Auckland, Nairobi, Lima, Bogota, Santiago, Porto, Ghent, Malmo, Bergen,
    Zurich, Basel, Graz, Leipzig, Dresden, Utrecht, Bilbao
    """
)
DAYS = words("Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday")
MONTHS = words(
    """
    January, February, March, April, May, June, July, August, September, October, November,
    December
    """
)
EVENTS = words(
    """
    budget review, team dinner, design workshop, farewell party, safety training, choir
    rehearsal, job interview, product demo, charity run, garden party, press meeting, school
    reunion, photo exhibition, cooking class, board meeting, sales conference, chess tournament,
    house warming, language course, museum visit, planning session, science fair, volunteer day,
    wine tasting
    """
)
ITEMS = words(
    """
    laptop, notebook, umbrella, name badge, camera, passport, water bottle, calculator, blanket,
    raincoat, sketchbook, flashlight, lunch box, headset, tripod, yoga mat, toolbox, guitar,
    folding chair, printed agenda
    """
)
ROOMS = words("Room, Hall, Studio, Suite, Office")
ARTICLES = words(
    """
    backpack, desk lamp, armchair, coffee grinder, kettle, bookshelf, travel mug, rain jacket,
    cutting board, wall clock, picture frame, office chair, tent, sleeping bag, garden bench,
    side table, suitcase, toaster, wallet, frying pan, wireless speaker, bicycle helmet, floor
    rug, storage box, plant pot, serving tray, hammock, umbrella stand, laptop sleeve, bird
    feeder, shoe rack, tool chest, jewelry box, mirror, coat rack, vase, lunch bag, camping
    stove, watch, pillow
    """
)
BEGINNINGS = words(
    """
    Al, Bel, Cor, Dra, El, Fen, Gal, Hel, Jor, Kel, Lum, Mor, Nor, Or, Pel, Quor, Ral, Sol, Tor,
    Vel
    """
)
NAME_ENDS = words("ando, ira, essa, ovia, amis, enta, ora, ilo, anta, ero, una, isto")
COLOURS = words(
    """
    navy blue, forest green, charcoal, ivory, burgundy, mustard, teal, olive, coral, slate grey,
    copper, black, white, lavender, crimson, beige, turquoise, silver
    """
)
MATERIALS = words(
    """
    oak, walnut, bamboo, stainless steel, aluminium, cotton, linen, wool, leather, canvas,
    recycled plastic, ceramic, glass, cast iron, brass, nylon, cork, felt, polyester, marble
    """
)
COUNTRIES = words(
    """
    Portugal, Sweden, Italy, Japan, Poland, Canada, Mexico, Vietnam, India, Turkey, Denmark,
    Austria, Spain, Brazil, Morocco, Finland, Ireland, Slovenia, Estonia, Peru
    """
)

LETTER_REQUESTS = (
    "Write an email of about 80 words. It is an invitation to a {event}.",
    "Please write a friendly email, about 80 words long, that invites somebody to a {event}.",
    "Write an email that reminds somebody of a {event}, in about 80 words.",
    "An email of about 80 words is needed: it confirms the date of a {event}.",
    "Compose an email (about 80 words) in which the sender asks the reader to help at a {event}.",
    "Write about 80 words to a colleague by email, to announce a {event}.",
)
DESCRIPTION_REQUESTS = (
    "Write a product description of about 80 words for a shop's page, in flowing text.",
    "Describe this article for a catalogue in about 80 words of flowing text, without a list.",
    "Write about 80 words of flowing text that present the following product to customers.",
    "A web shop needs a text of about 80 words, without headings or lists, about this article.",
    "Turn this record into a friendly product text of about 80 words in one paragraph.",
    "Write one paragraph of about 80 words for an advertisement of this product.",
)
ENDS = (
    "Mention every one of these five facts.",
    "None of the five facts may be missing in the text.",
    "The text has to contain all five of them.",
    "Make sure that all five facts are in the text.",
    "Use all five facts, each of them once.",
)
PLACES = words(
    """
    museum, library, swimming pool, climbing hall, theatre, botanical garden, pottery studio,
    zoo, music school, bakery, sports club, planetarium, flea market, boat rental, cinema,
    language school, skating rink, farm shop
    """
)
ADJECTIVES = words(
    """
    Golden, Blue, Green, Silver, Happy, Royal, Sunny, Swift, Quiet, Grand, Little, Northern,
    Clever
    """
)
NOUNS = words(
    """
    Lion, River, Tower, Star, Garden, Bridge, Harbour, Falcon, Oak, Lantern, Compass, Meadow,
    Anchor
    """
)
SUBJECTS = {  # how a notice says two values of one kind, and the question about either
    "time": (
        ("It opens at {} and closes at {}.", "Opening hours are from {} to {} on every day."),
        ("When does the {place} open?", "When does the {place} close?"),
    ),
    "price": (
        (
            "A ticket costs {} for adults and {} for children.",
            "Adults pay {}, while children pay {}.",
        ),
        ("How much does an adult pay at the {place}?", "How much does a child pay at the {place}?"),
    ),
    "person": (
        (
            "{} has run it for years, and {} leads the guided tours.",
            "It is directed by {}; tours are given by {}.",
        ),
        ("Who directs the {place}?", "Who leads the guided tours of the {place}?"),
    ),
    "room": (
        (
            "The large hall holds {} and the small one {}.",
            "Of its two halls one is for {} and the other for {}.",
        ),
        (
            "How many people fit into the {place}'s large hall?",
            "How many people fit into the {place}'s small hall?",
        ),
    ),
    "city": (
        ("Its first home was {}, and today it is in {}.", "It began in {}, but is now in {}."),
        ("In which city was the {place} at first?", "In which city is the {place} today?"),
    ),
}
MEANT = {  # what the two values of a kind belong to, in the order of `SUBJECTS`
    "time": ("opening", "closing"),
    "price": ("adult", "child"),
    "person": ("director", "guide"),
    "room": ("large hall", "small hall"),
    "city": ("first home", "home today"),
}
REPLY_REQUESTS = (
    (
        'Write an email of about 80 words to {to}, who asks: "{question}" Answer the question with'
        " this notice:"
    ),
    '{to} asks by email: "{question}" Reply in about 80 words, with the help of this notice:',
    (
        'Reply to {to} by an email of about 80 words. The question is: "{question}" This is our'
        " notice:"
    ),
    (
        'The question of {to} is: "{question}" Write a friendly email of about 80 words that'
        " answers it by this notice:"
    ),
)


def letters(**_: Any) -> dict[str, Any]:
    """The splits of the task `letters`, as lm-eval asks for a custom dataset."""
    return splits("letters", letter)


def descriptions(**_: Any) -> dict[str, Any]:
    """The splits of the task `descriptions`."""
    return splits("descriptions", description)


def passages(**_: Any) -> dict[str, Any]:
    """The splits of the task `passages`."""
    return splits("passages", passage)


def process_results(doc: Document, results: Sequence[str]) -> dict[str, float]:
    """The metric of the tasks: letters.yaml, descriptions.yaml and passages.yaml in data/tasks."""
    return {"facts": score(doc["facts"], results[0], doc.get("known"), doc.get("request", ""))}


def splits(name: str, make: Callable[[Random], Document]) -> dict[str, Any]:
    """Datasets of SIZES documents, whose requests all differ."""
    from datasets import Dataset

    rng = Random(f"{name} of 2026")
    documents = dict[str, Document]()
    while len(documents) < sum(SIZES.values()):
        document = make(rng)
        documents.setdefault(document["request"], document)
    supply = iter(documents.values())
    return {split: Dataset.from_list(list(islice(supply, n))) for split, n in SIZES.items()}


def letter(rng: Random) -> Document:
    """Sender, reader, day and hour of an event, and one further fact."""
    pick = rng.choice
    reader, sender = rng.sample(FIRST, 2)
    hour = rng.randrange(8, 21)
    minute = pick((0, 0, 15, 30, 45))
    minutes = f":{minute:02}" if minute else ""
    clock = f"{(hour - 1) % 12 + 1}{minutes} {'am' if hour < 12 else 'pm'}"
    day = pick(DAYS) if rng.random() < 0.5 else f"{rng.randrange(1, 29)} {pick(MONTHS)}"
    further = [
        fact("words", pick(("City", "Place")), pick(CITIES)),
        fact("number", pick(("Room", "Where")), f"{pick(ROOMS)} {rng.randrange(2, 480)}"),
        fact("words", pick(("Please bring", "To bring")), pick(ITEMS)),
        fact("number", "Budget", f"${pick((10, 25, 50)) * rng.randrange(3, 80):,}"),
        fact("number", pick(("Guests", "Participants")), f"{rng.randrange(13, 95)} people"),
    ]
    facts = [
        fact("words", pick(("To", "Reader", "Addressed to")), reader),
        fact("words", pick(("From", "Sender", "Signed by")), f"{sender} {pick(LAST)}"),
        fact("words" if day in DAYS else "date", pick(("Day", "When", "Date")), day),
        fact(
            "time",
            pick(("Hour", "Time", "Begins at")),
            clock if rng.random() < 0.6 else f"{hour}:{minute:02}",
        ),
    ]
    request = pick(LETTER_REQUESTS).format(event=pick(EVENTS))
    return with_facts(rng, request, [*facts, *rng.sample(further, 1)])


def description(rng: Random) -> Document:
    """Name, price and three further entries of an article."""
    pick = rng.choice
    name = f"{pick(BEGINNINGS)}{pick(NAME_ENDS)} {pick(ARTICLES)}"
    price = f"${rng.randrange(9, 400)}" + pick(("", "", ".50", ".90", ".95"))
    size = " x ".join(str(rng.randrange(12, 130)) for _ in range(pick((2, 3))))
    if rng.random() < 0.6:
        weight = f"{rng.randrange(1, 19)}.{rng.randrange(1, 10)} kg"
    else:
        weight = f"{rng.randrange(15, 95)}0 g"
    further = [
        fact("words", pick(("Colour", "Color")), pick(COLOURS)),
        fact("words", pick(("Material", "Made of")), pick(MATERIALS)),
        fact("number", pick(("Size", "Dimensions")), f"{size} cm"),
        fact("number", "Weight", weight),
        fact("number", pick(("Warranty", "Guarantee")), f"{rng.randrange(2, 13)} years"),
        fact("words", pick(("Origin", "Made in")), pick(COUNTRIES)),
    ]
    facts = [
        fact("words", pick(("Name", "Product", "Article")), name),
        fact("number", "Price", price),
    ]
    request = pick(DESCRIPTION_REQUESTS)
    return with_facts(rng, request, [*facts, *rng.sample(further, 3)])


def with_facts(rng: Random, request: str, facts: list[Fact]) -> Document:
    """The request with its five facts in random order."""
    rng.shuffle(facts)
    lines = "\n".join(f"- {entry['label']}: {entry['value']}" for entry in facts)
    return {"request": f"{request}\n{lines}\n{rng.choice(ENDS)}", "facts": facts}


def passage(rng: Random) -> Document:
    """A notice about a place with two values of each of four kinds, and somebody's question about
    one of the values.
    """
    pick = rng.choice
    place = pick(PLACES)
    statements = []
    questions: list[str] = []
    values: list[Fact] = []
    for kind in rng.sample(sorted(SUBJECTS), 4):
        sentences, questions_of_kind = SUBJECTS[kind]
        facts = facts_about(kind, rng)
        statements.append(pick(sentences).format(*(entry["value"] for entry in facts)))
        questions += questions_of_kind
        values += facts
    question, answer = pick(list(zip(questions, values, strict=True)))
    notice = f"The {pick(ADJECTIVES)} {pick(NOUNS)} is a {place}. {' '.join(statements)}"
    request = pick(REPLY_REQUESTS).format(to=pick(FIRST), question=question.format(place=place))
    return {"request": f"{request}\n{notice}", "facts": [answer], "known": values}


def facts_about(kind: str, rng: Random) -> list[Fact]:
    """Two different facts of a kind of `SUBJECTS`."""
    form = {"time": "time", "price": "number", "room": "number"}.get(kind, "words")
    pairs = zip(MEANT[kind], values_of(kind, rng), strict=True)
    return [fact(form, meant, value) for meant, value in pairs]


def values_of(kind: str, rng: Random) -> list[str]:
    """Two different values of a kind of `SUBJECTS`."""
    if kind == "time":
        opening = rng.randrange(7, 11)
        closing = rng.randrange(4, 9)
        hours = [(opening, "am"), (closing, "pm")]
        return [f"{hour}:{rng.choice((0, 15, 30, 45)):02} {half}" for hour, half in hours]
    if kind == "price":
        prices = sorted(rng.sample(range(3, 40), 2), reverse=True)
        return [f"${price}" for price in prices]
    if kind == "room":
        sizes = [rng.randrange(120, 600), rng.randrange(15, 90)]
        return [f"{size} people" for size in sizes]
    if kind == "city":
        return rng.sample(CITIES, 2)
    names = zip(rng.sample(FIRST, 2), rng.sample(LAST, 2), strict=True)
    return [f"{first} {last}" for first, last in names]
