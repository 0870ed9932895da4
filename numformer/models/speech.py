"""An encoder-decoder that listens: features of sounds in, symbols out (Radford et al. 2023)."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from numformer import settings
from numformer.backend import array_module, dtype_kind
from numformer.data.vocabulary import SPECIAL
from numformer.errors import InputError
from numformer.later import ATTENTIONS, POSITIONS, SoundEmbedding
from numformer.layer import Array
from numformer.models import fields
from numformer.models.config import OWN_SETTINGS
from numformer.models.encoder_decoder import Transformer, TwoStacksConfig
from numformer.paper.masks import Places, Reach
from numformer.paper.memory import Memory, SourceState, State
from numformer.paper.positions import LearnedPositions
from numformer.paper.transformer import require_pair


@fields.field_help(*OWN_SETTINGS)
@dataclass(frozen=True, kw_only=True)
class Config(TwoStacksConfig):
    """The config of a SpeechTransformer. Raises InputError for values that do not fit together.

    The task determines the size of the vocabulary.
    """

    vocabulary: int = settings.vocabulary(len(SPECIAL))
    bands: int = settings.size(80, "numbers for each frame of a sound")
    frames: int = settings.size(3000, "longest sound, in frames; every second one is a position")
    positions: str = settings.choice("learned", POSITIONS, "how positions of symbols are encoded")
    attention_function: str = settings.choice(
        "tiled", ATTENTIONS, "how each head computes attention; tiled: long sequences in tiles"
    )

    @property
    def sound_positions(self) -> int:
        """The number of positions of the longest sound."""
        return (self.frames + 1) // 2

    @property
    def least_parameters(self) -> int:
        """A lower bound on the number of parameters: the entries of the matrices."""
        # `entries` counts positions of symbols in both stacks, but the encoder has those of sounds.
        sounds = 3 * (self.bands + self.d_model) + self.sound_positions - (self.longest or 0)
        return self.entries_of_stacks() + self.d_model * (self.vocabulary + sounds)


_Config = Config  # because the model below has a class attribute `Config`


class SpeechTransformer(Transformer):
    """features of sounds (B, F, M), target ids (B, T) -> logits (B, T, V).

    A SoundEmbedding replaces the paper's embedding of the source; the decoder's output shares the
    embedding of the target. Features may be on the host and of any floating-point dtype: they are
    moved to the device and dtype of the weights. Sounds have no padding: silence is a sound.
    `backward` takes dlogits and returns dfeatures.
    """

    Config: type[_Config] = Config  # type: ignore[assignment]
    config: _Config  # type: ignore[assignment]
    output: Any

    def __init__(self, config: _Config, seed: int | np.random.SeedSequence = 0):
        rng = np.random.default_rng(seed)
        self.config = self.require_config(config)
        positions = LearnedPositions(config.sound_positions, config.d_model, rng)
        self.source = SoundEmbedding(config.bands, config.d_model, positions, rng, config.p_drop)
        self.encoder = config.encoder(rng)
        embedding = config.embedding(config.vocabulary, rng)
        self.target = config.input_embedding(embedding, rng)
        self.decoder = config.decoder(rng)
        self.output = config.output(embedding.weight)

    def forward(self, sounds: Array, target: Array, skip_padding: bool = False) -> Array:
        require_pair(np.ones((len(sounds), 1)), target, skip_padding, self.config.special)
        targets = Places(self.config.special.real(target), skip_padding)
        memory, sources = self.listen(sounds)
        x, reach = self.target.forward(target, targets), Reach(targets, causal=True)
        x = self.decoder.forward(x, reach, memory, Reach(targets, sources))
        return self.output.forward(x)

    def backward(self, dlogits: Array) -> Array:  # type: ignore[override]
        dx, dmemory = self.decoder.backward(self.output.backward(dlogits))
        self.target.backward(dx)
        return self.source.backward(self.encoder.backward(dmemory))

    def start(self, sounds: Array, length: int) -> State:
        """features (B, F, M) -> the State before the first of at most `length` target ids."""
        memory, sources = self.listen(sounds)
        past = Memory(length)
        past.state(self, lambda past: SourceState(memory=memory, valid=sources.valid))
        return State(np.full(len(sounds), self.config.special.start), past)

    def listen(self, sounds: Array) -> tuple[Array, Places]:
        """features (B, F, M) -> the encoder's output (B, S, D) and its Places."""
        x = self.source.forward(self._features(sounds))
        sources = Places.without_padding(len(x), x.shape[1])
        return self.encoder.forward(x, Reach(sources)), sources

    def _features(self, sounds):
        """Return the features in the dtype and on the device of the weights."""
        config, weight = self.config, self.output.weight.data
        shape: tuple = getattr(sounds, "shape", ())
        fits = len(shape) == 3 and 1 <= shape[1] <= config.frames and shape[2] == config.bands
        if not fits or dtype_kind(sounds) != "f":
            raise InputError(
                f"features of sounds are an array (B, F, {config.bands}) of floating-point "
                f"numbers, F at most {config.frames}",
                f"shape {shape}, dtype {sounds.dtype}" if shape else type(sounds).__name__,
                "numformer.data.log_mel makes them from samples.",
            )
        return array_module(weight).asarray(sounds, dtype=weight.dtype)
