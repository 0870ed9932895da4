"""Questions with explained answers, in the terminal and on a page."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lessons.kit.lesson import Piece, plain
from numformer.errors import InputError

LETTERS = "abcdefgh"
# quiz.js reads numbers in the same way, with the same patterns.
THOUSANDS = re.compile(r"(?<![0-9.,\s])[1-9][0-9]{0,2}([\s,])[0-9]{3}(?:\1[0-9]{3})*(?![0-9]|\1)")
SIZE = r"([-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)"
NUMBER = re.compile(rf"(?:.*[=≈])?{SIZE}(?:/{SIZE})?(%?)")


def read_number(text: str) -> float | None:
    """The number that a person wrote, such as 0.5, 0,5, 1/2, 50 %, −1e-3, 36,864 or n = 36 864.

    A comma is a decimal point, except before groups of three digits. None if it is no number.
    """
    text = re.sub(r"\s*([-+/%=≈]|^|$)\s*", r"\1", re.sub("[−–]", "-", text))
    text = THOUSANDS.sub(lambda match: match[0].replace(match[1], ""), text)
    match = NUMBER.fullmatch(text.replace(",", "."))
    if not match or not float(match[2] or 1):
        return None
    value = float(match[1]) / float(match[2] or 1) / (100 if match[3] else 1)
    return value if math.isfinite(value) else None


@dataclass(frozen=True)
class Question(Piece):
    """A question with `choices`, or with a number as its answer.

    `answer` is the index of the right choice, or the number. `choices` maps each choice to its
    reply: which idea leads there, and what is wrong with it. The right choice, of which `why`
    speaks, has the reply "". A number is right within `tolerance`; `mistakes` maps wrong numbers to
    replies. `question` (one paragraph), choices, replies and `why` are Markdown. Raises InputError
    if the answer is none of the choices, or not a finite number, or if a wrong answer has no reply
    of its own.
    """

    question: str
    why: str
    answer: int | float
    choices: Mapping[str, str] = field(default_factory=dict)
    tolerance: float = 0.01
    mistakes: Mapping[float, str] = field(default_factory=dict)

    def __post_init__(self):
        replies = self.replies
        if (
            not math.isfinite(self.answer)
            or len(self.choices) not in (0, *range(2, len(LETTERS) + 1))
            or [given for given, reply in replies.items() if not reply] != [self.answer]
            or len({*replies.values()}) < len(replies)
            or any(self.reply(given) != reply for given, reply in replies.items())
        ):
            raise InputError(
                f"the answer of a question is a number, or the index of one of 2 to {len(LETTERS)} "
                'choices; its reply is "", and each wrong answer has a reply of its own',
                f"the answer {self.answer} and the replies {replies} for {self.question!r}",
                "Say which idea leads to a wrong answer, and what is wrong with this idea.",
            )

    @property
    def solution(self) -> str:
        """The right answer in words."""
        return self.words(self.answer)

    def words(self, given: float) -> str:
        """An answer as a reader sees it."""
        if self.choices:
            return [*self.choices][int(given)]
        return f"{given:{',.0f' if float(given).is_integer() else '.4g'}}".replace("-", "−")

    @property
    def replies(self) -> dict[float, str]:
        """The reply to each choice, by its index, or to the answer and wrong numbers."""
        if self.choices:
            return dict(enumerate(self.choices.values()))
        return {self.answer: "", **self.mistakes}

    def markdown(self) -> str:
        choices = zip(LETTERS, self.choices, strict=False)
        return "\n".join([self.question, "", *(f"- {letter}) {text}" for letter, text in choices)])

    def _repr_markdown_(self) -> str:
        replies = [f"- {self.words(n)}: {reply}" for n, reply in self.replies.items() if reply]
        others = ["\nOther answers:\n", *replies] if replies else []
        answer = "\n".join([f"{self.solution}\n\n{self.why}", *others])
        summary = "<summary>Answer</summary>"
        return f"{self.markdown()}\n\n<details>{summary}\n\n{answer}\n\n</details>"

    def read(self, text: str) -> int | float | None:
        """The index of a choice or the number that someone typed; None where it is neither."""
        if not self.choices:
            return read_number(text)
        text = text.strip(" ().").lower()
        names = [*LETTERS[: len(self.choices)], *map(str, range(1, len(self.choices) + 1))]
        return names.index(text) % len(self.choices) if text in names else None

    def right(self, given: float) -> bool:
        return self._near(given, self.answer)

    def reply(self, given: float) -> str:
        """What to say to an answer; "" to the right one and to a number without a reply."""
        replies = (reply for known, reply in self.replies.items() if self._near(given, known))
        return next(replies, "")

    def _near(self, given: float, known: float) -> bool:
        # 0.26 is within 0.01 of 0.25, though not in binary.
        return abs(given - known) <= self.tolerance * (1 + 1e-9)

    def html(self, page) -> str:
        """A form that quiz.js brings to life; without scripts its answer can be unfolded."""
        page.script("quiz")
        if self.choices:
            controls = "".join(
                f'<label><input type="radio" name="answer" value="{index}">'
                f"<span>{page.inline(choice)}</span></label>"
                for index, choice in enumerate(self.choices)
            )
        else:
            controls = (
                '<label>Your number: <input type="text" name="answer" autocomplete="off" size="8">'
                "</label>"
            )
        replies = "".join(
            f'<li data-given="{float(given)!r}"><em>{page.inline(self.words(given))}</em>: '
            f"<span>{page.inline(reply)}</span></li>"
            for given, reply in self.replies.items()
            if reply
        )
        others = f"<p>Other answers:</p><ul>{replies}</ul>" if replies else ""
        # Outside of a dialog, a form of the method "dialog" sends nothing, even without scripts.
        return (
            f'<form class="question" method="dialog" data-answer="{float(self.answer)!r}" '
            f'data-tolerance="{self.tolerance!r}">\n'
            f"<fieldset><legend>{page.inline(self.question)}</legend>{controls}</fieldset>\n"
            '<button type="submit" hidden>Check</button>\n'
            '<p class="verdict" role="status"></p>\n'
            f"<details><summary>Answer</summary><p><strong>{page.inline(self.solution)}</strong>"
            f"</p>{page.markdown(self.why)}{others}</details>\n</form>\n"
        )


def ask(questions: Sequence[Question]) -> int:
    """Ask in the terminal -> how many were answered right. The end of the input ends the quiz."""
    right = number = 0
    try:
        for number, question in enumerate(questions):
            print(f"Question {number + 1} of {len(questions)}\n\n{plain(question.question)}\n")
            for letter, choice in zip(LETTERS, question.choices, strict=False):
                print(f"  {letter}) {plain(choice)}")
            given = _read(question)
            verdict = f"The answer is: {plain(question.solution)}"
            if given is not None and question.right(given):
                right, verdict = right + 1, "Right."
            elif given is not None:
                reply = plain(question.reply(given))
                verdict = " ".join(filter(None, ["Not right.", reply, verdict]))
            print(f"\n{verdict}\n\n{plain(question.why)}\n")
    except EOFError:
        print(f"\n\nThe input ends here. Questions left: {len(questions) - number}.")
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
