"""A user's function as a transform, and what identifies it when it travels by value."""

import functools
import hashlib
import inspect
import json
import traceback
import types
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any

import numpy as np

from msd.core.dotted import import_dotted
from msd.core.seeds import rng_for
from msd.errors import ConfigError
from msd.loader.transforms.base import Fields, Place, Step, WrongType
from msd.loader.transforms.config import FunctionConfig

_MAX_DEPTH = 4
_PLAIN = frozenset((str, int, float, bool, bytes, type(None)))
"""Types of values that nobody can change."""
_OURS = frozenset(str(PurePath(__file__).with_name(name)) for name in ("base.py", "function.py", "shape.py"))
"""Files whose frames stand between a transform and the user's function."""


class UserFunction:
    """A function of a sample that may draw: its generator belongs to the sample, never to the process.

    The generator has the address (seed, "transform", source, ordinal, number of the transform); of the samples that
    earlier transforms made of one row, the second and later ones add their position.
    """

    def __init__(
        self,
        function: Any,
        *,
        source: str,
        seed: int,
        number: int,
        options: Mapping[str, Any] | None = None,
        setting: str = "function",
    ) -> None:
        """Resolve the function and look at its signature.

        Args:
            function: The function, or its dotted path `package.module:function`.
            source: Name of the source.
            seed: Seed of the run.
            number: Of the transform in the chain, from 0.
            options: Further keyword arguments.
            setting: What the user calls this setting, for errors.

        Raises:
            ConfigError: If there is no such function, or it cannot be called with a sample.
        """
        self._path = function if isinstance(function, str) else None
        self._function = import_dotted(function, name=setting) if isinstance(function, str) else function
        self._options = dict(options or {})
        self._address = (seed, "transform", source)
        self._number = number
        if not callable(self._function):
            raise ConfigError(f"{setting} must be a function of a sample, got {type(self._function).__name__}")
        if inspect.iscoroutinefunction(self._function):
            raise ConfigError(f"{setting} {_name(self._function)} is async; transforms are plain functions: use def")
        self._rng = _how_to_pass_rng(self._function, self._options, setting)

    def __call__(self, fields: Fields, place: Place) -> Any:
        """Return what the function makes of a copy of the sample, which it may change as it likes."""
        sample = _copied(fields)
        if self._rng is None:
            return self._function(sample, **self._options)
        rng = self._generator(place)
        if self._rng == "keyword":
            return self._function(sample, rng=rng, **self._options)
        return self._function(sample, rng, **self._options)

    def identity(self) -> dict[str, Any]:
        """Return the path or name of the function, a hash of its source, and its options."""
        return {
            "name": self._path or _name(self._function),
            "code": code_of(self._function),
            "options": _jsonable(self._options),
        }

    def where(self, error: Exception) -> str:
        """Return the function's name, and the file and line in it that an exception came from: no directory."""
        # The innermost line of the file in which the function begins; what that calls elsewhere is not the user's.
        passed = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
        outside = [(file, line) for file, line in passed if file not in _OURS]
        lines = [line for file, line in outside if file == outside[0][0]]
        place = f", {PurePath(outside[0][0]).name} line {lines[-1]}" if lines else ""
        return f"{self._shown()}{place}"

    def _shown(self) -> str:
        if self._path is not None:
            return self._path.replace(":", ".")
        module = getattr(self._function, "__module__", None)
        name = _name(self._function).rpartition("<locals>.")[2]
        return name if module in (None, "__main__", "builtins") else f"{module}.{name}"

    def _generator(self, place: Place) -> np.random.Generator:
        address = (*self._address, place.ordinal, self._number)
        return rng_for(*address, place.part) if place.part else rng_for(*address)


class FunctionStep(Step):
    """Calls a user's function, which returns a sample, several, or None."""

    kind = "function"

    def __init__(self, config: FunctionConfig, *, source: str, seed: int, number: int) -> None:
        self._version = config.version
        self._function = UserFunction(config.function, source=source, seed=seed, number=number, options=config.options)

    def one(self, fields: Fields, place: Place) -> list[Fields]:
        """Return the samples that the function made."""
        given = self._function(fields, place)
        if given is None:
            return []
        if isinstance(given, Mapping):
            return [_copied(given)]
        if isinstance(given, types.GeneratorType):
            given = list(given)
        if not isinstance(given, list | tuple):
            raise WrongType(f"the function must return a dict, None or a list of dicts, got {type(given).__name__}")
        for sample in given:
            if not isinstance(sample, Mapping):
                raise WrongType(f"the function must return dicts, got a list with {type(sample).__name__}")
        return [_copied(sample) for sample in given]

    def where(self, error: Exception) -> str:
        """Return the function, and the file and line that raised."""
        return f"{self.kind} {self._function.where(error)}"

    def identity(self) -> dict[str, Any]:
        """Return what identifies the function, and the version its author gave it."""
        return {**self._function.identity(), "version": self._version}


