"""Conversations to token ids: a template around every turn, and a mask that says which turns are learned."""

# T = tokens of one sample.

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import msgspec
import numpy as np

from msd.core.arrays import Int32Array
from msd.errors import ConfigError
from msd.loader.transforms.base import IMAGES, At, Fields, Place, Step, WrongType, field_of
from msd.loader.transforms.config import USUAL_ROLES, ChatConfig, TurnConfig
from msd.loader.transforms.text import append, special_id
from msd.loader.transforms.tokenizer import Tokenizer

Span = tuple[str, bool]
"""Text, and whether it is learned."""

TEMPLATES = {
    "chatml": {
        role: TurnConfig(prefix=f"<|im_start|>{role}\n", suffix="<|im_end|>", separator="\n")
        for role in ("system", "user", "assistant", "tool")
    }
}
_IMAGE_PARTS = ("image", "image_url")


class ChatStep(Step):
    """Renders the turns of a field, tokenizes them and appends to `input_ids`.

    What is learned is tokenized apart from what is not: a prompt then has the tokens that it has at inference, where
    it is tokenized before there is an answer.
    """

    kind = "chat"

    def __init__(self, config: ChatConfig, tokenizer: Tokenizer, *, after: bool) -> None:
        """Make the step.

        Args:
            config: What the user set.
            tokenizer: Loaded from `config.tokenizer`.
            after: Whether earlier transforms make tokens that these follow.

        Raises:
            ConfigError: If a token that is to be added is not in the vocabulary, or a role that is named is not in the
                template.
        """
        self.tokenizer = tokenizer
        self.eos_id = special_id(config, "eos_token", tokenizer, needed=config.append_eos)
        self._field = config.field
        self._after = after
        self._template = TEMPLATES[config.template] if isinstance(config.template, str) else config.template
        self._roles = config.roles
        self._trained = frozenset(config.trained)
        self._eos = self.eos_id if config.append_eos else None
        self._bos = special_id(config, "bos_token", tokenizer, needed=True) if config.prepend_bos else None
        self._check_roles("trained", config.trained)
        # The usual names are there for whoever has them; a template may do without.
        if config.roles != USUAL_ROLES:
            self._check_roles("roles", config.roles.values())

    def one(self, fields: Fields, place: Place) -> list[Fields]:
        """Return the conversation with its tokens, or nothing where no turn is learned."""
        given = self.many([fields], [place])[0]
        if isinstance(given, Exception):
            raise given
        return given

    def many(
        self, samples: Sequence[Fields], places: Sequence[Place], at: At = lambda ordinal: None
    ) -> list[list[Fields] | Exception]:
        """Tokenize the turns of all conversations in one call."""
        rendered: list[list[Span] | Exception] = []
        for fields in samples:
            try:
                rendered.append(self._spans(fields))
            except Exception as error:
                rendered.append(error)
        fine = [spans for spans in rendered if not isinstance(spans, Exception)]
        encoded = iter(self.tokenizer.encode([text for spans in fine for text, _ in spans]))
        given: list[list[Fields] | Exception] = []
        for fields, spans in zip(samples, rendered, strict=True):
            if isinstance(spans, Exception):
                given.append(spans)
            else:
                given.append(self._grown(fields, [(next(encoded), is_trained) for _, is_trained in spans]))
        return given

    def identity(self) -> dict[str, Any]:
        """Return the tokenizer's digest, the template and what is added."""
        return {
            "tokenizer": self.tokenizer.digest,
            "field": self._field,
            "template": msgspec.to_builtins(self._template),
            "roles": self._roles,
            "trained": sorted(self._trained),
            "eos": self._eos,
            "bos": self._bos,
        }

    def _check_roles(self, setting: str, roles: Iterable[str]) -> None:
        for role in roles:
            if role not in self._template:
                raise ConfigError(
                    f"{setting} names the role {role!r}, which the template has not (its roles: "
                    f"{', '.join(self._template)}); add it to template, or leave it out"
                )

    def _spans(self, fields: Fields) -> list[Span]:
        """Return the text of a conversation, cut where learning begins or ends."""
        messages = field_of(fields, self._field)
        if not isinstance(messages, Sequence | np.ndarray) or isinstance(messages, str | bytes):
            raise WrongType(f"field {self._field!r} must be a list of messages, got {type(messages).__name__}")
        spans: list[Span] = []
        for number, message in enumerate(messages):
            where = f"{self._field}[{number}]"
            role, content = self._turn(message, where, has_images=bool(fields.get(IMAGES)))
            turn, is_trained = self._template[role], role in self._trained
            spans += [(turn.prefix, False), (content + turn.suffix, is_trained), (turn.separator, False)]
        alike = groupby((span for span in spans if span[0]), key=itemgetter(1))
        return [("".join(text for text, _ in run), is_trained) for is_trained, run in alike]

    def _turn(self, message: Any, where: str, *, has_images: bool) -> tuple[str, str]:
        """Return the role and the text of a message."""
        if not isinstance(message, Mapping):
            raise WrongType(f"{where} must be a mapping with role and content, got {type(message).__name__}")
        # Rows of one table have all the keys that any of them has.
        named = message.get("from") if message.get("role") is None else message["role"]
        role = self._roles.get(named, named) if isinstance(named, str) else None
        if role not in self._template:
            raise ValueError(
                f"{where} has the role {named!r}, which the template has not (its roles: {', '.join(self._template)}); "
                "add it to roles or template"
            )
        key = "value" if message.get("content") is None and "value" in message else "content"
        content = message.get(key)
        if isinstance(content, list | tuple | np.ndarray):
            content = "".join(_text_of_part(part, where, has_images=has_images) for part in content)
        if not isinstance(content, str):
            raise ValueError(_no_text(message, where, key))
        return str(role), content

    def _grown(
        self, fields: Fields, encoded: Sequence[tuple[Int32Array | Exception, bool]]
    ) -> list[Fields] | Exception:
        ids: list[Int32Array] = [] if self._bos is None else [np.array([self._bos], dtype=np.int32)]
        masks = [np.zeros(len(part), dtype=np.uint8) for part in ids]
        is_last_trained = bool(encoded) and encoded[-1][1]
        for ids_T, is_trained in encoded:
            if isinstance(ids_T, Exception):
                return ids_T
            ids.append(ids_T)
            masks.append(np.full(len(ids_T), is_trained, dtype=np.uint8))
        if not any(mask_T.any() for mask_T in masks):
            return []
        if self._eos is not None:
            ids.append(np.array([self._eos], dtype=np.int32))
            masks.append(np.array([is_last_trained], dtype=np.uint8))
        try:
            return [append(fields, np.concatenate(ids), np.concatenate(masks), after=self._after)]
        except Exception as error:
            return error


def _no_text(message: Mapping[str, Any], where: str, key: str) -> str:
    """Return what to say of a message whose content is no text."""
    if message.get("tool_calls") is not None:
        return (
            f"{where} has tool_calls and no text; write them out as its content with a function before this transform"
        )
    if key not in message:
        return f"{where} has no content or value, only {', '.join(map(str, message))}"
    return f"{where}.{key} must be text, or a list of parts with text in them, got {type(message[key]).__name__}"


def _text_of_part(part: Any, where: str, *, has_images: bool) -> str:
    """Return the text of one part of a message's content; images stand before all text, so theirs is none."""
    kind = part.get("type", "text") if isinstance(part, Mapping) else type(part).__name__
    if kind == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    if kind in _IMAGE_PARTS and has_images:
        return ""
    raise ValueError(
        f"{where} has a part of type {kind!r} without text; parts are {{type: text, text: ...}}, and images where an "
        "image transform before this one has read them"
    )
