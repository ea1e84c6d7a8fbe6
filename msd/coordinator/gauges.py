"""How sources keep up with planning, as counters: what rates and decisions are made from."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SourceGauge:
    """Of one source, now."""

    consumed: int
    """Rows that planning has come past, through all epochs."""
    ready: int
    """Rows beyond that of which everything is known."""
    wanted: int
    """Rows that it pays to have ready."""
    is_starved: bool
    """Whether planning waits for it now."""
