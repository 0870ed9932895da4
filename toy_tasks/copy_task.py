"""Copy a sequence of digits: the smallest thing that attention can learn."""

from toy_tasks.text_to_text.sequences import Rule, digits, start

RULE = Rule(
    name="copy_task",
    description="Copy a sequence of up to 16 digits. Target: exact match 0.999 on unseen "
    "sequences.",
    symbols="0123456789",
    source=digits(16),
    target=lambda source: source,
    reached=0.999,
    defaults={},
)

if __name__ == "__main__":
    start(RULE)
