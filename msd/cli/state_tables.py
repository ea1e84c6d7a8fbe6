"""What `msd state` prints."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msd.cli import output

if TYPE_CHECKING:
    from msd.runtime.changes import Difference

_EDITS_SHOWN = 20
_OF_ALL = ("edit", "at_step", "when", "noted_at")
"""Fields of an edit that its words leave out."""


def told(difference: "Difference") -> dict[str, Any]:
    """Return a difference as JSON-able values."""
    from msd.runtime.changes import ABSENT

    values = {"state": difference.saved, "here": difference.here}
    return {
        "part": difference.part,
        **{where: value for where, value in values.items() if value is not ABSENT},
        "rule": difference.rule,
        "why": difference.why,
    }


def print_state(told: dict[str, Any]) -> None:
    """Print what `msd.runtime.statefile.described` tells, and where it lay."""
    sources = told["sources"]
    output.print_table(
        f"before step {told['step']:,}",
        ("source", "epoch", "row", "of", "samples", "tokens", "waiting", "is"),
        [
            (name, one["epoch"], *(output.short(one[key]) for key in ("row", "rows_per_epoch", "samples", "tokens")),
             one["waiting"], one["is"])
            for name, one in sources.items()
        ],
        caption="row: the next one of its epoch; waiting: samples drawn that go into a later step",
    )  # fmt: skip
    kinds = ("edits_in_force", "edits_pending", "edits_journalled_since")
    edits = [(kind.removeprefix("edits_").replace("_", " "), edit) for kind in kinds for edit in told[kind]]
    if edits:
        output.print_table(
            "edits",
            ("is", "what", "at step"),
            [(kind, _in_words(edit), edit["at_step"]) for kind, edit in edits[:_EDITS_SHOWN]],
            text_columns=2,
        )
    if len(edits) > _EDITS_SHOWN:
        output.note(f"and {len(edits) - _EDITS_SHOWN} more edits; --json tells all")
    saved = f"saved {told['saved']} by run {told['run']}, " if "saved" in told else ""
    output.note(f"{told['origin']}: {saved}{output.size(told['bytes'])}, {told['samples_waiting']} samples wait")


def _in_words(edit: dict[str, Any]) -> str:
    said = {
        key: value for key, value in edit.items() if key not in ("edit", "at_step", "when", "noted_at") and value != ""
    }
    return f"{edit['edit']}: {', '.join(f'{key} {value}' for key, value in said.items())}"


def print_differences(title: str, differences: "tuple[Difference, ...]", moved: list[dict[str, Any]]) -> None:
    """Print differences with their rules, where sources stand, and what follows."""
    if differences:
        output.print_table(
            title,
            ("what differs", "rule", "why"),
            [(str(difference), difference.rule, difference.why) for difference in differences],
            text_columns=3,
        )
    if moved:
        output.print_table(
            "positions",
            ("what", "in the first", "in the second"),
            [(one["what"], output.count(one["state"]), output.count(one["here"])) for one in moved],
        )
    rules = {difference.rule for difference in differences}
    if not differences:
        said = "nothing differs that the order depends on"
    elif "refused" in rules:
        said = "a run cannot go on over that"
    elif "forced" in rules:
        said = "a run goes on over that only with force"
    else:
        said = "a run goes on over that"
    output.note(said)


def print_files(title: str, files: Sequence[dict[str, Any]]) -> None:
    """Print the files of a checkpoint, and whether each is whole."""
    output.print_table(
        title,
        ("file", "is", "step", "size"),
        [(f["name"], f["problem"] or "whole", output.count(f["step"]), output.size(f["bytes"])) for f in files],
        text_columns=2,
    )
