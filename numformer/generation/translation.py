"""Translation of sentences: a Transduction of subwords, with the Moses tokenizer."""

from dataclasses import dataclass

from numformer.data.moses import detokenize, tokenize
from numformer.generation.text_pipeline import Symbols
from numformer.generation.transduction import Transduction


@dataclass(frozen=True)
class Translation(Transduction):
    """Translates sentences of the language `from_` into sentences of the language `to`.

    A source is put into lower case, split into tokens by Moses and then into the subwords of
    `source`; a text that is tokenized already stays as it is. The tokens of a target are joined
    into a sentence. A language of "" turns Moses off for its side, which then keeps its capitals.
    """

    from_: str = "en"
    to: str = "de"

    def symbols(self, text: str) -> list[str]:
        return super().symbols(tokenize(text, self.from_) if isinstance(text, str) else text)

    def join(self, symbols: Symbols) -> str:
        return detokenize(self.target.join(symbols), self.to)

    def answer_symbols(self, text: str) -> list[str]:
        return super().answer_symbols(tokenize(text, self.to))

    def fits(self, config) -> bool:
        return super().fits(config) and {type(self.from_), type(self.to)} == {str}
