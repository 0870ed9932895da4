"""What every task's program is made of; the pages beside this room are the tasks.

A `main` makes flags with `parser` and reads them with `parse`. Where there is a --run it answers
with `use`; otherwise `chosen` makes the config, `train_task` trains, and `finish` says what came
out. `exit_code(main)` is the program.
"""

from toy_tasks.kit.answers import note, use, while_read, writing
from toy_tasks.kit.exits import exit_code
from toy_tasks.kit.flags import Parser, chosen, integer, parser, path, picture
from toy_tasks.kit.options import parse, search
from toy_tasks.kit.starting import vocabularies
from toy_tasks.kit.training import finish, train_task

__all__ = [
    "Parser",
    "chosen",
    "exit_code",
    "finish",
    "integer",
    "note",
    "parse",
    "parser",
    "path",
    "picture",
    "search",
    "train_task",
    "use",
    "vocabularies",
    "while_read",
    "writing",
]
