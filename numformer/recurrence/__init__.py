"""What the Transformer replaced (section 1): recurrent networks and their attention."""

from numformer.recurrence.scores import AdditiveScore, DotProductScore, MultiplicativeScore
from numformer.recurrence.cells import GRUCell, LSTMCell, RNNCell
from numformer.recurrence.recurrent import Recurrent
from numformer.recurrence.additive_attention import AdditiveAttention
from numformer.recurrence.attention_decoder import AttentionDecoder

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
    "AttentionDecoder",
]
