from collections.abc import Callable
from typing import Any

import pytest

from msd.core.order import SourceOrder
from msd.loader.loader import SourceLoader
from msd.loader.transforms.chain import RowResult, TransformChain, build_chain
from msd.testing.fakes import ListReader, list_source

WORDS = ["the", "cat", "sat", "on", "a", "mat", "[UNK]", "[PAD]", "<s>", "</s>", "<|image|>"]


@pytest.fixture
def make_chain() -> Callable[..., TransformChain]:
    def make(*transforms: Any, length: int = 64, overflow: Any = "split", seed: int = 5) -> TransformChain:
        return build_chain("web", list(transforms), seed=seed, sequence_length=length, overflow=overflow)

    return make


@pytest.fixture
def apply_to(make_chain: Callable[..., TransformChain]) -> Callable[..., RowResult]:
    """Return what a chain of transforms makes of one row at ordinal 3."""

    def apply(row: Any, *transforms: Any, **options: Any) -> RowResult:
        return make_chain(*transforms, **options).apply([(3, row)])[0]

    return apply


@pytest.fixture
def make_loader(make_chain: Callable[..., TransformChain]) -> Callable[..., tuple[SourceLoader, ListReader]]:
    def make(
        rows: Any,
        *transforms: Any,
        rows_per_block: int = 8,
        block_bytes: int = 1 << 10,
        window_blocks: int = 4,
        epochs: float | None = 1,
        buffer_bytes: int = 1 << 20,
        shuffle: bool = True,
        **options: Any,
    ) -> tuple[SourceLoader, ListReader]:
        table, reader = list_source(rows, rows_per_block=rows_per_block, block_bytes=block_bytes)
        order = SourceOrder(seed=5, source="web", blocks=table, shuffle=shuffle, window_blocks=window_blocks)
        loader = SourceLoader(
            order=order,
            reader=reader,
            chain=make_chain(*transforms, **options),
            total_ordinals=order.total_ordinals(epochs),
            buffer_bytes=buffer_bytes,
        )
        return loader, reader

    return make


@pytest.fixture(scope="session")
def word_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the path of a word-level tokenizer that asks for truncation, padding and a template."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["[PAD]", "<s>", "</s>", "<|image|>"])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 8)])
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=16, pad_id=7, pad_token="[PAD]")
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(path))
    return str(path)
