"""Sort digits: every digit that is written depends on all that were read."""

from toy_tasks.text_to_text.sequences import Rule, digits, start

RULE = Rule(
    name="sort",
    description="Sort a sequence of up to 12 digits. Target: exact match 0.999 on unseen "
    "sequences.",
    symbols="0123456789",
    source=digits(12),
    target=lambda source: "".join(sorted(source)),
    reached=0.999,
    defaults=dict(steps=2400),
)

if __name__ == "__main__":
    start(RULE)
