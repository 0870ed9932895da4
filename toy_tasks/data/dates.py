"""Pairs of dates: as people write them, and as 2026-11-21."""

import datetime

import numpy as np

MONTHS = "january february march april may june july august september october november december"
DAYS = "monday tuesday wednesday thursday friday saturday sunday"
FORMS = (
    "{day} {month} {year}",
    "{day}. {month} {year}",
    "{day}{th} {month} {year}",
    "{month} {day}, {year}",
    "{month} {day} {year}",
    "{month} {day}{th}, {year}",
    "the {day}{th} of {month} {year}",
    "{year} {month} {day}",
    "{weekday} {day} {month} {year}",
    "{weekday}, {month} {day}, {year}",
)


def dates(count: int = 20_000) -> list[tuple[str, str]]:
    """`count` random dates from the years 1900 to 2099, the same in each call."""
    rng = np.random.default_rng(2017)
    first = datetime.date(1900, 1, 1).toordinal()
    last = datetime.date(2099, 12, 31).toordinal()
    days = map(datetime.date.fromordinal, rng.integers(first, last + 1, size=count).tolist())
    return [(in_words(day, rng), day.isoformat()) for day in days]


def in_words(day: datetime.date, rng: np.random.Generator) -> str:
    """The day in one of the formats that people use for dates, chosen at random."""
    month, weekday = MONTHS.split()[day.month - 1], DAYS.split()[day.weekday()]
    if rng.random() < 0.5:
        month, weekday = month[:3], weekday[:3]
    text = FORMS[rng.integers(len(FORMS))].format(
        day=day.day, month=month, year=day.year, weekday=weekday, th=ordinal(day.day)
    )
    return (text, text.title(), text.upper())[rng.integers(3)]


def ordinal(day: int) -> str:
    """The ending of a day's ordinal number: 1st, 2nd, 3rd, 4th."""
    return "th" if 11 <= day <= 13 else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")
