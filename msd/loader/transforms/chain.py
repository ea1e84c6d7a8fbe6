"""The transforms of one source, one after another: rows in, samples or reasons out."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, get_args

from msd.core.sample import Outcome, RawSample, Sample
from msd.core.text import text_of
from msd.core.written import Written
from msd.errors import ConfigError, SourceError
from msd.loader.poison.slots import WHOLE
from msd.loader.transforms.base import At, Fields, Place, Step, reason_of
from msd.loader.transforms.chat import ChatStep
from msd.loader.transforms.config import (
    ChatConfig,
    ChunkConfig,
    FilterConfig,
    FunctionConfig,
    ImageConfig,
    SelectConfig,
    TokenizeConfig,
    TokensConfig,
    TransformConfig,
)
from msd.loader.transforms.finish import Finish, Finished, Overflow
from msd.loader.transforms.function import FunctionStep
from msd.loader.transforms.resolve import image_token_of, only_geometry, only_tokenizer, versions
from msd.loader.transforms.shape import ChunkStep, FilterStep, SelectStep
from msd.loader.transforms.text import TokenizeStep, TokensStep
from msd.loader.transforms.tokenizer import Tokenizer, load_tokenizer
from msd.loader.transforms.unpack import UnpackStep
from msd.sources.base import BadRow


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowResult:
    """What one row gave."""

    outcome: Outcome
    samples: tuple[Sample, ...] = ()
    reason: str = ""
    """Of a row that failed: one line, `TypeName: message (in transform N kind)`; of a user's function also its name,
    file and line."""
    num_empty: int = 0
    """Samples without a token, left out."""
    num_split: int = 0
    """Pieces beyond the first of samples that were longer than a sequence."""
    num_truncated_tokens: int = 0
    """Tokens cut off samples that were longer than a sequence."""
    num_dropped: int = 0
    """Samples left out because they were longer than a sequence."""
    num_unlabelled: int = 0
    """Pieces of conversations left out because nothing in them is learned."""
    lacked_memory: bool = False
    """It failed because there was no memory left, which may be no fault of its own."""


class AppliesTransforms(Protocol):
    """The transforms of one source, wherever they run."""

    def apply(self, rows: Sequence[tuple[int, RawSample | BadRow]]) -> list[RowResult]:
        """Return what each (ordinal, row) gives; no row depends on the others."""
        ...


class TransformChain:
    """The transforms of one source. Holds no state that changes: equal rows at equal ordinals give equal samples."""

    def __init__(
        self,
        source: str,
        steps: Sequence[Step],
        finish: Finish,
        *,
        tokenizer: Tokenizer | None = None,
        eos_id: int | None = None,
        tokenizers: tuple[str, ...] = (),
        patch: int | None = None,
        merge: int | None = None,
        is_packed: bool = False,
    ) -> None:
        """Compose a chain; `build_chain` makes one from a configuration."""
        self.source = source
        self.eos_id = eos_id
        """What ends a document, if the chain has a tokenizer that knows it."""
        self.image_token = finish.image_token
        """Id of an image placeholder, or None if the source has no images."""
        self.patch = patch
        """Pixels of a patch's side, or None if the source has no images."""
        self.merge = merge
        """One placeholder stands for merge * merge patches."""
        self.tokenizers = tokenizers if tokenizer is None else (tokenizer.digest,)
        """Digests of what makes its ids, or made them; none if they come with the rows."""
        self.is_packed = is_packed
        """Whether it takes rows apart that were packed before."""
        self._steps = tuple(steps)
        self._finish = finish
        self._tokenizer = tokenizer

    @property
    def vocab_size(self) -> int | None:
        """Every id that the chain gives is below it; None if tokens come from elsewhere than a tokenizer."""
        if self._tokenizer is None:
            return None
        return max(self._tokenizer.num_ids, 0 if self.image_token is None else self.image_token + 1)

    @property
    def identity(self) -> dict[str, Any]:
        """What the samples depend on besides the rows, JSON-able and free of paths: kept in the run's state."""
        return {
            "steps": [{"kind": step.kind, **step.identity()} for step in self._steps],
            "sequence_length": self._finish.sequence_length,
            "overflow": self._finish.overflow,
            "image_token": self.image_token,
            "versions": versions(self._steps, self._tokenizer),
        }

    def apply(self, rows: Sequence[tuple[int, RawSample | BadRow]], at: At = lambda ordinal: None) -> list[RowResult]:
        """Return what each (ordinal, row) gives; no row depends on the others.

        A row fails as a whole: if one of the samples it gave fails in a later transform, none is kept.

        Args:
            rows: (ordinal, row) each.
            at: Told what is done next; see `base.At`.

        Raises:
            SourceError: If what a transform reads besides the rows cannot be reached.
        """
        reasons: dict[int, str] = {}
        short: set[int] = set()
        live: list[tuple[int, Fields]] = []
        for index, (_, row) in enumerate(rows):
            if isinstance(row, BadRow):
                reasons[index] = f"BadRow: {row.reason}"
            else:
                live.append((index, dict(row)))
        for number, step in enumerate(self._steps):
            at(WHOLE)
            try:
                live = _advance(step, number, live, rows, reasons, short, at)
            except SourceError as error:
                where = f"sources.{self.source}.transforms[{number}] {step.kind}"
                raise SourceError(f"{where}: {text_of(error)}") from error.__cause__
        at(WHOLE)
        done: dict[int, Finished] = {}
        for index, fields in live:
            if index in reasons:
                continue
            try:
                self._finish.add(fields, rows[index][0], done.setdefault(index, Finished()))
            except Exception as error:
                reasons[index] = reason_of(error, "the finished sample")
                if isinstance(error, MemoryError):
                    short.add(index)
        return [_result(done.get(index), reasons.get(index), index in short) for index in range(len(rows))]


