"""Sentences of one language in, sentences of another out: a Transduction of subwords."""

from dataclasses import dataclass

from numformer.data.moses import detokenized, tokenized
from numformer.generation.text import Symbols
from numformer.generation.transduction import Transduction


@dataclass(frozen=True)
class Translation(Transduction):
    """Transduction of sentences as people write them, between the languages `from_` and `to`.

    What is given is brought to lower case and cut into tokens and then into the subwords of
    `source`; tokens that are given stay what they are. What is written is put together again. Where
    a language is "", its side is read and written as people write it, with capitals.
    """

    from_: str = "en"
    to: str = "de"

    def symbols(self, text: str) -> list[str]:
        text = tokenized(text, self.from_) if isinstance(text, str) else text
        return Transduction.symbols(self, text)

    def join(self, symbols: Symbols) -> str:
        return detokenized(self.target.join(symbols), self.to)

    def fits(self, config) -> bool:
        return Transduction.fits(self, config) and {type(self.from_), type(self.to)} == {str}
