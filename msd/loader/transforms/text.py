"""Text to token ids, and rows that hold token ids already."""

# T = tokens of one sample.

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from msd.core.arrays import BoolArray, Int32Array, UInt8Array
from msd.core.text import text_of
from msd.errors import ConfigError
from msd.loader.transforms.base import INPUT_IDS, LOSS_MASK, At, BadTokens, Fields, Place, Step, WrongType, field_of
from msd.loader.transforms.config import TokenizeConfig, TokenizingStruct, TokensConfig
from msd.loader.transforms.tokenizer import BOS_TOKENS, BYTES, EOS_TOKENS, Tokenizer

_MAX_ID = 2**31
Grown: TypeAlias = tuple[Int32Array, UInt8Array | None]
"""Token ids and their mask; None learns all."""


def ids_of(value: Any, what: str) -> Int32Array:
    """Return token ids as a fresh int32 array.

    Raises:
        WrongType: If `value` is no flat sequence of integers.
        BadTokens: If an id lies outside [0, 2^31).
    """
    if not isinstance(value, list | tuple | np.ndarray):
        raise WrongType(f"{what} must be a list or array of token ids, got {type(value).__name__}")
    try:
        ids_T = np.asarray(value)
    except (ValueError, OverflowError) as error:
        raise WrongType(f"{what} must be a flat list of token ids: {text_of(error)}") from None
    if ids_T.size == 0:
        return np.empty(0, dtype=np.int32)
    if ids_T.ndim != 1 or ids_T.dtype.kind not in "iu":
        raise WrongType(f"{what} must be a flat list of integers, got {ids_T.ndim}-D of {ids_T.dtype}")
    if ids_T.min() < 0 or ids_T.max() >= _MAX_ID:
        worst = int(ids_T.min()) if ids_T.min() < 0 else int(ids_T.max())
        raise BadTokens(f"{what} has the token id {worst}; ids lie in [0, 2^31)")
    return ids_T.astype(np.int32)


def mask_of(value: Any, num_tokens: int, what: str) -> UInt8Array:
    """Return a loss mask as a fresh uint8 array of zeros and ones.

    Raises:
        WrongType: If `value` is no flat sequence of numbers.
        BadTokens: If it has not one 0 or 1 for each token.
    """
    if not isinstance(value, list | tuple | np.ndarray):
        raise WrongType(f"{what} must be a list or array with one 0 or 1 per token, got {type(value).__name__}")
    try:
        mask_T = np.asarray(value)
    except ValueError as error:
        raise WrongType(f"{what} must be a flat list of 0 and 1: {text_of(error)}") from None
    if mask_T.shape != (num_tokens,):
        raise BadTokens(f"{what} has shape {list(mask_T.shape)}, but there are {num_tokens} tokens; give one per token")
    if num_tokens and mask_T.dtype.kind not in "biuf":
        raise WrongType(f"{what} must hold 0 and 1, got {mask_T.dtype}")
    one_T: BoolArray = mask_T == 1
    if not (one_T | (mask_T == 0)).all():
        raise BadTokens(f"{what} must hold 0 and 1 only, got {mask_T[~(one_T | (mask_T == 0))][0]}")
    return one_T.astype(np.uint8)


def append(fields: Fields, ids_T: Int32Array, mask_T: UInt8Array | None, *, after: bool) -> Fields:
    """Set `input_ids` and `loss_mask` to what earlier transforms made, followed by these tokens.

    Args:
        fields: The sample; changed.
        ids_T: The tokens.
        mask_T: Their mask; None learns all.
        after: Whether earlier transforms make tokens; otherwise columns of these names in the row are replaced.
    """
    if after and INPUT_IDS in fields:
        before_T = ids_of(fields[INPUT_IDS], INPUT_IDS)
        if LOSS_MASK in fields:
            before_mask_T = mask_of(fields[LOSS_MASK], len(before_T), LOSS_MASK)
        else:
            before_mask_T = np.ones(len(before_T), dtype=np.uint8)
        if LOSS_MASK in fields or mask_T is not None:
            mask_T = np.concatenate([before_mask_T, np.ones(len(ids_T), dtype=np.uint8) if mask_T is None else mask_T])
        ids_T = np.concatenate([before_T, ids_T])
    fields[INPUT_IDS] = ids_T
    if mask_T is None:
        fields.pop(LOSS_MASK, None)
    else:
        fields[LOSS_MASK] = mask_T
    return fields


