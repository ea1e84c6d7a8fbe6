"""What can go wrong, as a tree.

    MsdError
    ├── InputError            what the user gave is wrong; nothing was written (exit status 2)
    │   ├── ConfigError       a configuration that cannot mean anything
    │   └── SourceError       data that cannot be read, or of which nothing survives
    ├── StateError            a saved state that does not belong to this run
    ├── PlanError             a plan broke a rule that every plan must keep
    ├── BadSampleRateError    more samples failed than `on_error.max_rate` allows
    └── EngineError           a run cannot go on
        ├── ClosedError       used after `close()`
        ├── LeaseError        the checkpoint belongs to another run
        └── DeadlineError     a wait ran out; the message names whom it waited for

Every message says what was asked, what was found, and what to do.
"""

import signal


def told(error: BaseException) -> str:
    """Return an exception of somebody else's code as one line: `TypeName: message`."""
    try:
        message = " ".join(str(error).split())
    except Exception:
        message = ""
    return f"{type(error).__name__}{': ' if message else ''}{message}"


def how_ended(status: int) -> str:
    """Return how a process ended, from its exit status or minus its signal: `exit status 3`, `SIGKILL`."""
    return f"exit status {status}" if status >= 0 else signal.Signals(-status).name


class MsdError(Exception):
    """Base of everything this package raises on purpose."""

    exit_status = 1


class InputError(MsdError):
    """What the user gave is wrong: a configuration, a path, a file."""

    exit_status = 2


class ConfigError(InputError):
    """A configuration that cannot mean anything."""


class SourceError(InputError):
    """Data that cannot be read, or a source of which no sample survives."""


class StateError(MsdError):
    """A saved state that does not belong to this run, or that ranks disagree on."""


class PlanError(MsdError):
    """A plan broke a rule that every plan must keep. A bug in a strategy or in msd; never in data."""


class BadSampleRateError(MsdError):
    """More samples failed than `on_error.max_rate` allows, or one failed under `policy: raise`."""


class EngineError(MsdError):
    """A run cannot go on."""


class ClosedError(EngineError):
    """An engine or client was used after `close()`."""


class LeaseError(EngineError):
    """The checkpoint belongs to another run, or was taken over by one."""


class DeadlineError(EngineError):
    """A wait ran out; the message names whom it waited for."""
