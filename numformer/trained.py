"""A trained model to use: text in, text out."""

import inspect
import threading
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, overload

import numpy as np

from numformer.data import Vocabulary
from numformer.errors import InputError
from numformer.generation.described import text_of
from numformer.generation.ensemble import Ensemble
from numformer.generation.text import Text
from numformer.models import Model
from numformer.paper.decoder import Decoder
from numformer.paper.encoder import Encoder
from numformer.plots import PICTURES, AttentionMaps, attention_maps
from numformer.published.files import is_published
from numformer.published.loading import load_published
from numformer.runs.checkpoints import load_model

# Where a model looks is read from what its layers save, which all threads see.
_LOOKING = threading.Lock()


@dataclass(frozen=True, repr=False)
class Attention:
    """Where a model looked as it read `text` and wrote `written`.

    `attention["decoder cross_attention"]` are the weights of one kind, (layers, H, T, S): T symbols
    look at S symbols.
    """

    text: str
    written: str
    maps: list[AttentionMaps]

    def __repr__(self) -> str:
        return f"Attention({self.text!r} -> {self.written!r}: {', '.join(self.kinds)})"

    @property
    def kinds(self) -> list[str]:
        """The names of the kinds."""
        return [maps.kind for maps in self.maps]

    def __getitem__(self, kind: str) -> np.ndarray:
        if kind not in self.kinds:
            fix = f"Name one of {', '.join(self.kinds)}."
            raise InputError("a model has the kinds of attention that it has", repr(kind), fix)
        return self.maps[self.kinds.index(kind)].weights

    def draw(self, path: str | Path) -> None:
        """Draw every layer (rows) and head (columns) of every kind into a .png, .pdf or .svg."""
        if Path(path).suffix.lower() not in PICTURES:
            rule = f"a picture's name ends in {', '.join(PICTURES)}"
            raise InputError(rule, repr(str(path)), "Name it so.")
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        arrow = f" → {_shortened(self.written)}" if self.written else ""
        signs = "   (⊢ start, ⊣ end)" if any("⊢" in maps.key_labels for maps in self.maps) else ""
        attention_maps(path, self.maps, f"{_shortened(self.text)}{arrow}{signs}")


def _shortened(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:59]}…"


@dataclass(frozen=True, repr=False)
class Trained:
    """What `load` gives: `trained(text)` is what the model writes for it.

    `model` is the model, or an Ensemble of several, `text` knows its vocabularies, `metadata` is
    what was saved beside them, such as the `best` evaluation.
    """

    model: Model
    text: Text
    metadata: dict

    def __repr__(self) -> str:
        task, best = (self.metadata.get(name) or {} for name in ("task", "best"))
        name = task.get("name") if isinstance(task, dict) else task
        name = name or (self.metadata.get("published") or {}).get("model_type")
        return f"Trained({name}: {type(self.text).__name__}, best {best})"

    @overload
    def __call__(self, text: str, **how: Any) -> str: ...
    @overload
    def __call__(self, text: list[str] | tuple[str, ...], **how: Any) -> list[str]: ...
    def __call__(self, text, **how):
        """What the model writes for a text; of a list of texts, the list of it.

        `how` are the settings of this kind of writing: `beam`, `length_penalty`, `penalty`,
        `max_length`; `length` where the model goes on with a text; `temperature`, `top_k`, `top_p`
        and `seed` to sample. Warns of symbols that training never saw.
        """
        alone = not isinstance(text, list | tuple)
        texts: Any = [text] if alone else text
        written = self.write(texts, say=_warn, **how)
        return written[0] if alone else written

    def write(self, texts: Sequence[str], say=lambda note: None, **how) -> list[str]:
        """What the model writes for each text; `say` is called with what to know about one."""
        asked = self._asked("write", texts, say, how)
        return [self.text.join(written) for written in self.text.write(self.model, asked, **how)]

    def n_best(
        self, texts: Sequence[str], count: int, say=lambda note: None, **how
    ) -> list[list[tuple[float, str]]]:
        """For each text the `count` best answers that a beam finds, best first, with their scores.

        `how` are the settings of a beam that `trained(text)` has. Raises InputError for a model
        that writes in another way.
        """
        asked = self._asked("n_best", texts, say, how)
        answers = self.text.n_best(self.model, asked, count, **how)  # type: ignore[attr-defined]
        return [[(score, self.text.join(written)) for score, written in best] for best in answers]

    def _asked(self, method: str, texts: Sequence[str], say, how: dict) -> list[list[str]]:
        """The symbols of texts that a method of the Text is asked for, by settings that it has."""
        if isinstance(texts, str):
            raise InputError("texts are a list of strings", "a string", "Write [text].")
        if not hasattr(self.text, method):
            rule, fix = "the best answers are found by a beam", "Load a run of an encoder-decoder."
            raise InputError(rule, f"a model for {type(self.text).__name__}", fix)
        known = [*inspect.signature(getattr(self.text, method)).parameters][2:]
        if wrong := [name for name in how if name not in known]:
            settings = ", ".join(name for name in known if name != "count") or "(none)"
            raise InputError(
                f"{method} of this model has the settings {settings}",
                wrong[0],
                "Leave it out, or load a run of another task.",
            )
        asked = [self.text.symbols(text) for text in texts]
        for text, symbols in dict(zip(texts, asked, strict=True)).items():
            for note in self.text.notes(symbols):
                say(f"{note} (in {text!r})" if len(text) <= 80 else note)
        return asked

    def attention(self, text: str, **how) -> Attention:
        """Where the model looks as it reads `text` and writes its answer, by the settings `how`.

        Raises InputError for a model without attention.
        """
        if isinstance(self.model, Ensemble):
            rule, fix = "a map shows where one model looks", "Load one run."
            raise InputError(rule, f"{len(self.model.models)} models", fix)
        (symbols,) = self._asked("write", [text], lambda note: None, how)
        answer = self.text.write(self.model, [symbols], **how)[0] if how else None
        with _LOOKING:
            asked, written, maps = self.text.maps(self.model, symbols, answer)
        if not maps:
            rule, fix = "a model that looks somewhere has attention", "Ask one that has."
            raise InputError(rule, f"a {type(self.model).__name__} without", fix)
        return Attention(self.text.read.join(asked), self.text.join(written), maps)


