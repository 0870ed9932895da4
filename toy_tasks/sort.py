# PYTHON_ARGCOMPLETE_OK
"""Sort a sequence of digits: every digit of the target depends on the whole source."""

from toy_tasks.text_to_text.sequences import Rule, digits, run_program

RULE = Rule(
    name="sort",
    description="Sort a sequence of up to 12 digits. Target: exact match 0.999 on unseen "
    "sequences.",
    symbols="0123456789",
    draw_source=digits(12),
    make_target=lambda source: "".join(sorted(source)),
    required=0.999,
    defaults=dict(steps=2400),
)

if __name__ == "__main__":
    run_program(RULE)
