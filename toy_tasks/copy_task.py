# PYTHON_ARGCOMPLETE_OK
"""Copy a sequence of digits: the simplest task that needs attention."""

from toy_tasks.text_to_text.sequences import Rule, digits, run_program

RULE = Rule(
    name="copy_task",
    description="Copy a sequence of up to 16 digits. Target: exact match 0.999 on unseen "
    "sequences.",
    symbols="0123456789",
    draw_source=digits(16),
    make_target=lambda source: source,
    required=0.999,
    defaults={},
)

if __name__ == "__main__":
    run_program(RULE)
