"""How plans are put into words."""

from collections.abc import Sequence


def numbers(values: Sequence[int], noun: str, *, shown: int = 16) -> str:
    """Return increasing numbers as a person writes them: `rank 3`, `ranks 0-7`, `ranks 0-1, 4-5 and 20 more`.

    Args:
        values: In increasing order, without repeats.
        noun: What they number.
        shown: Runs that are written out.
    """
    runs: list[list[int]] = []
    for value in values:
        if runs and value == runs[-1][1] + 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    written = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs[:shown])
    rest = sum(last - first + 1 for first, last in runs[shown:])
    return f"{noun}{'s' * (len(values) != 1)} {written}{f' and {rest} more' if rest else ''}"
