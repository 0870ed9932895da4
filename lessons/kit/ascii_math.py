"""Convert equations in docstrings, such as `y = softmax(Q K^T / sqrt(d_k)) V`, to LaTeX.

An equation is converted only if this module understands all of it. It ends where the sentence's
words go on; if a word could belong to the equation, the equation stays as it was written.
"""

import itertools
import re

GREEK = set("alpha beta gamma delta epsilon eta theta lambda mu phi rho sigma tau pi".split())
FUNCTIONS = set("log exp tanh sin cos max min det".split())  # LaTeX has a command for them
NOT_LEFT = {"True", "False", "None"}
AFTERWARDS = {"otherwise", "elsewhere", "too", "again", "here"}
NAME = re.compile(r"([A-Za-z]+)(\d*)((?:_(?:\{[^{}]*\}|\w+))?)('?)")
SOURCE = r" *\((?:[\d., ]+|[^()]*,[^()]*)\)"  # (3.2.1), or a shape
EQUALS = re.compile(r" ([-+]?=) ")
RELATIONS = {"=": "=", "<=": r"\le", ">=": r"\ge", "<": "<", ">": ">", "||": r"\parallel"}
RELATIONS |= {"|": r"\mid"}


class Text(Exception):
    """Raised where the text is not mathematics."""


def in_latex(text: str) -> list[tuple[str, bool]]:
    """The pieces of a paragraph: (text, False) for plain text, (LaTeX, True) for an equation."""
    pieces, begin, at = [], 0, 0
    for start in re.finditer(r"(?<![\w.^\[(])(?=[A-Za-z])", text):
        if start.start() < at:
            continue
        try:
            latex, end = _Equation(text, start.start()).read()
        except Text:
            continue
        pieces += [(text[begin : start.start()], False), (latex, True)]
        begin = at = end
    return [piece for piece in [*pieces, (text[begin:], False)] if piece[0]]


