"""Which field of a row is the text, the image, the ids: by name first, then by what it holds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from msd.look.sniff import is_image

_TEXT_NAMES = ("text", "content", "document", "body", "article", "caption", "txt", "code", "markdown", "summary")
_TOKEN_NAMES = ("input_ids", "ids", "tokens", "token_ids")
_MASK_NAMES = ("loss_mask", "assistant_masks", "target_mask")
_MESSAGE_NAMES = ("messages", "conversations", "conversation", "dialog")
_PROMPT_NAMES = ("prompt", "instruction", "question", "query", "problem")
_ANSWER_NAMES = ("response", "completion", "answer", "output", "solution", "chosen")
TEMPLATE_WARNING = (
    "conversations are rendered by the template chatml, and only the assistant's turns are learned; if your model has "
    "another template, set template and trained of the chat transform"
)


@dataclass(frozen=True, slots=True)
class Field:
    """One field over the rows that were looked at."""

    name: str
    kind: str
    """text, tokens, image, messages or other."""
    mean_length: float
    """Characters, ids or messages; 0 for the others."""

    def __str__(self) -> str:
        unit = {"text": "characters", "tokens": "ids", "messages": "messages"}.get(self.kind)
        return self.kind if unit is None else f"{self.kind}, about {self.mean_length:,.0f} {unit}"


def fields_of(rows: Sequence[dict[str, Any]]) -> list[Field]:
    """Return every field of `rows` in order of appearance."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    return [_field(name, [row[name] for row in rows if row.get(name) is not None]) for name in names]


def are_messages(transforms: Sequence[dict[str, Any]]) -> bool:
    """Whether the transforms render conversations."""
    return any(transform["kind"] == "chat" for transform in transforms)


def choose(fields: Sequence[Field], tokenize: dict[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the transforms that make samples of such rows, and why; no transforms when no field will do.

    Args:
        fields: Of the rows looked at.
        tokenize: The settings of a `tokenize` transform but for its field.
    """
    transforms: list[dict[str, Any]] = []
    reasons: list[str] = []
    images = [field for field in fields if field.kind == "image"]
    if images:
        transforms.append({"kind": "image", "field": images[0].name})
        reasons.append(f"{images[0].name} holds images")
        if len(images) > 1:
            reasons.append(f"other images are left out: {', '.join(field.name for field in images[1:])}")
    text, why = _text_transforms(fields, tokenize)
    return (transforms + text, reasons + why) if text else ([], [*reasons, *why])


def _text_transforms(fields: Sequence[Field], tokenize: dict[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
    ids = _named(fields, "tokens", _TOKEN_NAMES)
    texts = [field for field in fields if field.kind == "text" and field.mean_length > 0]
    if ids is not None or (not texts and any(field.kind == "tokens" for field in fields)):
        ids = ids or next(field for field in fields if field.kind == "tokens")
        mask = _named(fields, "tokens", _MASK_NAMES)
        masked = {"mask": mask.name} if mask is not None else {}
        reason = f"{ids.name} holds token ids already" + (f", {mask.name} says which are learned" if mask else "")
        return [{"kind": "tokens", "field": ids.name, **masked}], [reason]
    prompt, answer = _named(fields, "text", _PROMPT_NAMES), _named(fields, "text", _ANSWER_NAMES)
    if prompt is not None and answer is not None:
        context = {**tokenize, "field": prompt.name, "append_eos": False, "trained": False}
        return [context, {**tokenize, "field": answer.name}], [
            f"{prompt.name} is context, {answer.name} is learned: they look like a prompt and its answer"
        ]
    messages = _named(fields, "messages", _MESSAGE_NAMES)
    if messages is not None:
        chat = {"kind": "chat", "tokenizer": tokenize["tokenizer"], "field": messages.name}
        return [chat], [f"{messages.name} are conversations"]
    if not texts:
        return [], [f"no field holds text or token ids; there are {', '.join(f.name for f in fields) or 'none'}"]
    named = _named(texts, "text", _TEXT_NAMES)
    if named is not None:
        return [{**tokenize, "field": named.name}], [f"{named.name} is a usual name for text"]
    longest = max(texts, key=lambda field: field.mean_length)
    return [{**tokenize, "field": longest.name}], [f"{longest.name} is the longest text"]


def _named(fields: Sequence[Field], kind: str, names: Sequence[str]) -> Field | None:
    by_name = {field.name.lower(): field for field in fields if field.kind == kind}
    return next((by_name[name] for name in names if name in by_name), None)


def _field(name: str, values: Sequence[Any]) -> Field:
    first = values[0] if values else None
    if is_image(first):
        return Field(name, "image", 0.0)
    if isinstance(first, str):
        return Field(name, "text", _mean_length(values))
    if isinstance(first, list) and first and all(isinstance(item, int) for item in first):
        return Field(name, "tokens", _mean_length(values))
    if isinstance(first, list) and first and isinstance(first[0], dict) and {"content", "value"} & first[0].keys():
        return Field(name, "messages", _mean_length(values))
    return Field(name, "other", 0.0)


def _mean_length(values: Sequence[Any]) -> float:
    lengths = [len(value) for value in values if hasattr(value, "__len__")]
    return sum(lengths) / max(1, len(lengths))
