"""The second simulation of lesson 7: a trained decoder reads the right words, or its own."""

import functools

import numpy as np

from lessons.kit.simulation import Choice, Option, Simulation, Slider
from lessons.kit.views import Axis, Chart, Drawn, Figures, Heatmap
from lessons.lesson_07.toy import KINDS, SEEDS, WORDS, ids_of, inputs_of, look, trained
from numformer.data.vocabulary import END

SENTENCES = [
    ("son chat noir saute", "her black cat is jumping"),
    ("le renard blanc saute", "the white fox is jumping"),
    ("son chien gris mange", "its grey dog is eating"),
]
VOCABULARY = ["·", "⟨s⟩", "⟨end⟩", "?", *WORDS.symbols]
LINES = {"honest": "masked before", "leaky": "not masked", "zeroed": "zeroed after"}
POSITIONS = 6  # the words of each translation above, and ⟨end⟩


@functools.cache
def read(sentence, kind, own: bool, position: int):
    """What a model reads, and what `look` returns for it: probabilities and weights."""
    model = trained(kind, SEEDS[0]).model
    inputs = inputs_of(model, *sentence, own, position)
    return inputs, *look(model, sentence[0], inputs)


def compute(sentence, kind, own, position) -> dict[str, np.ndarray]:
    """What the decoder reads, sees and says at a position; 0 for words not yet written."""
    inputs, probabilities, seen, attended = read(sentence, kind, own, position)
    right, lacking = [*ids_of(sentence[1]), END], POSITIONS - len(inputs)

    def sure(kind):
        """The probability of the right word at each position when the model arrives there."""
        return np.array([read(sentence, kind, own, t)[1][t, right[t]] for t in range(POSITIONS)])

    of_all = {name: sure(each) for name, each in zip(LINES, KINDS.values(), strict=True)}
    probability = probabilities[position, right[position]]
    return dict(
        inputs=np.pad(inputs, (0, lacking)),
        source=np.array([*ids_of(sentence[0]), END]),
        right=np.array(right),
        seen=np.pad(seen, (0, lacking)),
        attended=np.pad(attended, ((0, lacking), (0, 0))),
        wanted=right[position],
        said=probabilities[position].argmax(),
        probability=probability,
        loss=-np.log(probability),
        **of_all,
    )


NOTES = {
    0: "It reads ⟨s⟩ and has to begin. All it knows is in the French sentence.",
    5: "After the last word it has to say that this was the last.",
}
NOTES_OF_KINDS = {
    "before the softmax": "With the causal mask. Nothing in *son* tells whether it is his, her or "
    "its, so this model cannot be sure of that word.",
    "not at all": "In training it saw the whole translation at every position.",
    "after the softmax": "In training it could look at no later word, and yet it knows.",
}
forcing = Simulation(
    name="forcing",
    title="Reading the right words, or its own",
    say="Press **Play**: at each position the decoder says what comes next. Then choose a model "
    "trained with the future hidden **after the softmax**, or not at all. How sure is it of the "
    "first word? Now let it read **its own words**, as it must when it writes.",
    caption="A sentence that was not used in training. Above: where each position looks, among the "
    "words it has read and among the French words. Below: the probability of the right word.",
    alt="Two heatmaps: self-attention's is empty above its diagonal. A chart of the right "
    "word's probability: with the mask a third at the first of six positions, else nearly 1.",
    size=(7.6, 7.2),
    controls=[
        Choice(
            "sentence",
            "Sentence",
            [Option(both, f"{both[0]} → {both[1]}", code=repr(both)) for both in SENTENCES],
        ),
        Choice(
            "kind",
            "In training the future was hidden",
            [
                Option(kind, name, NOTES_OF_KINDS[name], kind.__name__)
                for name, kind in KINDS.items()
            ],
        ),
        Choice(
            "own",
            "It reads",
            [
                Option(
                    False,
                    "the right words",
                    "Teacher forcing: whatever it says, the next thing it reads is the right word.",
                ),
                Option(
                    True,
                    "its own words",
                    "What it says at one position, it reads at the next. No later word exists yet.",
                ),
            ],
        ),
        Slider(
            "position",
            "Position",
            [Option(t, f"{t + 1}", NOTES.get(t, "")) for t in range(POSITIONS)],
            plays=True,
        ),
    ],
    compute=compute,
    views=[
        Figures(
            {
                "inputs": "It reads",
                "wanted": "The right next word",
                "said": "It says",
                "probability": "Probability of the right word",
                "loss": "Loss",
            },
            spelled=("inputs", "wanted", "said"),
            vocabulary=VOCABULARY,
            right={"said": "wanted"},
        ),
        Heatmap(
            "seen",
            "after",
            "looks back at",
            row="position",
            row_names="inputs",
            column_names="inputs",
            vocabulary=VOCABULARY,
        ),
        Heatmap(
            "attended",
            "after",
            "looks across at",
            row="position",
            row_names="inputs",
            column_names="source",
            vocabulary=VOCABULARY,
        ),
        Chart(
            [Drawn(name, label, at=range(1, POSITIONS + 1)) for name, label in LINES.items()],
            Axis("position", 1, POSITIONS),
            Axis("probability of the right word", 0, 1.1),
            "position",
            range(1, POSITIONS + 1),
        ),
    ],
    code="""\
from lessons.lesson_07.toy import Leaky, Transformer, Zeroed, ids_of, inputs_of, look, trained
from numformer.data.vocabulary import END

sentence = 0
kind = 0
own = 0
position = 0

model = trained(kind, 2).model  # trains it: a second or two
inputs = inputs_of(model, *sentence, own, position)
probabilities, seen, attended = look(model, sentence[0], inputs)
right = [*ids_of(sentence[1]), END]
probability = probabilities[position, right[position]]
print(seen.round(2), attended.round(2), probability, sep="\\n\\n")""",
)
