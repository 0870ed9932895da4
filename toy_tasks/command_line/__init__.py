"""The command line of every task: its flags and settings, training, answers and exit codes.

A task's `main` builds its flags with `build_parser` and reads them with `parse_options`. With --run
it answers with `answer_inputs`; otherwise `settings_from` makes the config, `train_task` trains,
and `finish` prints the result. `exit_code(main)` runs the program.
"""

from numformer.exit_codes import exit_code
from toy_tasks.command_line.answers import (
    answer_inputs,
    generation_settings,
    note,
)
from toy_tasks.command_line.evaluation import add_evaluation_flag, evaluate_run
from toy_tasks.command_line.fine_tuning import start_vocabularies
from toy_tasks.command_line.flags import build_parser
from toy_tasks.command_line.options import beam_settings, name_with_data, parse_options
from toy_tasks.command_line.parser import Parser, any_path, integer, picture_path
from toy_tasks.command_line.settings_flags import settings_from
from toy_tasks.command_line.training import finish, train_task

__all__ = [
    "Parser",
    "add_evaluation_flag",
    "answer_inputs",
    "any_path",
    "beam_settings",
    "build_parser",
    "evaluate_run",
    "exit_code",
    "finish",
    "generation_settings",
    "integer",
    "name_with_data",
    "note",
    "parse_options",
    "picture_path",
    "settings_from",
    "start_vocabularies",
    "train_task",
]
