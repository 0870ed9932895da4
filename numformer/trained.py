"""Use a trained model: load it, give it texts, get its answers and its attention."""

import inspect
import threading
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from numformer.counts import counted
from numformer.errors import InputError
from numformer.generation import reading
from numformer.generation.descriptions import pipeline_from
from numformer.generation.ensemble import Ensemble
from numformer.generation.evaluation import (
    Evaluation,
    Measures,
    evaluate,
    require_examples,
    score,
    warn_of_unseen,
)
from numformer.generation.text_pipeline import OneVocabulary, TextPipeline
from numformer.models import Model
from numformer.models.vision import VisionTransformer
from numformer.paper.decoder import Decoder
from numformer.paper.encoder import Encoder
from numformer.plots import AttentionMaps, attention_maps
from numformer.published.files import advice, is_published, snapshot
from numformer.published.loading import load_published
from numformer.runs.checkpoints import load_model

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# A lock: attention is read from the values that layers save, which all threads share.
_READING_ATTENTION = threading.Lock()


@dataclass(frozen=True)
class Attention:
    """The attention of a model as it read `text` and wrote `written`.

    `attention["decoder cross_attention"]` holds the weights (layers, H, T, S) of one kind of
    attention, from T symbols to S symbols. A notebook shows the picture that `draw` returns.
    """

    text: str
    written: str
    maps: list[AttentionMaps]

    def __repr__(self) -> str:
        return f"Attention({self.text!r} -> {self.written!r}: {', '.join(self.kinds)})"

    @property
    def kinds(self) -> list[str]:
        """The names of the kinds of attention."""
        return [maps.kind for maps in self.maps]

    def __getitem__(self, kind: str) -> np.ndarray:
        if kind not in self.kinds:
            fix = f"Name one of {', '.join(self.kinds)}."
            raise InputError("a kind of attention is one that the model has", repr(kind), fix)
        return self.maps[self.kinds.index(kind)].weights

    def draw(self, path: str | Path | None = None) -> "Figure | None":
        """Draw each layer (row) and head (column) of each kind; None if there is no attention.

        Returns the figure, which a notebook shows; saves it if `path` names a .png, .pdf or .svg.
        """
        arrow = f" → {_shorten(self.written)}" if self.written else ""
        signs = "   (⊢ start, ⊣ end)" if any("⊢" in maps.key_labels for maps in self.maps) else ""
        return attention_maps(path, self.maps, f"{_shorten(self.text)}{arrow}{signs}")

    def _repr_png_(self) -> bytes | None:
        """The picture that a notebook shows for this object; None if there is no attention."""
        figure: Any = self.draw()
        return figure and figure._repr_png_()


def _shorten(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:59]}…"


