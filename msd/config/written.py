"""Sources that are packed sequences: what their folders say, and whether a run can read them back."""

from msd.config.pipeline import PipelineConfig
from msd.core.written import Written
from msd.errors import ConfigError
from msd.loader.transforms.config import ImageConfig
from msd.loader.transforms.tokenizer import load_tokenizer
from msd.planner.batch_schedule import BatchSchedule
from msd.sources.config import PACKED
from msd.sources.packed import read_written


def written_of(config: PipelineConfig, name: str) -> Written | None:
    """Return what the folder of a source says of itself, None for a source that is no folder of packed sequences.

    Raises:
        ConfigError: If the run has sequences of another length, or documents on another multiple.
        SourceError: If the folder is not finished, or cannot be read.
    """
    source = config.sources[name]
    if source.format != PACKED:
        return None
    written = read_written(name, source)
    again = "or write the folder again with `msd run`"
    for length in BatchSchedule(config.batch, config.multiple_of).lengths:
        if length != written.sequence_length:
            raise ConfigError(
                f"sources.{name}: {source.path} holds sequences of {written.sequence_length} tokens, and this run has "
                f"{length}; set batch.sequence_length: {written.sequence_length}, {again}"
            )
    if config.document_multiple != written.document_multiple:
        raise ConfigError(
            f"sources.{name}: the documents of {source.path} lie on multiples of {written.document_multiple}, and this "
            f"run puts them on multiples of {config.document_multiple}; set batch.document_multiple: "
            f"{written.document_multiple}, {again}"
        )
    tokenizer = source.packed_tokenizer
    if tokenizer is not None and written.tokenizers and load_tokenizer(tokenizer).digest not in written.tokenizers:
        raise ConfigError(
            f"sources.{name}: the tokens of {source.path} are of another tokenizer than {tokenizer}; name the one that "
            f"it was written with in options.tokenizer, {again}"
        )
    if source.is_shuffled or tuple(source.split) != (0.0, 1.0):
        return written.without_steps
    return written


def image_cut(config: PipelineConfig) -> tuple[int, int] | None:
    """Return (patch, merge) of the images of a run, which all its sources share; None if none has images.

    Raises:
        SourceError: If the folder of a packed source, which alone says it, cannot be read.
    """
    for source in config.sources.values():
        for transform in source.transforms:
            if isinstance(transform, ImageConfig):
                return transform.patch, transform.merge
    for name, source in config.sources.items():
        images = read_written(name, source).images if source.format == PACKED else None
        if images is not None:
            return images.patch, images.merge
    return None
