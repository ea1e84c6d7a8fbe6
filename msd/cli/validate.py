"""`msd validate CONFIG`: would this run? Reads the first rows of every source through its transforms."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from msd.cli import output
from msd.cli.options import ConfigPath, Json, Overrides, Sets, read_config
from msd.core.sample import Failure, MetaTable, Outcome, SampleId
from msd.errors import SourceError

if TYPE_CHECKING:
    from msd.config import Config
    from msd.loader.loader import SourceLoader

_MIN_ROWS = 100
"""The rate of failures is taken over at least this many rows, as in a run."""


@dataclass(slots=True)
class SourceCheck:
    """What the first rows of one source gave."""

    name: str
    rows_per_epoch: int
    weight: float
    rows: int = 0
    outcomes: dict[str, int] = field(default_factory=lambda: {outcome.name.lower(): 0 for outcome in Outcome})
    samples: int = 0
    tokens: int = 0
    largest_id: int = -1
    failures: list[Failure] = field(default_factory=list)
    vocabulary: int | None = None
    """Ids that the tokenizer gives lie below it; None without a tokenizer."""
    image_token: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return JSON-able values."""
        return asdict(self)


def validate(
    config_path: ConfigPath,
    overrides: Overrides = None,
    rows: Annotated[int, typer.Option(min=1, help="Rows of each source to read.")] = 64,
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """Check settings, files, tokenizers and functions, then read the first rows of each source."""
    from msd.build import build_chains, build_loaders, build_orders, build_planner
    from msd.cli.indexing import indexed
    from msd.loader.transforms.tokenizer import load_tokenizer
    from msd.runtime.base import check_supported

    config = read_config(config_path, overrides, sets)
    check_supported(config)
    chains = build_chains(config)
    orders = build_orders(config, indexed(config))
    build_planner(config, orders)
    loaders = build_loaders(config, orders, chains)
    checks, tokenizers = [], _tokenizers(config)
    try:
        with output.progress_bar() as progress:
            for name in progress.track(config.sources, description="reading first rows"):
                check = SourceCheck(name, orders[name].rows_per_epoch, config.weights[name])
                check.image_token = chains[name].image_token
                check.vocabulary = load_tokenizer(tokenizers[name]).num_ids if name in tokenizers else None
                checks.append(_read(check, loaders[name], rows))
    finally:
        for loader in loaders.values():
            loader.close()
    for check in checks:
        _refuse_unusable(check, config)
    remarks = list(_remarks(checks, config))
    if as_json:
        output.print_json({"sources": [check.as_dict() for check in checks], "remarks": remarks})
        return
    _print(checks)
    for remark in remarks:
        output.note(remark)
    output.stdout().print(f"{config_path} is fine", markup=False, soft_wrap=True)


def _read(check: SourceCheck, loader: "SourceLoader", num_rows: int) -> SourceCheck:
    """Fill in `check` from the first rows of a source, in the order in which a run meets them."""
    limit = min(num_rows, check.rows_per_epoch)
    while check.rows < limit:
        table = loader.examine(check.rows, limit - check.rows)
        if not table.num_rows:
            break
        check.rows += table.num_rows
        for outcome in Outcome:
            check.outcomes[outcome.name.lower()] += int(np.count_nonzero(table.outcome_R == outcome))
        check.samples += len(table.num_tokens_S)
        check.tokens += int(table.num_tokens_S.sum())
        check.failures += table.failures
        tokens = loader.fetch(list(_ids(table))).tokens
        check.largest_id = max(check.largest_id, int(tokens.max(initial=-1)))
    return check


def _ids(table: MetaTable) -> Iterator[SampleId]:
    for row, num_parts in enumerate(table.num_parts_R.tolist()):
        for part in range(num_parts):
            yield SampleId(table.source, table.start + row, part)


def _refuse_unusable(check: SourceCheck, config: "Config") -> None:
    """Raise for what would stop a run: no sample survives, or too many rows fail."""
    failed = check.outcomes["failed"]
    on_error = config.sources[check.name].on_error
    if check.weight and check.rows and not check.samples:
        counted = ", ".join(f"{number} {outcome}" for outcome, number in check.outcomes.items() if number)
        raise SourceError(
            f"sources.{check.name}: none of the first {check.rows} rows gave a sample ({counted}){_first(check)}; "
            "change its transforms, or set its weight to 0"
        )
    allowed = 0.0 if on_error.policy == "raise" else on_error.max_rate
    if failed / max(_MIN_ROWS, check.rows) > allowed:
        raise SourceError(
            f"sources.{check.name}: {failed} of the first {check.rows} rows failed{_first(check)}; repair the data or "
            f"the transforms, or allow more with on_error.max_rate above {failed / max(_MIN_ROWS, check.rows):.2g}"
        )


def _first(check: SourceCheck) -> str:
    if not check.failures:
        return ""
    failure = check.failures[0]
    return f"; the first, {failure.shard} row {failure.row}: {failure.reason}"


def _remarks(checks: list[SourceCheck], config: "Config") -> Iterator[str]:
    """Yield what would run but is probably not meant."""
    tokenizers = _tokenizers(config)
    if len(set(tokenizers.values())) > 1:
        named = ", ".join(f"{name}: {path}" for name, path in tokenizers.items())
        yield f"warning: sources use different tokenizers, so one id means different things ({named})"
    vocabulary = max((check.vocabulary or 0 for check in checks), default=0)
    for check in checks:
        if not check.rows_per_epoch:
            yield f"warning: {check.name} has no rows; nothing will be drawn from it"
        elif not check.weight:
            yield f"{check.name} has weight 0: it is indexed but never drawn"
        if vocabulary and check.largest_id >= vocabulary:
            why = " (the image placeholder)" if check.largest_id == check.image_token else ""
            yield (
                f"warning: {check.name} has token id {check.largest_id}{why}, but the vocabulary ends at "
                f"{vocabulary - 1}; the model's embedding needs at least {check.largest_id + 1} rows"
            )
        if check.failures:
            yield f"{check.name}: {len(check.failures)} rows failed and would be skipped{_first(check)}"
    images = {check.image_token for check in checks if check.image_token is not None}
    if len(images) > 1:
        yield f"warning: sources use different image placeholders: {', '.join(map(str, sorted(images)))}"


def _tokenizers(config: "Config") -> Mapping[str, str]:
    from msd.loader.transforms.config import TokenizeConfig

    return {
        name: transform.tokenizer
        for name, source in config.sources.items()
        for transform in source.transforms
        if isinstance(transform, TokenizeConfig)
    }


def _print(checks: list[SourceCheck]) -> None:
    rows = [
        (
            check.name,
            output.count(check.rows_per_epoch),
            check.rows,
            *(check.outcomes[outcome.name.lower()] for outcome in Outcome),
            check.samples,
            output.count(check.tokens / check.samples if check.samples else None),
            "-" if check.vocabulary is None else check.vocabulary,
            "-" if check.image_token is None else check.image_token,
        )
        for check in checks
    ]
    columns = ("source", "rows/epoch", "read", "ok", "filtered", "failed", "overflowed", "samples", "mean tokens")
    output.print_table("first rows of each source", (*columns, "vocabulary", "image id"), rows)