class TokenizeStep(Step):
    """Tokenizes a field and appends to `input_ids`."""

    kind = "tokenize"

    def __init__(self, config: TokenizeConfig, tokenizer: Tokenizer, *, after: bool) -> None:
        """Make the step.

        Args:
            config: What the user set.
            tokenizer: Loaded from `config.tokenizer`.
            after: Whether earlier transforms make tokens that these follow.

        Raises:
            ConfigError: If a token that is to be added is not in the vocabulary.
        """
        self.tokenizer = tokenizer
        self._field = config.field
        self._after = after
        self._trained = config.trained
        self.eos_id = special_id(config, "eos_token", tokenizer, needed=config.append_eos)
        self._eos = self.eos_id if config.append_eos else None
        self._bos = special_id(config, "bos_token", tokenizer, needed=True) if config.prepend_bos else None

    def one(self, fields: Fields, place: Place) -> list[Fields]:
        """Return the sample with its tokens."""
        given = self.many([fields], [place])[0]
        if isinstance(given, Exception):
            raise given
        return given

    def many(
        self, samples: Sequence[Fields], places: Sequence[Place], at: At = lambda ordinal: None
    ) -> list[list[Fields] | Exception]:
        """Tokenize the texts of all samples in one call."""
        texts: list[str] = []
        failed: dict[int, Exception] = {}
        for number, fields in enumerate(samples):
            try:
                texts.append(self._text(fields))
            except Exception as error:
                failed[number] = error
        encoded = iter(self.tokenizer.encode(texts))
        given: list[list[Fields] | Exception] = []
        for number, fields in enumerate(samples):
            ids_T = failed[number] if number in failed else next(encoded)
            given.append(ids_T if isinstance(ids_T, Exception) else self._grown(fields, ids_T))
        return given

    def identity(self) -> dict[str, Any]:
        """Return the tokenizer's digest and what is added."""
        return {
            "tokenizer": self.tokenizer.digest,
            "field": self._field,
            "eos": self._eos,
            "bos": self._bos,
            "trained": self._trained,
        }

    def _text(self, fields: Fields) -> str:
        value = field_of(fields, self._field)
        if isinstance(value, bytes):
            value = value.decode("utf-8")
        if not isinstance(value, str):
            raise WrongType(f"field {self._field!r} must be text, got {type(value).__name__}")
        return value

    def _grown(self, fields: Fields, ids_T: Int32Array) -> list[Fields] | Exception:
        if self._bos is not None or self._eos is not None:
            ends = [np.array([] if end is None else [end], dtype=np.int32) for end in (self._bos, self._eos)]
            ids_T = np.concatenate([ends[0], ids_T, ends[1]])
        mask_T = None if self._trained else np.zeros(len(ids_T), dtype=np.uint8)
        try:
            return [append(fields, ids_T, mask_T, after=self._after)]
        except Exception as error:
            return error


class TokensStep(Step):
    """Takes token ids from a field and appends them to `input_ids`."""

    kind = "tokens"

    def __init__(self, config: TokensConfig, *, after: bool) -> None:
        self._field = config.field
        self._mask = config.mask
        self._eos = config.append_eos_id
        self._takes_over = config.field == INPUT_IDS
        self._after = after
        if self._eos is not None and not 0 <= self._eos < _MAX_ID:
            raise ConfigError(f"append_eos_id must lie in [0, 2^31), got {self._eos}")

    def one(self, fields: Fields, place: Place) -> list[Fields]:
        """Return the sample with its tokens."""
        ids_T = ids_of(field_of(fields, self._field), f"field {self._field!r}")
        mask_T = None
        if self._mask is not None:
            mask_T = mask_of(field_of(fields, self._mask), len(ids_T), f"field {self._mask!r}")
        elif self._takes_over and self._after and LOSS_MASK in fields:
            mask_T = mask_of(fields[LOSS_MASK], len(ids_T), LOSS_MASK)
        if self._eos is not None:
            ids_T = np.append(ids_T, np.int32(self._eos))
            mask_T = None if mask_T is None else np.append(mask_T, np.uint8(1))
        return [append(fields, ids_T, mask_T, after=self._after and not self._takes_over)]

    def identity(self) -> dict[str, Any]:
        """Return the fields and what is added."""
        return {"field": self._field, "mask": self._mask, "eos": self._eos}


def special_id(config: TokenizingStruct, option: str, tokenizer: Tokenizer, *, needed: bool) -> int | None:
    """Return the id of the token that ends or begins a document.

    Args:
        config: Names the tokenizer, and the token where it is not the usual one.
        option: `eos_token` or `bos_token`.
        tokenizer: Loaded.
        needed: Whether it is to be added, so that it must exist.

    Raises:
        ConfigError: If it does not exist.
    """
    asked: str | None = getattr(config, option)
    usual = EOS_TOKENS if option == "eos_token" else BOS_TOKENS
    found = tokenizer.eos_id if option == "eos_token" else tokenizer.bos_id
    if asked is None:
        if found is None and needed:
            raise ConfigError(f"tokenizer {config.tokenizer!r} has none of {', '.join(usual)}; set {option}")
        return found
    if config.tokenizer == BYTES:
        raise ConfigError(f"tokenizer bytes has its own {option} ({found}); leave {option} out")
    found = tokenizer.id_of(asked)
    if found is None:
        near = tokenizer.nearest(asked)
        hint = f"; did you mean {near!r}?" if near else ""
        raise ConfigError(f"{option} {asked!r} is not in the vocabulary of {config.tokenizer!r}{hint}")
    return found
