"""Tasks that turn one text into another: by a rule, from pairs, between languages."""