@dataclass(frozen=True)
class Trained:
    """A loaded model: `trained(text)` returns the text that it writes.

    `model` is the model, or an Ensemble of several; `text` is the pipeline that turns texts into
    the model's symbols and back; `metadata` is what was saved with the model, such as the `best`
    evaluation.
    """

    model: Model
    text: TextPipeline
    metadata: dict

    def __repr__(self) -> str:
        task, best = (self.metadata.get(name) or {} for name in ("task", "best"))
        name = task.get("name") if isinstance(task, dict) else task
        name = name or (self.metadata.get("published") or {}).get("model_type")
        return f"Trained({name}: {type(self.text).__name__}, best {best})"

    @overload
    def __call__(self, text: str, **settings: Any) -> str: ...
    @overload
    def __call__(self, text: list[str] | tuple[str, ...], **settings: Any) -> list[str]: ...
    def __call__(self, text, **settings):
        """Return the model's answer to a text, or a list of answers to a list of texts.

        An encoder-decoder has the settings `beam`, `length_penalty`, `penalty` and `max_length`, a
        language model `length`; both have `temperature`, `top_k`, `top_p` and `seed` to sample.
        The settings of the run are the defaults, as on the command line. In a list of several
        texts, an empty one gets an empty answer. Warns about symbols that training never saw.
        """
        single = not isinstance(text, list | tuple)
        texts: Any = [text] if single else text
        answers = self.write(texts, say=_warn, **settings)
        return answers[0] if single else answers

    def write(self, texts: Sequence[str], say=lambda note: None, **settings) -> list[str]:
        """Return the model's answer to each text; call `say` with each warning about a text."""
        sequences = self._symbols("write", texts, say, settings)
        written = iter(self.text.write(self.model, [*filter(None, sequences)], **settings))
        return [self.text.join(next(written)) if symbols else "" for symbols in sequences]

    def n_best(
        self, texts: Sequence[str], count: int, say=lambda note: None, **settings
    ) -> list[list[tuple[float, str]]]:
        """Return for each text the `count` best answers of a beam search, best first, with scores.

        `settings` are settings of beam search. In a list of several texts, an empty one gets no
        answers. A search for `count` answers continues longer than one for a single answer. So the
        first may be better than what `write` returns; with the same `beam` it is never worse.
        Raises InputError for a model without beam search.
        """
        sequences = self._symbols("n_best", texts, say, settings)
        answers = iter(
            self.text.n_best(  # type: ignore[attr-defined]
                self.model, [*filter(None, sequences)], count, **settings
            )
        )
        return [
            [(score, self.text.join(written)) for score, written in next(answers)]
            if symbols
            else []
            for symbols in sequences
        ]

    def score(self, pairs: Iterable[tuple[str, str]]) -> list[float]:
        """Return log p of the second text of each pair, given the first, in nats.

        The pairs are (source, target) for an encoder-decoder, (beginning, continuation) for a
        language model, (text with holes, whole text) for a masked language model, and (text, label)
        for a classifier of texts. Warns about symbols that training never saw.
        """
        _, texts, choices = self._split(pairs)
        warn_of_unseen(self.text, texts, choices, stacklevel=3)
        written = [symbols for symbols, *_ in choices]
        return score(self.text, self.model, texts, written)[0].tolist()

    def evaluate(
        self,
        examples: Iterable[tuple[str, str | Sequence[str]]],
        measures: Measures | None = None,
        **settings,
    ) -> Evaluation:
        """Measure the model on pairs of texts, as `score` takes them; the second text is right.

        A source may also have a list of targets, each of them right. The model's answer, written
        with `settings` as in a call, is compared with the nearest of them. Every model has the
        measure `loss`: the mean of -log p of the right symbols, in nats. The other measures are
        those of the model's text pipeline, unless `measures` is given (`Measures` in
        generation/evaluation.py). A language model writes no answers; beside the loss it has
        `bits_per_character`.
        """
        self._require_settings("write", settings)
        examples, texts, choices = self._split(examples)
        evaluation = evaluate(self.text, self.model, texts, choices, measures, **settings)
        for number, prediction in enumerate(evaluation.predictions):
            source, right = examples[number]
            answers = [self.text.join(symbols) for symbols in choices[number]]
            right = [right] if isinstance(right, str) else right
            target = right[answers.index(prediction.target)]
            evaluation.predictions[number] = replace(prediction, source=source, target=target)
        return evaluation

    def _split(self, examples) -> tuple[list[Any], list[list[str]], list[list[list[str]]]]:
        """Examples -> their list, the symbols of each source, and of each of its right answers."""
        if isinstance(examples, str) or not isinstance(examples, Iterable):
            fix = 'Write [("12345", "54321")]; on the command line, --data names a file.'
            raise InputError("examples are pairs of texts", f"{str(examples)!r:.60}", fix)
        examples, texts, choices = [*examples], [], []
        for number, example in enumerate(examples, 1):
            is_pair = isinstance(example, tuple | list) and len(example) == 2
            right = example[1] if is_pair else None
            answers = [right] if isinstance(right, str) else right
            if not isinstance(answers, tuple | list) or not all(
                isinstance(text, str) for text in (example[0], *answers)
            ):
                rule = "an example is a pair of texts, or a text and a list of right answers"
                raise InputError(rule, f"{example!r:.60}", 'Write [("12345", "54321")].')
            try:
                texts.append(self.text.symbols(example[0]))
            except InputError as problem:
                rule, received, fix = problem.args
                raise InputError(rule, f"{received} in example {number}", fix) from None
            choices.append([self.text.answer_symbols(answer) for answer in answers])
        require_examples(self.text, choices)
        return examples, texts, choices

    def embed(
        self, texts: Sequence[str], pooling: str | None = None, normalized: bool | None = None
    ) -> np.ndarray:
        """Return a vector for each text (N, D): the stack's output, pooled over its symbols.

        `pooling` is "mean", "first", "last" or "max"; vectors that are `normalized` have length 1.
        The defaults are those of the published folder, or else the mean as it is. A longer text is
        cut to what the model can read. Raises InputError unless the model is a single stack.
        """
        pooling = pooling or str(getattr(self.text, "pooling", "mean"))
        unit = getattr(self.text, "normalized", False) if normalized is None else normalized
        return reading.embed(self.model, self._rows(texts), pooling, unit)

    def hidden(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return for each text the vectors of its symbols in all layers (layers + 1, T, D).

        The first are the embeddings, the last the stack's output. Raises InputError as `embed`.
        """
        return reading.hidden(self.model, self._rows(texts))

    def _rows(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text, for a model that is a single stack."""
        _require_list(texts)
        if not (hasattr(self.model, "hidden") and isinstance(self.text, OneVocabulary)):
            rule, fix = "vectors of texts come from a single stack", "Load a GPT or a BERT."
            raise InputError(rule, f"a {type(self.model).__name__}", fix)
        return [self.text.first_ids(text) for text in texts]

    def _symbols(self, method: str, texts: Sequence[str], say, settings: dict) -> list[list[str]]:
        """Return the symbols of texts, and check that the pipeline's method has these settings.

        Of several texts, one that is empty or all white space gets no symbols.
        """
        _require_list(texts)
        if not hasattr(self.text, method):
            rule, fix = "n_best needs beam search", "Load a run of an encoder-decoder."
            raise InputError(rule, f"a model for {type(self.text).__name__}", fix)
        self._require_settings(method, settings)
        several = len(texts) > 1
        is_empty = [several and isinstance(text, str) and not text.strip() for text in texts]
        sequences = [
            [] if empty else self.text.symbols(text)
            for text, empty in zip(texts, is_empty, strict=True)
        ]
        for text, symbols in dict(zip(texts, sequences, strict=True)).items():
            for note in self.text.notes(symbols) if symbols else ():
                say(f"{note} (in {text!r})" if len(text) <= 80 else note)
        return sequences

    def _require_settings(self, method: str, settings: dict) -> None:
        """Raise InputError for a setting that the pipeline's method does not have."""
        keywords = [*inspect.signature(getattr(self.text, method)).parameters][2:]
        if unknown := [name for name in settings if name not in keywords]:
            names = ", ".join(name for name in keywords if name != "count") or "(none)"
            raise InputError(
                f"{method} of this model has the settings {names}",
                unknown[0],
                "The method n_best(texts, count) gives several answers."
                if unknown[0] in ("n_best", "count") and hasattr(self.text, "n_best")
                else "Leave it out, or load a run of another task.",
            )

    def attention(self, text: str, **settings) -> Attention:
        """Return the attention of the model as it reads `text` and writes its answer.

        Raises InputError for a model without attention.
        """
        if isinstance(self.model, Ensemble):
            rule, fix = "maps show the attention of one model", "Load one run."
            raise InputError(rule, f"{len(self.model.models)} models", fix)
        (symbols,) = self._symbols("write", [text], lambda note: None, settings)
        answer = self.text.write(self.model, [symbols], **settings)[0] if settings else None
        with _READING_ATTENTION:
            read, written, maps = self.text.maps(self.model, symbols, answer)
        if not maps:
            rule, fix = "only a model with attention has maps", "Load another run."
            raise InputError(rule, f"a {type(self.model).__name__} without attention", fix)
        return Attention(self.text.input_vocabulary.join(read), self.text.join(written), maps)


def _require_list(texts) -> None:
    if isinstance(texts, str):
        raise InputError("texts are a list of strings", "a string", "Write [text].")


def _warn(note: str) -> None:
    warnings.warn(note, stacklevel=5)


def model_path(run: str | Path) -> Path:
    """Return the file of a run's best model, given the run's folder or the file itself.

    For a published model, return the model's folder.
    """
    if not isinstance(run, str | Path):
        fix = 'Write a path such as "runs/reverse", and several as load("runs/a", "runs/b").'
        raise InputError("a run is named by the path of its folder", repr(run), fix)
    run = snapshot(Path(run))
    if run.is_dir() and is_published(run):
        return run
    path = run / "best.safetensors" if run.is_dir() else run
    if not path.is_file() or path.suffix in (".gguf", ".json"):
        runs = sorted(path.parent for path in run.glob("*/best.safetensors"))
        found = f"{run}, which holds {counted(len(runs), 'run')}" if runs else f"{run} without one"
        raise InputError(
            "a trained model is the folder of a run, with a best.safetensors after its first "
            "evaluation, or the folder of a published model",
            found if run.exists() else f"{run}, which is not there",
            f"Name one of the runs, such as {runs[0]}."
            if runs
            else hint
            if (hint := advice(run))
            else "Continue the run with --resume until its first evaluation."
            if (run / "last.safetensors").is_file()
            else "Name the folder of a run, such as runs/reverse, or train one.",
        )
    return path


def load(run: str | Path, *others: str | Path, kind: type[Model] | None = None) -> Trained:
    """Load the best model of a run, ready for texts: `load("runs/reverse")("12345")`.

    `run` may also be the folder of a model published in Hugging Face's layout. If there are
    `others`, runs with the same vocabularies, the models form an Ensemble. For a model of your own,
    pass its class: `load("runs/mine", kind=MyModel)`. Raises InputError if there is no such run, if
    its task has no texts (`load_model` loads such a model), or if the vocabularies differ.
    """
    trained = _load_run(run, kind)
    if not others:
        return trained
    models = [trained.model]
    for other in others:
        member = _load_run(other, kind)
        if not member.text.has_same_vocabularies(trained.text):
            raise InputError(
                "the runs of an ensemble have the same vocabularies",
                f"{run} and {other}, whose vocabularies differ",
                "Train them on the same data, changing only --seed or the model's sizes.",
            )
        models.append(member.model)
    return replace(trained, model=Ensemble(models))  # type: ignore[arg-type]


def model_of_run(run: str | Path, kind: type[Model] | None = None) -> tuple[Model, dict]:
    """Load the best model of a run, or a published model, and the metadata saved with it.

    Raises InputError as `load_model` does.
    """
    path = model_path(run)
    if path.is_file():
        return load_model(path, kind)
    model, metadata = load_published(path)
    if kind is not None and not isinstance(model, kind):
        received = f"{path}, which is a {type(model).__name__}"
        raise InputError(f"the run holds a {kind.__name__}", received, "Name another folder.")
    return model, metadata


def _load_run(run: str | Path, kind: type[Model] | None) -> Trained:
    path = model_path(run)
    model, metadata = model_of_run(run, kind)
    for layer in model.layers_within():
        if isinstance(layer, Encoder | Decoder):
            # A Checkpointed layer does not save its attention, so the layer inside takes its place.
            layer.layers = [getattr(part, "layer", part) for part in layer.layers]
    text = pipeline_from(metadata.get("text"), model.config)
    if "published" in metadata and "text" not in metadata:
        raise InputError(
            "the folder of a published text model holds its tokenizer, tokenizer.json",
            f"{path}, which has none",
            "Download the whole folder. For a ViT: python -m toy_tasks.images --run FOLDER.",
        )
    if text is None:
        fix = "Give the Task a `text`, such as a Transduction, and train again, or use load_model."
        if isinstance(model, VisionTransformer):
            fix = f"It classifies images: python -m toy_tasks.images --run {run}."
        raise InputError(
            "the file of a text model describes its text pipeline",
            f"{path}, which describes a pipeline for another model"
            if metadata.get("text")
            else f"{path}, which does not",
            fix,
        )
    return Trained(model, text, metadata)