def _warn(note: str) -> None:
    warnings.warn(note, stacklevel=5)


def best_of(run: Path) -> Path:
    """The file of a run's best model, by the run's folder or its own name.

    The folder of a published model is itself what is opened.
    """
    if run.is_dir() and is_published(run):
        return run
    path = run / "best.safetensors" if run.is_dir() else run
    if not path.is_file():
        runs = sorted(path.parent for path in run.glob("*/best.safetensors"))
        what = f"{run}, which holds {len(runs)} runs" if runs else f"no file {path}"
        raise InputError(
            "a run's folder holds the best.safetensors of its first evaluation",
            what if run.exists() else f"{run}, which is not there",
            f"Name one of the runs, such as {runs[0]}."
            if runs
            else "Name the folder of a run, such as runs/reverse, or train one.",
        )
    return path


def load(run: str | Path, *others: str | Path, kind: type[Model] | None = None) -> Trained:
    """The best model of a run's folder, ready for texts: `load("runs/reverse")("12345")`.

    So is the folder of a model that others published in Hugging Face's layout. With `others`, runs
    of the same vocabularies, all write together as an Ensemble. A model of your own needs its
    class: `load("runs/mine", kind=MyModel)`. Raises InputError where there is no such run, where
    its task has nothing to do with texts (then `load_model` loads the model), and for runs of other
    vocabularies.
    """
    trained = _loaded(run, kind)
    if not others:
        return trained
    models = [trained.model]
    for other in others:
        loaded = _loaded(other, kind)
        if _vocabularies(loaded.text) != _vocabularies(trained.text):
            raise InputError(
                "runs that write together have the same vocabularies",
                f"{run} and {other}, which differ",
                "Train them on the same data, with --seed or sizes of the model changed.",
            )
        models.append(loaded.model)
    return replace(trained, model=Ensemble(models))  # type: ignore[arg-type]


def _vocabularies(text: Text) -> dict:
    """What stands for what in a text, by name."""
    fields = vars(text).items()
    return {name: value.description() for name, value in fields if isinstance(value, Vocabulary)}


def model_of_run(run: str | Path, kind: type[Model] | None = None) -> tuple[Model, dict]:
    """The best model of a run, or a published one, and the metadata beside it.

    Raises InputError as `load_model` does.
    """
    path = best_of(Path(run))
    if path.is_file():
        return load_model(path, kind)
    model, metadata = load_published(path)
    if kind is not None and not isinstance(model, kind):
        received = f"{path}, which is a {type(model).__name__}"
        raise InputError(f"a {kind.__name__} is asked for", received, "Name another folder.")
    return model, metadata


def _loaded(run: str | Path, kind: type[Model] | None) -> Trained:
    path = best_of(Path(run))
    model, metadata = model_of_run(run, kind)
    for layer in model.layers_within():
        if isinstance(layer, Encoder | Decoder):
            # What is forwarded again keeps nothing of where it looks.
            layer.layers = [getattr(part, "layer", part) for part in layer.layers]
    text = text_of(metadata.get("text"), model.config)
    if text is None and "published" in metadata and "text" not in metadata:
        raise InputError(
            "a published model of texts has its tokenizer beside it, tokenizer.json",
            f"{path} without",
            "Download the whole folder. Of a ViT: python -m toy_tasks.images --run FOLDER.",
        )
    if text is None:
        raise InputError(
            "what is loaded was trained on texts, and its file says how they become its ids",
            f"{path}, which does not"
            if not metadata.get("text")
            else f"{path}, which says it of another model",
            "Give the Task a `text` (numformer.Transduction) and train again, or use load_model.",
        )
    return Trained(model, text, metadata)
