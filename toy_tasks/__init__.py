"""Small tasks that train a model: `python -m toy_tasks` lists them."""

TASKS = {
    "copy_task": ("copy up to 16 digits", "that attention can find a place", "30 s"),
    "reverse": ("reverse up to 16 digits", "where attention looks: the picture to begin with", "25 s"),
    "sort": ("sort up to 12 digits", "that what is written may depend on all that was read", "35 s"),
    "addition": ("add two numbers of three digits", "that a carry can be learned", "35 s"),
    "pairs": ("your own pairs of texts", "what a Transformer makes of your data", "from 1 min"),
    "pronounce": ("pronounce a language", "a real task beside published figures", "5 min"),
    "write": ("go on with any text", "a language model: a decoder alone", "2 min"),
}
"""What each task learns, what it teaches, and how long it takes on two cores."""
