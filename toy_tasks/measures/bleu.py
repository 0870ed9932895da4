"""BLEU and chrF of translations, as the library sacrebleu computes them."""

import unicodedata
import warnings
from collections import Counter
from collections.abc import Sequence

import numpy as np

from numformer.data.moses import detokenize
from numformer.errors import InputError
from numformer.generation.measures import Measure

UNSPACED = "CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN"
"""Scripts without spaces between words, by the first word of their letters' Unicode names."""


def import_sacrebleu():
    """The metrics of sacrebleu. Raises InputError if it is not installed."""
    try:
        from sacrebleu import metrics
    except ImportError:
        raise InputError(
            "BLEU and chrF need the library sacrebleu",
            "an installation without it",
            "Install the extra: pip install 'numformer[translate]'",
        ) from None
    return metrics


def tokenizer_for(texts: Sequence[str], spaced: str) -> str:
    """The sacrebleu tokenizer for texts: `spaced` if there are spaces between their words.

    Texts in Chinese characters get "zh", those in other scripts without spaces "char". Chinese that
    a program split into words is treated as spaced: it has a space for about every second letter.
    """
    letters = Counter(letter for text in texts for letter in text if letter.isalpha())
    scripts: Counter[str] = Counter()
    for letter, count in letters.items():
        scripts[unicodedata.name(letter, "").replace("-", " ").partition(" ")[0]] += count
    unspaced = sum(scripts[name] for name in UNSPACED)
    spaces = sum(text.count(" ") for text in texts)
    if unspaced <= max(scripts.total() / 4, 3 * spaces):
        return spaced
    return "zh" if scripts["CJK"] > 0.9 * unspaced else "char"


def bleu_metric(references: Sequence[str], spaced: str, **settings):
    """sacrebleu's BLEU, with the tokenizer for the references; warns if BLEU does not suit them."""
    name = tokenizer_for(references, spaced)
    metric = import_sacrebleu().BLEU(tokenize=name, force=name == "none", **settings)
    itself = metric.corpus_score(references, [references]).score
    if itself < 99:
        warnings.warn(
            f"BLEU means nothing here: even the right translations score {itself:.0f}, since "
            "BLEU compares sequences of four words, and no sentence has four",
            stacklevel=3,
        )
    return metric


def bleu_measure(written: Sequence[str], references: Sequence[str], tokenized: bool) -> Measure:
    """BLEU of texts; sacrebleu tokenizes them first, unless they are `tokenized` already."""
    metric = bleu_metric(references, "none" if tokenized else "13a")
    metric.effective_order = True  # else sentence_score warns; counts are the same
    pairs = zip(written, references, strict=True)
    scores = [metric.sentence_score(hypothesis, [right]) for hypothesis, right in pairs]
    counts = np.array([[s.sys_len, s.ref_len, *s.counts, *s.totals] for s in scores])

    def figure(sums) -> float:
        sys_len, ref_len, *matches = map(int, sums)
        orders, smoothing = metric.max_ngram_order, metric.smooth_method
        lengths = matches[:orders], matches[orders:], sys_len, ref_len
        return metric.compute_bleu(*lengths, smooth_method=smoothing).score

    return Measure(counts, figure)


def print_scores(written: Sequence[str], references: Sequence[str], language: str) -> float:
    """Print BLEU and chrF of tokens and of sentences, with signatures -> BLEU of tokens.

    The language "" is for texts that are not tokenized: print only scores of sentences -> BLEU.
    """
    chrf, results, lower = import_sacrebleu().CHRF, [], bool(language)
    tokens = list(written), list(references)
    sentences = [[detokenize(line, language) for line in side] for side in tokens]
    measures = [
        ("BLEU, sentences", bleu_metric(sentences[1], "13a", lowercase=lower), sentences),
        ("chrF, sentences", chrf(lowercase=lower), sentences),
    ]
    if lower:
        measures.insert(0, ("chrF, tokens", chrf(), tokens))
        measures.insert(0, ("BLEU, tokens", bleu_metric(tokens[1], "none"), tokens))
    for name, metric, (hypotheses, right) in measures:
        results.append(metric.corpus_score(hypotheses, [right]).score)
        print(f"{name}: {results[-1]:.2f}  ({metric.get_signature()})")
    return round(results[0], 2)
