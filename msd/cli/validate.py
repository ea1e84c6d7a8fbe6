"""`msd validate CONFIG`: would this run? Reads the first rows of every source through its transforms."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np
import typer

from msd.cli import output
from msd.cli.options import ConfigPath, Json, Overrides, Sets, read_config
from msd.cli.remarks import is_drawn, mixed_tokenizers, tokenizers_of
from msd.core.sample import Failure, MetaTable, Outcome, SampleId
from msd.errors import ConfigError, InputError, SourceError

if TYPE_CHECKING:
    from msd.config import Config
    from msd.core.index import BlockTable
    from msd.loader.config import OnErrorConfig
    from msd.loader.loader import SourceLoader
    from msd.loader.transforms.chain import TransformChain

_MIN_ROWS = 100
"""The rate of failures is taken over at least this many rows, as in a run."""


@dataclass(slots=True)
class SourceCheck:
    """What the first rows of one source gave."""

    name: str
    weight: float
    rows_per_epoch: int | None = None
    """None if the source could not be indexed, or has no end."""
    lack: str | None = None
    """Of a source without an end: why fewer rows were read than were to be."""
    rows: int = 0
    outcomes: dict[str, int] = field(default_factory=lambda: {outcome.name.lower(): 0 for outcome in Outcome})
    samples: int = 0
    tokens: int = 0
    largest_id: int = -1
    failures: list[Failure] = field(default_factory=list)
    vocabulary: int | None = None
    """Ids that the tokenizer gives lie below it; None without a tokenizer."""
    image_token: int | None = None
    oversized: int = 0
    """Samples that are over a limit of the sequences of the first step."""
    excess: str = ""
    """Of the first of them, in words."""
    problem: str | None = None
    """What would stop a run, in one line."""

    def blame(self, problem: str) -> None:
        """Add what would stop a run."""
        self.problem = problem if self.problem is None else f"{self.problem} | {problem}"

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
    """Check settings, files, tokenizers and functions, then read the first rows of each source; every fault is told."""
    from msd.runtime.base import check_supported

    config = read_config(config_path, overrides, sets)
    check_supported(config)
    checks, general = _checked(config, rows)
    remarks = list(_remarks(checks, config))
    problems = [check.problem for check in checks if check.problem is not None] + general
    if as_json:
        told = [check.as_dict() for check in checks]
        output.print_json({"sources": told, "remarks": remarks, "problems": problems})
    else:
        _print(checks)
        for remark in remarks if not problems else []:
            output.note(remark)
    _refuse(checks, general, is_told=as_json)
    if not as_json:
        output.stdout().print(f"{config_path} is fine", markup=False, soft_wrap=True)


def _refuse(checks: list[SourceCheck], general: list[str], *, is_told: bool) -> None:
    """Raise the first fault and count the others; the others are notes of their own unless they are told already."""
    problems = [check.problem for check in checks if check.problem is not None] + general
    if not problems:
        return
    for problem in problems[1:] if not is_told else []:
        output.note(problem)
    others = [check.name for check in checks if check.problem is not None][1:]
    named = f"; also at fault: {', '.join(others[:5])}" if others else ""
    more = f" and {len(others) - 5} more" if len(others) > 5 else ""
    raise InputError(f"{problems[0]}{named}{more}")


def _checked(config: "Config", num_rows: int) -> tuple[list[SourceCheck], list[str]]:
    """Return what is found of every source, and faults that belong to none of them."""
    from msd.build import build_loaders, build_orders, build_planner, check_alike
    from msd.loader.transforms.tokenizer import load_tokenizer

    checks = {name: SourceCheck(name, config.weights[name]) for name in config.sources}
    chains = _chains(config, checks)
    tables = _tables(config, checks)
    general: list[str] = []
    try:
        check_alike(chains)
        if len(tables) == len(checks) == len(chains):
            build_planner(config, build_orders(config, tables))
    except InputError as error:
        general.append(str(error))
    usable = [name for name in config.sources if name in chains and name in tables]
    if not usable:
        return list(checks.values()), general
    some = config if len(usable) == len(checks) else _only(config, usable)
    loaders = build_loaders(some, build_orders(some, tables), {name: chains[name] for name in usable})
    tokenizers = tokenizers_of(config)
    try:
        with output.progress_bar() as progress:
            for name in progress.track(usable, description="reading first rows"):
                check = checks[name]
                check.image_token = chains[name].image_token
                check.vocabulary = load_tokenizer(tokenizers[name]).num_ids if name in tokenizers else None
                try:
                    _read(check, loaders[name], num_rows, config)
                    check.problem = _fault(check, config)
                except InputError as error:
                    check.problem = str(error)
    finally:
        for loader in loaders.values():
            loader.close()
    return list(checks.values()), general


def _only(config: "Config", names: list[str]) -> "Config":
    """Return the configuration with some of its sources."""
    gone = {name: None for name in config.sources if name not in names}
    nothing: dict[str, Any] = {"weights": None, "schedule": [], "repetitions": None, "on_exhausted": None}
    return config.replace(sources=gone, mixture=nothing, loaders="auto")


def _chains(config: "Config", checks: dict[str, SourceCheck]) -> "dict[str, TransformChain]":
    from msd.build import build_chain_of

    chains = {}
    for name in config.sources:
        try:
            chains[name] = build_chain_of(config, name)
        except ConfigError as error:
            checks[name].blame(str(error))
        except SourceError:
            # What lies in a folder is told by whoever lists its files, too.
            continue
    return chains


def _tables(config: "Config", checks: dict[str, SourceCheck]) -> "dict[str, BlockTable]":
    """Return the index of every source that has one: of all at once, and one by one if that fails."""
    from msd.cli.indexing import indexed
    from msd.sources.index import index_sources

    try:
        tables = indexed(config)
    except InputError:
        tables = {}
        for name, source in config.sources.items():
            try:
                tables |= index_sources({name: source})
            except InputError as error:
                checks[name].blame(str(error))
    for name, table in tables.items():
        if not config.sources[name].is_unbounded:
            checks[name].rows_per_epoch = table.num_rows
    return tables


def _read(check: SourceCheck, loader: "SourceLoader", num_rows: int, config: "Config") -> None:
    """Fill in `check` from the first rows of a source, in the order in which a run meets them."""
    from msd.loader.admitted import RowsNotHere

    is_unbounded = config.sources[check.name].is_unbounded
    limit = num_rows if is_unbounded else min(num_rows, check.rows_per_epoch or 0)
    while check.rows < limit:
        try:
            table = loader.examine(check.rows, limit - check.rows)
        except RowsNotHere as lack:
            check.lack = str(lack)
            break
        if not table.num_rows:
            break
        check.rows += table.num_rows
        for outcome in Outcome:
            check.outcomes[outcome.name.lower()] += int(np.count_nonzero(table.outcome_R == outcome))
        check.samples += len(table.num_tokens_S)
        check.tokens += int(table.num_tokens_S.sum())
        check.failures += table.failures
        _weigh(check, table, config)
        tokens = loader.fetch(list(_ids(table))).tokens
        check.largest_id = max(check.largest_id, int(tokens.max(initial=-1)))


def _weigh(check: SourceCheck, table: MetaTable, config: "Config") -> None:
    """Count the samples that no sequence of the first step can hold for its limits."""
    from msd.planner.batch_schedule import BatchSchedule
    from msd.planner.primitives.pack import Limits

    limits = Limits(**msgspec.structs.asdict(config.batch.limits))
    length = BatchSchedule(config.batch, config.multiple_of).at(0).sequence_length
    loads = limits.loads_D(
        length_D=np.minimum(table.num_tokens_S, length),
        num_image_tokens_D=table.num_image_tokens_S,
        num_images_D=table.num_images_S,
        num_patches_D=table.num_patches_S,
    )
    is_over_S = np.zeros(len(table.num_tokens_S), dtype=np.bool_)
    for name, cap, load_S in zip(limits.names, limits.caps, loads, strict=True):
        over = np.flatnonzero(load_S > cap)
        if len(over) and not check.excess:
            check.excess = f"{load_S[over[0]]} {name} > batch.limits.{name} {cap}"
        is_over_S[over] = True
    check.oversized += int(is_over_S.sum())


def _ids(table: MetaTable) -> Iterator[SampleId]:
    for row, num_parts in enumerate(table.num_parts_R.tolist()):
        for part in range(num_parts):
            yield SampleId(table.source, table.start + row, part)


def _fault(check: SourceCheck, config: "Config") -> str | None:
    """Return what would stop a run: no sample survives, or too many rows fail."""
    if not is_drawn(config, check.name) or not check.rows:
        return None
    if not check.samples:
        counted = ", ".join(f"{number} {outcome}" for outcome, number in check.outcomes.items() if number)
        return (
            f"sources.{check.name}: none of {_span(check)} gave a sample ({counted}){_first(check)}; "
            "change its transforms, or set its weight to 0"
        )
    if check.oversized and (config.batch.oversize == "error" or check.oversized == check.samples):
        return (
            f"sources.{check.name}: {check.oversized} of the {check.samples} samples of {_span(check)} fit no sequence "
            f"({check.excess}); raise the limit, make samples smaller (max_pixels, chunk, filter)"
            f"{', or set batch.oversize: drop' if check.oversized < check.samples else ''}"
        )
    return _too_many(check, config.sources[check.name].on_error)


def _too_many(check: SourceCheck, on_error: "OnErrorConfig") -> str | None:
    """Return that more rows failed than are allowed, by the rate that a run takes."""
    failed = check.outcomes["failed"]
    if failed and on_error.policy == "raise":
        return (
            f"sources.{check.name}: {failed} of {_span(check)} failed, and on_error.policy is raise{_first(check)}; "
            "repair the data or the transforms, or set policy: skip"
        )
    # A source that was read to its end shows the rate that it will have; a run never judges one over fewer than 100.
    over = check.rows if _is_whole(check) else max(_MIN_ROWS, check.rows)
    if failed <= on_error.max_rate * over:
        return None
    rate, allowed = _percents(failed / over, on_error.max_rate)
    of = "" if over == check.rows else f" of the {over} that a rate is taken over"
    return (
        f"sources.{check.name}: {failed} of {_span(check)} failed ({rate}{of}), max_rate allows {allowed}"
        f"{_first(check)}; repair the data or the transforms, or raise on_error.max_rate"
    )


def _is_whole(check: SourceCheck) -> bool:
    return check.rows == check.rows_per_epoch


def _span(check: SourceCheck) -> str:
    return f"{check.rows} rows" if _is_whole(check) else f"the first {check.rows} rows"


def _percents(rate: float, allowed: float) -> tuple[str, str]:
    """Return two unlike shares as unlike texts."""
    texts = [[f"{100 * share:.{digits}f}" for share in (rate, allowed)] for digits in range(1, 7)]
    chosen = next((pair for pair in texts if pair[0] != pair[1]), texts[-1])
    first, second = (f"{text.rstrip('0').rstrip('.')} %" for text in chosen)
    return first, second


def _first(check: SourceCheck) -> str:
    if not check.failures:
        return ""
    failure = check.failures[0]
    return f"; the first, {failure.shard} row {failure.row}: {failure.reason}"


def _remarks(checks: list[SourceCheck], config: "Config") -> Iterator[str]:
    """Yield what would run but is probably not meant."""
    yield from mixed_tokenizers(config)
    vocabulary = max((check.vocabulary or 0 for check in checks), default=0)
    for check in checks:
        if check.lack is not None:
            yield check.lack
        if check.rows_per_epoch == 0:
            yield f"warning: {check.name} has no rows; nothing will be drawn from it"
        elif not is_drawn(config, check.name):
            yield f"{check.name} has weight 0: it is indexed but never drawn"
        if vocabulary and check.largest_id >= vocabulary:
            why = " (the image placeholder)" if check.largest_id == check.image_token else ""
            yield (
                f"warning: {check.name} has token id {check.largest_id}{why}, but the vocabulary ends at "
                f"{vocabulary - 1}; the model's embedding needs at least {check.largest_id + 1} rows"
            )
        if check.oversized and check.problem is None and is_drawn(config, check.name):
            yield f"{check.name}: {check.oversized} of {check.samples} samples would be left out ({check.excess})"
        if check.failures and check.problem is None:
            yield f"{check.name}: {len(check.failures)} rows failed and would be skipped{_first(check)}"
    images = {check.image_token for check in checks if check.image_token is not None}
    if len(images) > 1:
        yield f"warning: sources use different image placeholders: {', '.join(map(str, sorted(images)))}"


def _print(checks: list[SourceCheck]) -> None:
    shown = [name for name in ("filtered", "failed", "overflowed") if any(check.outcomes[name] for check in checks)]
    output.print_table(
        "first rows of each source",
        ("source", "rows/epoch", "read", *(_WORDS[name] for name in shown), "samples", "mean tokens", ""),
        [
            (
                check.name,
                output.short(check.rows_per_epoch),
                output.short(check.rows),
                *(output.short(check.outcomes[name]) for name in shown),
                output.short(check.samples),
                output.short(check.tokens / check.samples if check.samples else None),
                "fine" if check.problem is None else "at fault",
            )
            for check in checks
        ],
        caption="filtered, failed, too long: rows that gave no sample" if shown else "",
    )
    output.print_table(
        "token ids",
        ("source", "vocabulary", "largest id", "image placeholder"),
        [(check.name, *map(_id, (check.vocabulary, check.largest_id, check.image_token))) for check in checks],
    )


_WORDS = {"filtered": "filtered", "failed": "failed", "overflowed": "too long"}


def _id(number: int | None) -> str:
    return "-" if number is None or number < 0 else str(number)
