# PYTHON_ARGCOMPLETE_OK
"""Reverse a sequence of digits: the first digit to write is the last of the source."""

from toy_tasks.text_to_text.sequences import Rule, digits, run_program

RULE = Rule(
    name="reverse",
    description="Reverse a sequence of up to 16 digits. Target: exact match 0.999 on unseen "
    "sequences.",
    symbols="0123456789",
    draw_source=digits(16),
    make_target=lambda source: source[::-1],
    required=0.999,
    defaults={},
)

if __name__ == "__main__":
    run_program(RULE)
