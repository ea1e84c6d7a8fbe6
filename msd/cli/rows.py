"""One row on a terminal: a bar of its documents, then each document in its own colour."""

# T = tokens of the row. N = documents.

from typing import TYPE_CHECKING, Any

from msd.cli.pictures import half_blocks, pictures

if TYPE_CHECKING:
    from rich.console import Console

    from msd.cli.preview import Decode
    from msd.core.batch import Microbatch
    from msd.core.sample import SampleId

_COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "red", "bright_cyan", "bright_green", "bright_magenta")
_BAR_COLUMNS = 96
"""At most; a narrow terminal has less."""


def described(row: "Microbatch", ids: "list[SampleId]", decode: "Decode") -> list[dict[str, Any]]:
    """Return every document of a row: whose it is, where it lies, what it says.

    Args:
        row: A microbatch with all its fields.
        ids: (source, ordinal, part) of its documents.
        decode: Source and token ids to text.
    """
    input_ids, segment_ids, loss_mask = row.input_ids, row.segment_ids, row.loss_mask
    assert input_ids is not None
    assert segment_ids is not None
    assert loss_mask is not None
    documents = []
    starts, lengths = row.cu_seqlens_padded.tolist(), (row.cu_seqlens[1:] - row.cu_seqlens[:-1]).tolist()
    for number, ((source, ordinal, part), length) in enumerate(zip(ids, lengths, strict=False)):
        held = segment_ids == number + 1
        tokens = input_ids[held]
        placeholders = _num_placeholders(row, number, tokens)
        documents.append(
            {
                "id": [source, ordinal, part],
                "start": starts[number],
                "tokens": length,
                "padding": starts[number + 1] - starts[number] - length,
                "trained": int(loss_mask[held].sum()),
                "image_tokens": placeholders,
                "text": decode(source, tokens[placeholders:].tolist()),
            }
        )
    return documents


def print_row(
    console: "Console",
    title: str,
    row: "Microbatch",
    documents: list[dict[str, Any]],
    sequence_length: int,
    *,
    characters: int,
    merge: int,
    max_documents: int | None = None,
) -> None:
    """Print one row: a bar over all of it, then a document at a time with its images."""
    from rich.text import Text

    length = int(row.cu_seqlens_padded[-1])
    real = sum(document["tokens"] for document in documents)
    console.rule(f"{title} · {len(documents)} documents, {real:,} of {length:,} tokens")
    console.print(_bar(documents, length, min(_BAR_COLUMNS, console.width)))
    console.print(Text("each document: source ordinal.part, its tokens, where it starts in the row", style="dim"))
    images = {} if row.images is None else _by_document(row, merge)
    sequence = -1
    for number, document in enumerate(documents[:max_documents]):
        if document["start"] // sequence_length != sequence:
            sequence = document["start"] // sequence_length
            console.print(Text(f"┄┄ sequence {sequence} ┄┄", style="dim"))
        source, ordinal, part = document["id"]
        heading = f"▌{source} {ordinal}.{part}  {document['tokens']} tokens from {document['start']}"
        if document["trained"] != document["tokens"] - 1:
            heading += f", {document['trained']} trained"
        if document["image_tokens"]:
            heading += f", of them {document['image_tokens']} image placeholders"
        console.print(Text(heading, style=f"bold {_colour(number)}"))
        for pixels in images.get(number, []):
            if console.color_system is not None:
                console.print(half_blocks(pixels))
            console.print(Text(f"[image of {pixels.shape[1]} x {pixels.shape[0]} pixels]", style=_colour(number)))
        console.print(Text(_cut(document["text"], characters), style=_colour(number)))
        if document["padding"]:
            console.print(Text(f"░ {document['padding']} padding", style="dim"))
    if max_documents is not None and len(documents) > max_documents:
        console.print(Text(f"and {len(documents) - max_documents} documents more", style="dim"))


def _bar(documents: list[dict[str, Any]], length: int, num_columns: int) -> Any:
    """Return a line on which each document takes its share of the row; padding is dim."""
    from rich.text import Text

    bar = Text()
    for column in range(num_columns):
        position = (column + 0.5) * length / num_columns
        inside = next(
            (n for n, d in enumerate(documents) if d["start"] <= position < d["start"] + d["tokens"]),
            None,
        )
        bar.append("░" if inside is None else "█", "dim" if inside is None else _colour(inside))
    return bar


def _by_document(row: "Microbatch", merge: int) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = {}
    assert row.images is not None
    for document, pixels in pictures(row.images, merge):
        found.setdefault(document, []).append(pixels)
    return found


def _num_placeholders(row: "Microbatch", document: int, tokens: Any) -> int:
    """Return how many tokens stand before the first that may be learned in a document that owns images."""
    if row.images is None or document not in row.images.owner:
        return 0
    run = (tokens != tokens[0]).argmax()
    return int(run)


def _colour(document: int) -> str:
    return _COLOURS[document % len(_COLOURS)]


def _cut(text: str, characters: int) -> str:
    if not characters or len(text) <= characters:
        return text
    half = characters // 2
    return f"{text[:half]} … {text[-half:]}"
