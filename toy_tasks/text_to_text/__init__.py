"""Tasks that turn one text into another: symbols by a rule, pairs, sentences."""
