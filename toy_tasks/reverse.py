"""Reverse a sequence of digits: the first symbol written is the last one read."""

from toy_tasks.text_to_text.sequences import Rule, digits, start

RULE = Rule(
    name="reverse",
    description="Reverse a sequence of up to 16 digits. Target: exact match 0.999 on unseen "
    "sequences.",
    symbols="0123456789",
    source=digits(16),
    target=lambda source: source[::-1],
    reached=0.999,
    defaults={},
)

if __name__ == "__main__":
    start(RULE)
