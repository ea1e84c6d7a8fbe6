"""Tokenizers: a `tokenizer.json` read once per process, or the built-in one of UTF-8 bytes."""

import difflib
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakValueDictionary

import numpy as np

from msd.core.arrays import Int32Array
from msd.core.text import text_of
from msd.errors import ConfigError
from msd.loader.transforms.base import WrongType

BYTES = "bytes"
"""Name of the built-in tokenizer."""
EOS_TOKENS = ("<|endoftext|>", "</s>", "<eos>", "<|end_of_text|>", "<|im_end|>")
BOS_TOKENS = ("<|begin_of_text|>", "<s>", "<bos>", "<|startoftext|>", "<|im_start|>")
IMAGE_TOKENS = ("<|image|>", "<|image_pad|>")


class Tokenizer(Protocol):
    """Text to ids."""

    digest: str
    """Identity of the vocabulary and rules: equal on every machine that has the same file."""
    num_ids: int
    """Every id of the vocabulary is below it."""
    eos_id: int | None
    """What ends a document, by its usual spellings."""
    bos_id: int | None
    """What begins a document, by its usual spellings."""
    image_id: int | None
    """What stands for image patches, by its usual spellings."""

    def encode(self, texts: Sequence[str]) -> list[Int32Array | Exception]:
        """Return the ids of each text, or why it has none; independent of what else is in the batch."""
        ...

    def id_of(self, token: str) -> int | None:
        """Return the id of a token, or None."""
        ...

    def nearest(self, token: str) -> str | None:
        """Return the special token that looks most like `token`, for an error."""
        ...


class ByteTokenizer:
    """UTF-8 bytes: an id is a byte's value; 256 ends a document, 257 begins one, 258 stands for image patches."""

    digest = "bytes-1"
    num_ids = 259
    eos_id: int | None = 256
    bos_id: int | None = 257
    image_id: int | None = 258

    def encode(self, texts: Sequence[str]) -> list[Int32Array | Exception]:
        """Return the bytes of each text; text that has no UTF-8 form (a lone surrogate) fails."""
        given: list[Int32Array | Exception] = []
        for text in texts:
            try:
                given.append(np.frombuffer(text.encode("utf-8"), dtype=np.uint8).astype(np.int32))
            except UnicodeEncodeError as error:
                given.append(error)
        return given

    def id_of(self, token: str) -> int | None:
        """Return None: its tokens have no spelling."""
        return None

    def nearest(self, token: str) -> str | None:
        """Return None."""
        return None


class FileTokenizer:
    """A Hugging Face `tokenizer.json`. Its truncation, padding and template are not applied."""

    def __init__(self, content: bytes, path: str) -> None:
        import tokenizers

        try:
            self._tokenizer: Any = tokenizers.Tokenizer.from_buffer(content)
        except Exception as error:
            raise ConfigError(
                f"tokenizer {path!r} is not a tokenizer.json that tokenizers {tokenizers.__version__} can read: "
                f"{text_of(error)}; write it again, or use tokenizer: bytes"
            ) from None
        dropout = getattr(self._tokenizer.model, "dropout", None)
        if dropout:
            raise ConfigError(
                f"tokenizer {path!r} has BPE dropout {dropout}, so a text would have other tokens each time; "
                'set "dropout": null in its model'
            )
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.digest = _digest(content)
        self.num_ids = 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
        self.eos_id = self._first_of(EOS_TOKENS)
        self.bos_id = self._first_of(BOS_TOKENS)
        self.image_id = self._first_of(IMAGE_TOKENS)

    def encode(self, texts: Sequence[str]) -> list[Int32Array | Exception]:
        """Return the ids of each text; special tokens spelled out in a text become their ids."""
        try:
            return [_ids(encoding) for encoding in self._encode(list(texts))]
        except Exception:
            # One text without a UTF-8 form fails the whole call: find out which.
            return [self._encode_alone(text) for text in texts]

    def id_of(self, token: str) -> int | None:
        """Return the id of a token, or None."""
        found: int | None = self._tokenizer.token_to_id(token)
        return found

    def nearest(self, token: str) -> str | None:
        """Return the special token that looks most like `token`."""
        special = [added.content for added in self._tokenizer.get_added_tokens_decoder().values()]
        return next(iter(difflib.get_close_matches(token, special, n=1, cutoff=0.3)), None)

    def _first_of(self, tokens: Sequence[str]) -> int | None:
        return next((found for token in tokens if (found := self.id_of(token)) is not None), None)

    def _encode(self, texts: list[str]) -> list[Any]:
        encodings: list[Any] = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return encodings

    def _encode_alone(self, text: str) -> Int32Array | Exception:
        try:
            return _ids(self._encode([text])[0])
        except Exception as error:
            try:
                text.encode("utf-8")
            except UnicodeEncodeError as no_utf8:
                return no_utf8
            return WrongType(f"the tokenizer cannot encode this text: {text_of(error)}")


_in_use: WeakValueDictionary[str, FileTokenizer] = WeakValueDictionary()


def load_tokenizer(name: str) -> Tokenizer:
    """Return the tokenizer `bytes`, or the one in a file; all sources that name the same content share it.

    Raises:
        ConfigError: If the file cannot be read, or is no tokenizer; names the path.
    """
    if name == BYTES:
        return ByteTokenizer()
    # A process that forks after the library's own threads ran may hang in the child, and what runs in parallel here
    # are loaders. Who has cores to spare sets it to true.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        content = Path(name).read_bytes()
    except OSError as error:
        raise ConfigError(
            f"tokenizer {name!r} cannot be read: {error.strerror or error}; give the path of a tokenizer.json, "
            "or tokenizer: bytes"
        ) from None
    known = _in_use.get(_digest(content))
    if known is None:
        known = FileTokenizer(content, name)
        _in_use[known.digest] = known
    return known


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _ids(encoding: Any) -> Int32Array:
    return np.array(encoding.ids, dtype=np.int32)
