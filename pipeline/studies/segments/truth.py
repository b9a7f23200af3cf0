"""What a segment of an embedded word problem says, checked against the problem: the truth that judges are held to.

The generator's own solution tells the totals after each step. A text is true where its sums, and the numbers around
them, are those of the problem in its order, whatever the words; ornaments hold no numbers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gistgate.errors import UserError

SUM = re.compile(r"(-\s*)?(\d+)\s*([-+*])\s*(\d+)\s*=\s*(\d+)")
"""An equation, also with the subtracted number in front: - 8 + 11 = 3."""
NUMBER = re.compile(r"\d+")
FINAL = re.compile(r"####\s*(\d+)")


@dataclass(frozen=True)
class Course:
    """The totals of a problem, from the start to the end."""

    totals: tuple[int, ...]

    @classmethod
    def of(cls, solution: str) -> Course:
        """Read from a solution of the generator.

        Raises:
            UserError: it is none.
        """
        start = NUMBER.search(solution)
        sums = [int(found[5]) for found in SUM.finditer(solution)]
        final = FINAL.search(solution)
        if start is None or not sums or final is None or int(final[1]) != sums[-1]:
            raise UserError("The truth is known for the embedded word problems alone. Judge this task by its answers.")
        return cls((int(start[0]), *sums))

    def true(self, text: str) -> bool:
        """Whether all that a beginning of an answer says is so."""
        step, place = 0, 0
        for found in SUM.finditer(text):
            if not self._around(text[place : found.start()], step, before=step == 0):
                return False
            step, place = step + 1, found.end()
            if step >= len(self.totals) or not self._sum(found, step):
                return False
        return self._around(text[place:], step, before=step == 0)

    def _sum(self, found: re.Match[str], step: int) -> bool:
        """Whether an equation leads from one total to the next."""
        first, second, result = int(found[2]), int(found[4]), int(found[5])
        if found[1]:
            value, operands = second - first, {second}
        else:
            value = {"+": first + second, "-": first - second, "*": first * second}[found[3]]
            operands = {first} if found[3] == "-" else {first, second}
        return value == result == self.totals[step] and self.totals[step - 1] in operands

    def _around(self, text: str, step: int, before: bool) -> bool:
        """Whether the numbers between two equations are those of the next step, or of the end."""
        numbers = [int(number) for number in NUMBER.findall(text)]
        if before and numbers and numbers.pop(0) != self.totals[0]:
            return False
        known = {self.totals[step]} if step + 1 == len(self.totals) else {self._change(step + 1)}
        return all(number in known for number in numbers)

    def _change(self, step: int) -> int:
        """The number that a step names outside its equation: what comes or goes."""
        return abs(self.totals[step] - self.totals[step - 1])


def groups_by_truth(solution: str, before: str, segments: Sequence[str]) -> list[int]:
    """Groups of segments behind the same text: all true ones together, false ones by the numbers that they name."""
    course, known = Course.of(solution), dict[tuple[str, ...], int]()
    places = []
    for segment in segments:
        told = () if course.true(f"{before}{segment}") else tuple(NUMBER.findall(segment))
        places.append(known.setdefault(told, len(known)))
    return places