class _Equation:
    """Reads one equation from a text; `at` is how far it has read."""

    def __init__(self, text: str, at: int):
        self.text, self.at, self.bare, self.in_power = text, at, "", False

    def read(self) -> tuple[str, int]:
        """The equation in LaTeX, and where it ends. Raises Text if none begins here."""
        latex, begin = self.left(), self.at
        while sign := EQUALS.match(self.text, self.at):
            self.at = sign.end()
            latex += rf" \mathrel{{{sign[1]}}} {self.sum()}"
        rest = self.text[self.at :]
        is_word = self.bare and re.match(r" [A-Za-z]", rest)
        if self.at == begin or is_word or not re.match(r"$|[,.;:)]|\s(?![-+*/=<>|])|\s->", rest):
            raise Text
        return latex, self.at

    def left(self) -> str:
        """The left side: a factor, or several letters."""
        if several := self.take(r"[a-z](?:, [a-z])+(?= = )"):
            return several[0]
        if NAME.match(self.text, self.at)[0] in NOT_LEFT:
            raise Text
        return self.factor()

    def take(self, pattern: str) -> re.Match | None:
        if found := re.compile(pattern).match(self.text, self.at):
            self.at = found.end()
        return found

    def need(self, pattern: str) -> None:
        if not self.take(pattern):
            raise Text

    def sum(self) -> str:
        """Products that are added or subtracted."""
        latex = "-" if self.take("-(?=[^ >])") else ""
        latex += self.product()
        while sign := self.take(r" ([-+]) (?=\S)"):
            latex += f" {sign[1]} {self.product()}"
        return latex

    def product(self) -> str:
        """Factors, with * or / or nothing between them."""
        latex = self.factor()
        while True:
            if sign := self.take(r" ?([*/]) ?(?=\S)"):
                factor = self.factor()
                if sign[1] == "*":
                    latex = rf"{latex} \cdot {factor}"
                elif self.in_power:
                    latex = f"{latex} / {factor}"
                else:
                    latex = rf"\frac{{{_open(latex)}}}{{{_open(factor)}}}"
                continue
            begin, bare = self.at, self.bare
            try:
                if self.take(SOURCE) or not (self.take(" ") or latex.isdigit()):
                    raise Text
                factor = self.factor()
                if self.bare and not self.is_factor():
                    raise Text
                latex = f"{latex} {factor}" if latex.isdigit() else rf"{latex} \, {factor}"
            except Text:
                self.at, self.bare = begin, bare
                return latex

    def is_factor(self) -> bool:
        """Whether the word just read is a name in the equation, not a word of the sentence."""
        article = self.bare in ("a", "I") and re.match(" [a-z]{2}", self.text[self.at :])
        word = len(self.bare) > 1 and re.match(r" [A-Za-z]", self.text[self.at :])
        return not article and not word and self.bare not in AFTERWARDS

    def factor(self) -> str:
        """A number, a name, a call or an expression in brackets, with its power."""
        self.bare = ""
        if number := self.take(r"\d[\d.]*(?<!\.)"):
            latex = number[0]
        elif self.take(r"\("):
            latex = _bracketed(self.inside("[)]"))
        elif self.take(r"\["):
            latex = f"[{self.inside('[]]')}]"
        elif self.take(r"\|(?=\S)"):
            latex = f"|{self.inside('[|]')}|"
        elif name := self.take(NAME.pattern):
            latex = self.called(name)
        else:
            raise Text
        if self.take(r"\^"):
            self.bare = ""
            if self.take(r"\("):
                was, self.in_power = self.in_power, True
                power, self.in_power = self.inside("[)]"), was
            elif found := self.take(r"-?[\d.]*\d|[A-Za-z]+"):
                power = r"\top" if found[0] == "T" else _word(found[0])
            else:
                raise Text
            latex += f"^{{{power}}}"
        return latex

    def called(self, name: re.Match) -> str:
        """A name, and its arguments if it is called or indexed."""
        word, latex = name[1], _name(*name.groups())
        if self.take(r"\((?=\S)"):
            inside = self.inside("[)]")
            if word == "sqrt":
                return rf"\sqrt{{{inside}}}"
            return latex + _bracketed(inside)
        if self.take(r"\["):
            return f"{latex}[{self.inside('[]]')}]"
        self.bare = name[0] if name[0] == word and word not in GREEK else ""
        if self.bare == "sum":
            raise Text
        if word == "sum" or (self.bare in FUNCTIONS and not self.text.startswith("^", self.at)):
            self.need(" ")
            return f"{latex} {self.factor()}"
        return latex

    def inside(self, closing: str) -> str:
        """Sums with commas or relations between them, up to the closing bracket."""
        self.take(r"\*")
        latex = self.sum()
        while not self.take(closing):
            if sign := self.take(r" (=|<=|>=|<|>|\|\||\|) "):
                latex += f" {RELATIONS[sign[1]]} "
            else:
                self.need(", ")
                latex += ", "
                self.take(r"\*")
            latex += r"\ldots" if self.take(r"\.\.\.") else self.sum()
        self.bare = ""
        return latex


def _bracketed(latex: str) -> str:
    """LaTeX in brackets, which are as tall as the LaTeX."""
    return rf"\left({latex}\right)" if r"\frac" in latex else f"({latex})"


def _open(latex: str) -> str:
    """A part of a fraction, without brackets that enclose the whole part."""
    for opening, closing in ((r"\left(", r"\right)"), ("(", ")")):
        inner = latex.removeprefix(opening).removesuffix(closing)
        depths = [*itertools.accumulate((sign == "(") - (sign == ")") for sign in inner)]
        if len(latex) - len(inner) == len(opening + closing) and min(depths, default=0) >= 0:
            return inner
    return latex


def _word(word: str, italic: int = 1) -> str:
    """A word in upright letters, or as variables if it has at most `italic` letters."""
    if word in GREEK:
        return f"\\{word}"
    return rf"\mathrm{{{word}}}" if re.search(rf"[A-Za-z]{{{italic + 1}}}", word) else word


def _name(word: str, digits: str, index: str, prime: str) -> str:
    """The LaTeX of a name such as W_1, x_hat, beta1 or h', given its parts."""
    index = index.removeprefix("_").strip("{}")
    if index == "hat":
        latex, index = rf"{word[:-1]}\hat{{{word[-1]}}}", ""
    elif len(word) > 1 and re.fullmatch("[a-z]{3,}.*", index):
        latex, index = rf"\mathrm{{{word}_{index}}}".replace("_", r"\_"), ""
    else:
        latex = f"\\{word}" if word in {*FUNCTIONS, "sum"} else _word(word)
    index = ", ".join(filter(None, (digits, _word(index, italic=2))))
    return latex + (f"_{{{index}}}" if index else "") + prime
