"""What the Transformer replaced (section 1): recurrent cells, and the first attention."""

from numformer.recurrence.scores import AdditiveScore, DotProductScore, MultiplicativeScore
from numformer.recurrence.cells import GRUCell, LSTMCell, RNNCell
from numformer.recurrence.recurrence import Recurrent
from numformer.recurrence.additive_attention import AdditiveAttention

CELLS = {"rnn": RNNCell, "lstm": LSTMCell, "gru": GRUCell}

__all__ = [
    "DotProductScore",
    "MultiplicativeScore",
    "AdditiveScore",
    "RNNCell",
    "LSTMCell",
    "GRUCell",
    "Recurrent",
    "AdditiveAttention",
]
