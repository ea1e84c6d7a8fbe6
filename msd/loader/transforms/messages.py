"""Conversations to plain text, for a first look at chat data."""

from typing import Any


def messages_to_text(sample: dict[str, Any], *, field: str = "messages") -> dict[str, Any]:
    """Add `text`: every turn of `sample[field]` as its role on one line and its content below.

    Turns are `{role, content}` or `{from, value}`. No model's chat template: everything is learned, and no special
    token is added. For fine-tuning there is the `chat` transform.

    Raises:
        ValueError: If a turn has no content.
    """
    turns = []
    for number, message in enumerate(sample[field]):
        content = message.get("content", message.get("value"))
        if not isinstance(content, str):
            raise ValueError(f"{field}[{number}] has no text in content or value, only {', '.join(message)}")
        turns.append(f"{message.get('role', message.get('from', 'user'))}\n{content}\n")
    return {**sample, "text": "\n".join(turns)}
