"""Small published models with tokenizers: what load, tasks and the README open."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tokenizers

import numformer as nf
from numformer.data import Subwords
from numformer.data.tokenizers import Tokenizer
from numformer.published.saving import save_published
from tests.published.published_cases import (
    BART,
    BERT,
    CLIP,
    GPT2,
    LLAMA,
    MARIAN,
    T5,
    TWO,
    VIT,
    RandomModel,
)

LINES = [
    "the small dog runs on the grass",
    "a dog and a cat sleep",
    "to be or not to be, so",
    "42!",
]
LINES += [f"{one} {two} again" for one in ("dogs", "cats", "people") for two in ("run", "sleep")]


def byte_level(size: int, marks: Sequence[str] = ("<|endoftext|>",)) -> tokenizers.Tokenizer:
    """GPT-2's kind."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[*marks],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(LINES, trainer)
    return tokenizer


def word_pieces(size: int) -> tokenizers.Tokenizer:
    """BERT's kind, with its marks around a text."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = tokenizers.decoders.WordPiece()
    marks = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = tokenizers.trainers.WordPieceTrainer(
        vocab_size=size, special_tokens=marks, show_progress=False
    )
    tokenizer.train_from_iterator(LINES, trainer)
    tokenizer.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


def unigram(size: int, template: str = "$A </s>") -> tokenizers.Tokenizer:
    """T5's kind, which puts an end after a text; BART's puts the unknown symbol before it."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.Unigram())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    tokenizer.decoder = tokenizers.decoders.Metaspace()
    trainer = tokenizers.trainers.UnigramTrainer(
        vocab_size=size,
        special_tokens=["<pad>", "</s>", "<unk>"],
        unk_token="<unk>",
        show_progress=False,
    )
    tokenizer.train_from_iterator(LINES, trainer)
    marks = [("</s>", 1), ("<unk>", 2)]
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        template, special_tokens=marks
    )
    return tokenizer


def bart(folder: Path) -> Path:
    ids = dict(pad_token_id=0, eos_token_id=1, decoder_start_token_id=1)
    return t5(folder, BART | ids, "<unk> $A </s>")


def t5(folder: Path, kind: dict = T5, template: str = "$A </s>") -> Path:
    tokenizer = unigram(70, template)
    values = kind | dict(vocab_size=tokenizer.get_vocab_size() + 16)  # T5 has ids without a symbol
    RandomModel("t5", values, np.float32).save(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def gpt2(folder: Path, kind: dict = GPT2) -> Path:
    tokenizer = byte_level(300)
    size = tokenizer.get_vocab_size()
    values = kind | dict(vocab_size=size, bos_token_id=0, eos_token_id=0)
    RandomModel("gpt2", values | dict(n_positions=64), np.float32).save(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def llama(folder: Path) -> Path:
    return gpt2(folder, LLAMA | dict(max_position_embeddings=64))


def clip(folder: Path) -> Path:
    """The end of a text is BERT's [SEP]."""
    tokenizer = word_pieces(120)
    size, end = tokenizer.get_vocab_size(), tokenizer.token_to_id("[SEP]")
    texts = CLIP["text_config"] | dict(vocab_size=size, eos_token_id=end)
    RandomModel("clip", CLIP | dict(text_config=texts), np.float32).save(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def bert(folder: Path, changes: dict | None = None) -> Path:
    tokenizer = word_pieces(120)
    values = BERT | dict(vocab_size=tokenizer.get_vocab_size()) | (changes or {})
    RandomModel("bert", values, np.float32).save(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def sentences(folder: Path, pooling: str = "last") -> Path:
    """A BERT without a head, in the layout of sentence-transformers."""
    tokenizer = word_pieces(120)
    values = BERT | dict(vocab_size=tokenizer.get_vocab_size(), architectures=["BertModel"])
    example = RandomModel("bert", values, np.float32)
    vocabulary = Tokenizer(tokenizer.to_str(), values["vocab_size"], marked=True)
    text = nf.generation.Reading(vocabulary, 9, pooling, normalized=True)
    save_published(folder, example.model, {"published": values}, text)
    return folder


def marian(folder: Path, **changes) -> Path:
    """Of one vocabulary for both languages, as a run of ours would become it."""
    subwords = Subwords.train(LINES, 60)
    values = MARIAN | dict(pad_token_id=0, decoder_start_token_id=1, eos_token_id=2)
    values |= dict(vocab_size=len(subwords), bad_words_ids=[[0], [1], [3]])
    if changes:  # the start is the padding, as in those that are published
        padding = changes["pad_token_id"]
        values |= changes | dict(decoder_start_token_id=padding, bad_words_ids=[[padding]])
    example = RandomModel("marian", values, np.float32)
    text = nf.Transduction(subwords, subwords, 12, beam=1)
    save_published(folder, example.model, {"published": example.values}, text)
    return folder


def marian_of_two(folder: Path) -> Path:
    """Of a vocabulary for each language."""
    source, target = Subwords.train(LINES, 60), Subwords.train(LINES[::-2], 52)
    values = MARIAN | TWO | dict(pad_token_id=0, decoder_start_token_id=1, eos_token_id=2)
    values |= dict(vocab_size=len(source), decoder_vocab_size=len(target))
    example = RandomModel("marian", values | dict(bad_words_ids=[[0], [1], [3]]), np.float32)
    text = nf.Transduction(source, target, 12)
    save_published(folder, example.model, {"published": example.values}, text)
    return folder


def vit(folder: Path, **changes) -> Path:
    values = VIT | changes | dict(id2label={str(n): f"thing {n}" for n in range(5)})
    return RandomModel("vit", values, np.float32).save(folder)
