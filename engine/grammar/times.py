"""Patterns of dates, times and durations that Python, pydantic and JavaScript read.

llguidance's own formats follow RFC 3339 to the letter: a year 0000, a second 60 at any minute,
fractions and durations without an end. No clock shows these, and `datetime.fromisoformat`, pydantic
and `Date` refuse them. Sans-IO: constants.
"""

_OF_FOUR = "(0[48]|[2468][048]|[13579][26])"
_YEAR = "([0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_DAY = (
    "((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])"
    "|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
)
_DATE = f"({_YEAR}-{_DAY}|([0-9]{{2}}{_OF_FOUR}|{_OF_FOUR}00)-02-29)"
# Microseconds are what Python holds.
_TIME = (
    r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
)
# Digits of each part of a duration: a sum of them stays below timedelta's 999 999 999 days.
_COUNT = "[0-9]{1,4}"
_SECONDS = f"{_COUNT}S"
_MINUTES = f"{_COUNT}M({_SECONDS})?"
_HOURS = f"{_COUNT}H({_MINUTES})?"
_CLOCK = f"T({_HOURS}|{_MINUTES}|{_SECONDS})"
_DAYS = f"{_COUNT}D"
_MONTHS = f"{_COUNT}M({_DAYS})?"
_YEARS = f"{_COUNT}Y({_MONTHS})?"
_DURATION = f"P(({_YEARS}|{_MONTHS}|{_DAYS})({_CLOCK})?|{_CLOCK}|{_COUNT}W)"

# Pattern of each format of JSON Schema that is about time.
TIMES = {
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}T{_TIME}$",
    "duration": f"^{_DURATION}$",
}
