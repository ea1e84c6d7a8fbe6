"""Transforms that keep, leave out, rename or cut, and look at no content but what they are told to."""

import re
from collections.abc import Callable, Sized
from typing import Any

from msd.core.state import canonical_json
from msd.errors import ConfigError
from msd.loader.transforms.base import (
    IMAGES,
    INPUT_IDS,
    LOSS_MASK,
    Fields,
    MissingField,
    Place,
    Step,
    WrongType,
    available,
    field_of,
)
from msd.loader.transforms.config import ChunkConfig, FilterConfig, SelectConfig
from msd.loader.transforms.function import UserFunction
from msd.loader.transforms.text import ids_of, mask_of


class ChunkStep(Step):
    """Cuts `input_ids` (with their mask) or a text into pieces of a size; neighbours share `overlap` units.

    Images that an earlier transform made stay with the first piece, whose placeholders come before its text.
    """

    kind = "chunk"

    def __init__(self, config: ChunkConfig) -> None:
        self._config = config

    def one(self, fields: Fields, place: Place) -> list[Fields]:
        """Return the pieces, in order; the last one may be shorter, and none lies within its predecessor."""
        if self._config.unit == "characters":
            return self._cut_text(fields)
        if INPUT_IDS not in fields:
            raise MissingField("no input_ids to cut; put chunk after tokenize, or set unit: characters")
        ids_T = ids_of(fields[INPUT_IDS], INPUT_IDS)
        mask_T = mask_of(fields[LOSS_MASK], len(ids_T), LOSS_MASK) if LOSS_MASK in fields else None
        pieces = []
        for start, end in self._cuts(len(ids_T)):
            piece = self._piece(fields, start)
            piece[INPUT_IDS] = ids_T[start:end]
            if mask_T is not None:
                piece[LOSS_MASK] = mask_T[start:end]
            pieces.append(piece)
        return pieces

    def identity(self) -> dict[str, Any]:
        """Return the sizes and the unit."""
        config = self._config
        return {"size": config.size, "overlap": config.overlap, "unit": config.unit, "field": config.field}

    def _cut_text(self, fields: Fields) -> list[Fields]:
        name = self._config.field
        text = field_of(fields, name)
        if isinstance(text, bytes):
            text = text.decode("utf-8")
        if not isinstance(text, str):
            raise WrongType(f"field {name!r} must be text to be cut, got {type(text).__name__}")
        return [{**self._piece(fields, start), name: text[start:end]} for start, end in self._cuts(len(text))]

    def _cuts(self, length: int) -> list[tuple[int, int]]:
        size, stride = self._config.size, self._config.size - self._config.overlap
        starts = range(0, max(1, length - self._config.overlap), stride)
        return [(start, min(start + size, length)) for start in starts]

    @staticmethod
    def _piece(fields: Fields, start: int) -> Fields:
        piece = dict(fields)
        if start:
            piece.pop(IMAGES, None)
        return piece


class FilterStep(Step):
    """Keeps a sample if every condition holds."""

    kind = "filter"

    def __init__(self, config: FilterConfig, *, source: str, seed: int, number: int) -> None:
        """Compile the conditions.

        Raises:
            ConfigError: If there is none, or one cannot be used.
        """
        self._config = config
        self._function = None
        if config.function is not None:
            self._function = UserFunction(config.function, source=source, seed=seed, number=number)
        self._conditions = _conditions(config)
        if not self._conditions and self._function is None:
            raise ConfigError(
                "a filter needs a condition: min_length, max_length, equals, one_of, matches, at_least, at_most or "
                "function"
            )

    def one(self, fields: Fields, place: Place) -> list[Fields]:
        """Return the sample, or nothing."""
        if self._conditions:
            value = field_of(fields, self._config.field)
            if not all(holds(value) for holds in self._conditions):
                return []
        if self._function is not None and not self._function(fields, place):
            return []
        return [fields]

    def where(self, error: Exception) -> str:
        """Return the filter, and its function with the file and line that raised."""
        return self.kind if self._function is None else f"{self.kind} {self._function.where(error)}"

    def identity(self) -> dict[str, Any]:
        """Return the conditions."""
        config = self._config
        names = ("min_length", "max_length", "equals", "one_of", "matches", "at_least", "at_most")
        given = {name: getattr(config, name) for name in names if getattr(config, name) is not None}
        try:
            canonical_json(given)
        except TypeError:
            given = {name: repr(value) for name, value in given.items()}
        function = {} if self._function is None else {"function": self._function.identity()}
        return {"field": config.field, **given, **function}


class SelectStep(Step):
    """Keeps some fields, under the same or new names."""

    kind = "select"

    def __init__(self, config: SelectConfig) -> None:
        fields = config.fields
        self._old_by_new = dict(fields) if isinstance(fields, dict) else {name: name for name in fields}
        if not self._old_by_new:
            raise ConfigError("select needs at least one field to keep")

    def one(self, fields: Fields, place: Place) -> list[Fields]:
        """Return a sample of these fields only."""
        missing = [old for old in self._old_by_new.values() if old not in fields]
        if missing:
            raise MissingField(f"no field {missing[0]!r} to select; this row has {available(fields)}")
        return [{new: fields[old] for new, old in self._old_by_new.items()}]

    def identity(self) -> dict[str, Any]:
        """Return the names."""
        return {"fields": self._old_by_new}


def _conditions(config: FilterConfig) -> list[Callable[[Any], bool]]:
    name = config.field
    conditions: list[Callable[[Any], bool]] = []
    low, high = config.min_length, config.max_length
    if low is not None:
        conditions.append(lambda value: _length(value, name) >= low)
    if high is not None:
        conditions.append(lambda value: _length(value, name) <= high)
    if config.equals is not None:
        conditions.append(lambda value: bool(value == config.equals))
    if config.one_of is not None:
        choices = config.one_of
        conditions.append(lambda value: value in choices)
    if config.matches is not None:
        try:
            pattern = re.compile(config.matches)
        except re.error as error:
            raise ConfigError(f"filter matches {config.matches!r} is no regular expression: {error}") from None
        conditions.append(lambda value: pattern.search(_text(value, name)) is not None)
    least, most = config.at_least, config.at_most
    if least is not None:
        conditions.append(lambda value: _number(value, name) >= least)
    if most is not None:
        conditions.append(lambda value: _number(value, name) <= most)
    return conditions


def _length(value: Any, name: str) -> int:
    if not isinstance(value, Sized):
        raise WrongType(f"field {name!r} has no length, it is {type(value).__name__}; filter on another field")
    return len(value)


def _text(value: Any, name: str) -> str:
    if isinstance(value, bytes):
        value = value.decode("utf-8")
    if not isinstance(value, str):
        raise WrongType(f"field {name!r} must be text to be matched, got {type(value).__name__}")
    return value


def _number(value: Any, name: str) -> float:
    try:
        # Side-cars of web data often hold numbers as text.
        return float(value)
    except (TypeError, ValueError):
        raise WrongType(f"field {name!r} must be a number to be compared, got {str(value)[:40]!r}") from None
