"""The models whose weights packages hold."""

from tests.real_models.compiled import Compiled
from tests.real_models.measuring import RealModel
from tests.real_models.pronouncing import G2P
from tests.real_models.speaking import WhisperBase
from tests.real_models.texts import RXNFP, IgLM, MiniLM, RXNMapper

KINDS: list[type[RealModel]] = [MiniLM, IgLM, RXNFP, RXNMapper, WhisperBase, G2P, Compiled]
