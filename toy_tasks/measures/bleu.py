"""BLEU and chrF of translations, as the library sacrebleu computes them."""

from collections.abc import Sequence

from numformer.data.moses import detokenize
from numformer.errors import InputError


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


def token_bleu(written: Sequence[str], references: Sequence[str], tokenized: bool) -> float:
    """BLEU of texts that are `tokenized`; otherwise sacrebleu tokenizes them first."""
    settings = dict(tokenize="none", force=True) if tokenized else {}
    bleu = import_sacrebleu().BLEU(**settings)
    return bleu.corpus_score(list(written), [list(references)]).score


def print_scores(written: Sequence[str], references: Sequence[str], language: str) -> float:
    """Print BLEU and chrF of tokens and of sentences, with signatures -> BLEU of tokens.

    With the language "" texts are not tokenized: print only scores of sentences -> their BLEU.
    """
    metrics, results, lower = import_sacrebleu(), [], bool(language)
    sides = {"tokens": (list(written), list(references))}
    sides["sentences"] = [[detokenize(line, language) for line in side] for side in sides["tokens"]]
    measures = [
        ("BLEU", metrics.BLEU(tokenize="none", force=True), "tokens"),
        ("chrF", metrics.CHRF(), "tokens"),
        ("BLEU", metrics.BLEU(lowercase=lower), "sentences"),
        ("chrF", metrics.CHRF(lowercase=lower), "sentences"),
    ]
    for name, metric, unit in measures if lower else measures[2:]:
        hypotheses, right = sides[unit]
        results.append(metric.corpus_score(hypotheses, [right]).score)
        print(f"{name}, {unit}: {results[-1]:.2f}  ({metric.get_signature()})")
    return round(results[0], 2)
