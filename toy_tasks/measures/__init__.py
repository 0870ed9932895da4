"""Measures of what models predict: losses, edit distances, BLEU, F1 of syntax trees."""
