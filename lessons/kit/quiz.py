"""Questions with explained answers, in the terminal and on a page."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lessons.kit.lesson import Piece, plain
from numformer.errors import InputError

LETTERS = "abcdefgh"


@dataclass(frozen=True)
class Question(Piece):
    """A question with `choices`, or with a number as its answer.

    `answer` is the index of the right choice, or the number. `question` (one paragraph), `choices`
    and `why` are Markdown. The choices may be a mapping from each choice to what is wrong with it.
    A number is right within `tolerance`. Raises InputError if the answer is none of the choices, or
    not a finite number.
    """

    question: str
    why: str
    answer: int | float
    choices: Sequence[str] | Mapping[str, str] = ()
    tolerance: float = 0.01

    def __post_init__(self):
        if self.choices:
            allowed = range(len(self.choices)) if 2 <= len(self.choices) <= len(LETTERS) else ()
            fits = self.answer in allowed
        else:
            fits = math.isfinite(self.answer)
        if not fits:
            raise InputError(
                f"a question has 2 to {len(LETTERS)} choices and the index of one as its answer, "
                "or no choices and a number",
                f"{self.answer} for {len(self.choices)} choices of {self.question!r}",
                "Count the choices from 0.",
            )

    @property
    def solution(self) -> str:
        """The right answer in words."""
        if self.choices:
            return [*self.choices][self.answer]
        return f"{self.answer:{',.0f' if float(self.answer).is_integer() else '.4g'}}"

    @property
    def reasons(self) -> dict[int, str]:
        """What is wrong with choices, by their index."""
        told = self.choices.values() if isinstance(self.choices, Mapping) else ()
        return {index: reason for index, reason in enumerate(told) if reason}

    def markdown(self) -> str:
        choices = zip(LETTERS, self.choices, strict=False)
        return "\n".join([self.question, "", *(f"- {letter}) {text}" for letter, text in choices)])

    def _repr_markdown_(self) -> str:
        answer = f"<summary>Answer</summary>\n\n{self.solution}\n\n{self.why}\n\n</details>"
        return f"{self.markdown()}\n\n<details>{answer}"

    def read(self, text: str) -> int | float | None:
        """The index of a choice or the number that someone typed; None where it is neither."""
        if self.choices:
            text = text.strip(" ().").lower()
            names = [*LETTERS[: len(self.choices)], *map(str, range(1, len(self.choices) + 1))]
            return names.index(text) % len(self.choices) if text in names else None
        try:
            thousands = re.fullmatch(r"[1-9]\d{0,2}(,\d{3})+", text.strip())  # 36,864
            numerator, _, denominator = text.replace(",", "" if thousands else ".").partition("/")
            number = float(numerator) / float(denominator or 1)
        except (ValueError, ZeroDivisionError):
            return None
        return number if math.isfinite(number) else None

    def right(self, given: int | float) -> bool:
        if self.choices:
            return given == self.answer
        # 0.26 is within 0.01 of 0.25, though not in binary.
        return abs(given - self.answer) <= self.tolerance * (1 + 1e-9)

    def html(self, page) -> str:
        """A form that quiz.js brings to life; without scripts its answer can be unfolded."""
        page.script("quiz")
        if self.choices:
            values = f'data-answer="{self.answer}"'
            controls = "".join(
                f'<label><input type="radio" name="answer" value="{index}">'
                f"<span>{page.inline(choice)}</span></label>"
                for index, choice in enumerate(self.choices)
            )
        else:
            values = f'data-answer="{float(self.answer)!r}" data-tolerance="{self.tolerance!r}"'
            controls = (
                '<label>Your number: <input type="text" inputmode="decimal" name="answer" '
                'autocomplete="off" size="8"></label>'
            )
        reasons = "".join(
            f'<li data-choice="{index}"><em>{page.inline([*self.choices][index])}</em>: '
            f"<span>{page.inline(reason)}</span></li>"
            for index, reason in self.reasons.items()
        )
        # Outside of a dialog, a form of the method "dialog" sends nothing, even without scripts.
        return (
            f'<form class="question" method="dialog" {values}>\n'
            f"<fieldset><legend>{page.inline(self.question)}</legend>{controls}</fieldset>\n"
            '<button type="submit" hidden>Check</button>\n'
            '<p class="verdict" role="status"></p>\n'
            f"<details><summary>Answer</summary><p><strong>{page.inline(self.solution)}</strong>"
            f"</p>{page.markdown(self.why)}{reasons and f'<ul>{reasons}</ul>'}</details>\n</form>\n"
        )


def ask(questions: Sequence[Question]) -> int:
    """Ask in the terminal -> how many were answered right. The end of the input ends the quiz."""
    right = asked = 0
    try:
        for asked, question in enumerate(questions):
            print(f"Question {asked + 1} of {len(questions)}\n\n{plain(question.question)}\n")
            for letter, choice in zip(LETTERS, question.choices, strict=False):
                print(f"  {letter}) {plain(choice)}")
            given = _read(question)
            verdict = f"The answer is: {plain(question.solution)}"
            if given is not None and question.right(given):
                right, verdict = right + 1, "Right."
            elif given is not None:
                reason = plain(question.reasons.get(given, ""))
                verdict = " ".join(filter(None, ["Not right.", reason, verdict]))
            print(f"\n{verdict}\n\n{plain(question.why)}\n")
    except EOFError:
        print(f"\n\nThe input ends here. Questions left: {len(questions) - asked}.")
    print(f"{right} of {len(questions)} right")
    return right


def _read(question: Question) -> int | float | None:
    """The answer, asked for until a valid one is typed; None if it is left empty."""
    count = len(question.choices)
    wanted = f"a letter from a to {LETTERS[count - 1]}" if count else "a number such as 0.5 or 1/2"
    while True:
        text = input("Your answer (Enter alone shows the right one): ")
        if not text.strip():
            return None
        given = question.read(text)
        if given is not None:
            return given
        print(f"This asks for {wanted}, and {text.strip()[:40]!r} is not one.")
