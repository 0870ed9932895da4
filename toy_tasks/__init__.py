"""Small tasks that train the full encoder-decoder: `python -m toy_tasks.reverse --help`."""
