"""`gistgate certify --quick`: a look at some prompts that are in no test, and what a test costs."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from time import monotonic

from gistgate.certify.answers import Answered, means_of
from gistgate.certify.card import in_words
from gistgate.certify.comparison import BothEndpoints, place_of
from gistgate.certify.control import figures
from gistgate.certify.judge import Judge
from gistgate.certify.play import request_of
from gistgate.cli.certify import Options
from gistgate.cli.servers import connected, judge_of, planned
from gistgate.core.utils import printable
from gistgate.tasks.task import Document, Task

PROMPTS = 20
SHOWN = 3  # differences that are shown
LONGEST = 300  # characters that are shown of a text


def quick(options: Options) -> str:
    """Ask both servers, say what differs and what a full run costs; no look is recorded."""
    before = planned(replace(options, time=PROMPTS))
    docs = before.draw.further
    with asyncio.Runner() as runner:
        endpoints = connected(options, before.spec, runner)
        judge = judge_of(options, before.spec, runner)
        begin = monotonic()
        prompts = runner.run(answered(endpoints, before.task, docs, judge))
        seconds = monotonic() - begin
    counted = figures(before.claim, prompts)
    loss, lost, _ = before.claim.words
    print(
        f"A quick look at {len(prompts)} prompts, which claims nothing: {counted['differing']}"
        f" answers in other words, {counted['worse']} {lost}, {loss} {100 * counted['loss']:.2f}"
        f" {before.claim.unit}."
    )
    for place, side in enumerate(("baseline", "candidate")):
        answers = [answer for prompt in prompts for answer in prompt.answers[place]]
        scores = [score for prompt in prompts for score in prompt.scores[place : place + 1]]
        print(f"  {side:10} {in_words(means_of(answers, scores))}")
    for prompt in [prompt for prompt in prompts if prompt.is_differing][:SHOWN]:
        print(difference(prompt))
    count = len(before.draw.docs)
    total = count + options.control + options.time
    print(
        f"A full run asks both servers at most {count} prompts, with control and timing {total}:"
        f" {seconds / len(prompts) * total:.0f} s at this rate."
    )
    return "QUICK"


async def answered(
    endpoints: BothEndpoints, task: Task, docs: Sequence[Document], judge: Judge | None
) -> list[Answered]:
    """The documents with the answers of both endpoints, and what a judge says of them."""

    async def ask(doc: Document) -> Answered:
        request = request_of(task, doc)
        pairs = await endpoints.ask(request)
        if judge:
            pairs = [await judge.judged(request.prompt, pair) for pair in pairs]
        return Answered(task, doc, pairs)

    return await asyncio.gather(*(ask(doc) for doc in docs))


def difference(prompt: Answered) -> str:
    """A prompt and both answers, as far as they are shown."""
    texts = {
        place_of(prompt.task, prompt.doc): prompt.task.question(prompt.doc)[-LONGEST:],
        "  baseline": prompt.transcripts(0)[0][:LONGEST],
        "  candidate": prompt.transcripts(1)[0][:LONGEST],
    }
    return "\n".join(printable(f"{name}: {' '.join(text.split())}") for name, text in texts.items())
