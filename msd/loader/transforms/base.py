"""What every transform is: a step that takes samples of a batch of rows and says, for each, what it gives.

A row flows through the chain as a dictionary. Three of its keys are conventional: `input_ids` (token ids),
`loss_mask` (optional, one 0 or 1 per token: 0 is context only) and `images` (what the image transform made).
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, TypeAlias

from msd.core.text import text_of
from msd.errors import EngineError, SourceError

Fields: TypeAlias = dict[str, Any]
"""One sample on its way: field name to value."""

At: TypeAlias = Callable[[int], None]
"""Told the ordinal of each row before something is done with it, or `poison.slots.WHOLE` before many are together."""

INPUT_IDS = "input_ids"
LOSS_MASK = "loss_mask"
IMAGES = "images"

_MAX_REASON = 300
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


class Place(NamedTuple):
    """Which sample this is, for transforms that draw."""

    ordinal: int
    part: int
    """Position among the samples that the row gives at this point of the chain."""


class MissingField(Exception):
    """A field that a transform needs is not there."""


class WrongType(Exception):
    """A field, or what a function returned, is not of a type that a transform can use."""


class BadTokens(Exception):
    """Token ids or a loss mask that cannot be a sample."""


class BadImage(Exception):
    """Bytes that are no image, or one that is refused."""


class Step(ABC):
    """One transform of a source. Has no state that changes from sample to sample."""

    kind: ClassVar[str]

    @abstractmethod
    def one(self, fields: Fields, place: Place) -> list[Fields]:
        """Return what one sample gives: itself changed, several, or none. May change and return `fields`.

        Raises:
            SourceError: If what the sample needs cannot be reached now, which is no fault of the sample.
            Exception: Any other; the row then counts as failed, with the exception as its reason.
        """

    def many(
        self, samples: Sequence[Fields], places: Sequence[Place], at: At = lambda ordinal: None
    ) -> list[list[Fields] | Exception]:
        """Return what each sample gives, or why it failed; equal to `one` for each, perhaps faster.

        Args:
            samples: Of consecutive rows, in order.
            places: Which samples they are.
            at: Told which row comes next, by those that take one after another.

        Raises:
            SourceError: If what a sample needs cannot be reached now: the run ends, since no sample is at fault.
            EngineError: If this process cannot go on, as without a free file descriptor.
        """
        given: list[list[Fields] | Exception] = []
        for fields, place in zip(samples, places, strict=True):
            at(place.ordinal)
            try:
                given.append(self.one(fields, place))
            except (SourceError, EngineError):
                raise
            except Exception as error:
                given.append(error)
        return given

    def where(self, error: Exception) -> str:
        """Return what an exception of this transform is said to come from."""
        del error
        return self.kind

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """Return everything its results depend on, JSON-able and free of paths."""


def field_of(fields: Fields, name: str) -> Any:
    """Return a field, or raise `MissingField` naming those that are there."""
    try:
        return fields[name]
    except KeyError:
        raise MissingField(f"no field {name!r}; this row has {available(fields)}") from None


def available(fields: Fields) -> str:
    """Return the names of the fields a row has, for an error."""
    names = [repr(name) for name in fields]
    return ", ".join(names[:12]) + (", ..." if len(names) > 12 else "") if names else "no fields"


def reason_of(error: Exception, where: str) -> str:
    """Return one line `TypeName: message (in where)`: the same on every machine, so without memory addresses."""
    message = _ADDRESS.sub("", text_of(error))
    if len(message) > _MAX_REASON:
        message = message[: _MAX_REASON - 3] + "..."
    return f"{type(error).__name__}{': ' if message else ''}{message} (in {where})"