def code_of(function: Any, depth: int = 0) -> str:
    """Return a hash of what a function does, as far as it can be seen.

    Of its source (or of its compiled code where there is none), its defaults, and what it closes over: JSON-able
    values by value, functions by their own hash, other objects by their type.
    """
    summary = hashlib.blake2b(digest_size=12)
    summary.update(json.dumps(_seen(function, depth), sort_keys=True).encode())
    return summary.hexdigest()


def _seen(function: Any, depth: int) -> Any:
    if depth >= _MAX_DEPTH:
        return type(function).__qualname__
    if isinstance(function, functools.partial):
        bound = [list(function.args), dict(function.keywords)]
        return ["partial", _seen(function.func, depth + 1), _jsonable(bound, depth)]
    if inspect.ismethod(function):
        return ["method", _seen(function.__func__, depth + 1), _state_of(function.__self__, depth)]
    if not inspect.isfunction(function):
        made = function if inspect.isclass(function) or inspect.isbuiltin(function) else type(function)
        return ["object", made.__module__ or "", made.__qualname__, _source(made), _state_of(function, depth)]
    cells = function.__closure__ or ()
    closed = {
        name: _jsonable(cell.cell_contents, depth)
        for name, cell in zip(function.__code__.co_freevars, cells, strict=True)
        if not _is_empty(cell)
    }
    defaults = [list(function.__defaults__ or ()), function.__kwdefaults__ or {}]
    return ["function", _source(function) or _compiled(function.__code__), _jsonable(defaults, depth), closed]


def _source(thing: Any) -> str:
    try:
        return inspect.getsource(thing)
    except (OSError, TypeError):
        return ""


def _compiled(code: types.CodeType) -> list[Any]:
    constants = [_compiled(c) if isinstance(c, types.CodeType) else repr(c) for c in code.co_consts]
    return [code.co_code.hex(), list(code.co_names), list(code.co_varnames), constants]


def _state_of(thing: Any, depth: int) -> Any:
    if inspect.ismodule(thing) or inspect.isclass(thing):
        return thing.__name__
    return _jsonable(getattr(thing, "__dict__", {}), depth)


def _jsonable(value: Any, depth: int = 0) -> Any:
    """Return a JSON-able stand-in of a value that two machines agree on."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_jsonable(item, depth) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(json.dumps(_jsonable(item, depth), sort_keys=True) for item in value)
    if isinstance(value, Mapping):
        return {str(key): _jsonable(item, depth) for key, item in value.items()}
    if isinstance(value, bytes):
        return hashlib.blake2b(value, digest_size=12).hexdigest()
    if callable(value):
        return code_of(value, depth + 1)
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _is_empty(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - asked for its exception
    except ValueError:
        return True
    return False


def _how_to_pass_rng(function: Callable[..., Any], options: Mapping[str, Any], setting: str) -> str | None:
    """Return whether the function takes a generator: None, `positional` or `keyword`.

    It does if a parameter is called `rng`, or if a second positional one has neither a default nor an option.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    parameters = signature.parameters
    positional = [
        p
        for p in parameters.values()
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.name not in options
    ]
    how: str | None = None
    if "rng" in parameters and "rng" not in options:
        how = "positional" if parameters["rng"].kind is inspect.Parameter.POSITIONAL_ONLY else "keyword"
    elif len(positional) > 1 and positional[1].default is inspect.Parameter.empty:
        how = "positional"
    try:
        signature.bind(
            {}, *([None] if how == "positional" else []), **({"rng": None} if how == "keyword" else {}), **options
        )
    except TypeError as error:
        raise ConfigError(
            f"{setting} {_name(function)}{signature} cannot be called as (sample), or (sample, rng), with options "
            f"{sorted(options)}: {error}"
        ) from None
    return how


def _copied(fields: Mapping[str, Any]) -> Fields:
    """Return a copy with lists, dictionaries, tuples and arrays of its own, at any depth.

    On the way in, so that a function cannot change rows that a source holds; on the way out, so that one which fills
    the same buffer for every sample does not change those it made before.
    """
    return {name: _own(value) for name, value in fields.items()}


def _own(value: Any) -> Any:
    kind = type(value)
    if kind is list:
        return [item if type(item) in _PLAIN else _own(item) for item in value]
    if kind in _PLAIN:
        return value
    if kind is dict:
        return {key: _own(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        # Of an array of objects a copy would share the objects.
        return value.copy() if value.dtype != object else _own_objects(value)
    if kind is tuple:
        return tuple([_own(item) for item in value])
    if isinstance(value, tuple) and hasattr(kind, "_make"):
        return kind._make([_own(item) for item in value])
    return kind(value) if kind in (set, bytearray) else value


def _own_objects(array_any: Any) -> Any:
    copied = array_any.copy()
    for place in np.ndindex(array_any.shape):
        copied[place] = _own(array_any[place])
    return copied


def _name(function: Any) -> str:
    return str(getattr(function, "__qualname__", type(function).__qualname__))