def build_chain(
    source: str,
    transforms: Sequence[TransformConfig],
    *,
    seed: int,
    sequence_length: int,
    overflow: Overflow,
    written: Written | None = None,
) -> TransformChain:
    """Return the chain of a source, with tokenizers loaded and functions found.

    Args:
        source: Name of the source.
        transforms: What is done to a row, in order.
        seed: Seed of the run, for transforms that draw.
        sequence_length: Tokens of a sequence: no sample is longer.
        overflow: What is done with one that would be: split, truncate or drop.
        written: What its rows were packed with, if they are whole sequences; they are taken apart then.

    Raises:
        ConfigError: If a transform cannot be used; names the source and the transform.
    """
    if overflow not in get_args(Overflow):
        raise ConfigError(f"sources.{source}.overflow must be split, truncate or drop, got {overflow!r}")
    if written is not None:
        return _unpacking(source, written, sequence_length)
    steps: list[Step] = []
    for number, config in enumerate(transforms):
        try:
            steps.append(_step(config, number, transforms[:number], source=source, seed=seed))
        except ConfigError as error:
            raise ConfigError(f"sources.{source}.transforms[{number}]: {error}") from None
    try:
        tokenizing = [step for step in steps if isinstance(step, TokenizeStep | ChatStep)]
        tokenizer = only_tokenizer(tokenizing)
        image = only_geometry([config for config in transforms if isinstance(config, ImageConfig)])
        image_token = None if image is None else image_token_of(image, tokenizer)
    except ConfigError as error:
        raise ConfigError(f"sources.{source}: {error}") from None
    finish = Finish(
        source=source,
        sequence_length=sequence_length,
        overflow=overflow,
        image_token=image_token,
        merge=1 if image is None else image.merge,
        needs_labels=any(isinstance(config, ChatConfig) for config in transforms),
    )
    return TransformChain(
        source,
        steps,
        finish,
        tokenizer=tokenizer,
        eos_id=next((step.eos_id for step in reversed(tokenizing) if step.eos_id is not None), None),
        patch=None if image is None else image.patch,
        merge=None if image is None else image.merge,
    )


def _unpacking(source: str, written: Written, sequence_length: int) -> TransformChain:
    """Return the chain of a source whose rows were packed before."""
    images = written.images
    finish = Finish(
        source=source,
        sequence_length=sequence_length,
        overflow="split",
        image_token=None if images is None else images.image_token,
        merge=1 if images is None else images.merge,
    )
    return TransformChain(
        source,
        [UnpackStep(written)],
        finish,
        tokenizers=written.tokenizers,
        patch=None if images is None else images.patch,
        merge=None if images is None else images.merge,
        is_packed=True,
    )


def _step(config: TransformConfig, number: int, earlier: Sequence[TransformConfig], *, source: str, seed: int) -> Step:
    makes_tokens = TokenizeConfig | ChatConfig | TokensConfig | FunctionConfig | SelectConfig
    after_tokens = any(isinstance(before, makes_tokens) for before in earlier)
    match config:
        case TokenizeConfig():
            return TokenizeStep(config, load_tokenizer(config.tokenizer), after=after_tokens)
        case ChatConfig():
            return ChatStep(config, load_tokenizer(config.tokenizer), after=after_tokens)
        case TokensConfig():
            return TokensStep(config, after=after_tokens)
        case ImageConfig():
            # Pillow is loaded by who needs it.
            from msd.loader.transforms.image import ImageStep

            return ImageStep(config, after=any(isinstance(before, ImageConfig) for before in earlier))
        case ChunkConfig():
            return ChunkStep(config)
        case FilterConfig():
            return FilterStep(config, source=source, seed=seed, number=number)
        case SelectConfig():
            return SelectStep(config)
        case FunctionConfig():
            return FunctionStep(config, source=source, seed=seed, number=number)


def _advance(
    step: Step,
    number: int,
    live: Sequence[tuple[int, Fields]],
    rows: Sequence[tuple[int, Any]],
    reasons: dict[int, str],
    short: set[int],
    at: At,
) -> list[tuple[int, Fields]]:
    """Return the samples after one step; adds to `reasons` the rows that failed in it, and to `short` for memory."""
    given = step.many([fields for _, fields in live], list(_places(live, rows)), at)
    following: list[tuple[int, Fields]] = []
    for (index, _), made in zip(live, given, strict=True):
        if isinstance(made, Exception):
            reasons.setdefault(index, reason_of(made, f"transform {number} {step.where(made)}"))
            if isinstance(made, MemoryError):
                short.add(index)
        else:
            following.extend((index, fields) for fields in made)
    return [(index, fields) for index, fields in following if index not in reasons] if reasons else following


def _places(live: Sequence[tuple[int, Fields]], rows: Sequence[tuple[int, Any]]) -> Iterable[Place]:
    previous, part = -1, 0
    for index, _ in live:
        part = part + 1 if index == previous else 0
        previous = index
        yield Place(rows[index][0], part)


def _result(done: Finished | None, reason: str | None, lacked_memory: bool) -> RowResult:
    if reason is not None:
        return RowResult(outcome=Outcome.FAILED, reason=reason, lacked_memory=lacked_memory)
    if done is None:
        return RowResult(outcome=Outcome.FILTERED)
    outcome = Outcome.OK if done.samples else Outcome.OVERFLOWED if done.num_dropped else Outcome.FILTERED
    return RowResult(
        outcome=outcome,
        samples=tuple(done.samples),
        num_empty=done.num_empty,
        num_split=done.num_split,
        num_truncated_tokens=done.num_truncated_tokens,
        num_dropped=done.num_dropped,
        num_unlabelled=done.num_unlabelled,
    )
