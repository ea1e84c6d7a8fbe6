import math

import pytest

from msd.core.sample import Outcome
from msd.errors import ConfigError
from msd.loader.transforms.config import (
    ChunkConfig,
    FilterConfig,
    FunctionConfig,
    SelectConfig,
    TokenizeConfig,
    TokensConfig,
)

TEXT = TokenizeConfig(tokenizer="bytes")


def kept(result):
    assert result.outcome in (Outcome.OK, Outcome.FILTERED), result.reason
    return result.outcome is Outcome.OK


def ids(result):
    return [sample.tokens_T.tolist() for sample in result.samples]


@pytest.mark.parametrize(
    ("length", "size", "overlap", "starts"),
    [
        (10, 4, 0, [0, 4, 8]),
        (8, 4, 0, [0, 4]),
        (10, 4, 2, [0, 2, 4, 6]),
        (11, 4, 2, [0, 2, 4, 6, 8]),
        (3, 4, 2, [0]),
        (5, 4, 3, [0, 1]),
    ],
)
def test_chunks_overlap_and_none_lies_within_its_predecessor(apply_to, length, size, overlap, starts):
    tokens = list(range(length))
    result = apply_to({"ids": tokens}, TokensConfig(), ChunkConfig(size=size, overlap=overlap))
    assert ids(result) == [tokens[start : start + size] for start in starts]
    assert [sample.id.part for sample in result.samples] == list(range(len(starts)))


def test_a_chunk_takes_its_piece_of_the_mask(apply_to):
    row = {"ids": [1, 2, 3, 4], "m": [0, 1, 1, 1]}
    first, second = apply_to(row, TokensConfig(mask="m"), ChunkConfig(size=2)).samples
    assert first.trained_T.tolist() == [0, 1]
    assert second.trained_T is None


def test_characters_are_cut_before_they_become_tokens(apply_to):
    step = ChunkConfig(size=3, overlap=1, unit="characters")
    assert ids(apply_to({"text": "abcde"}, step, TEXT)) == [[97, 98, 99], [99, 100, 101]]


def test_chunk_without_tokens_says_where_it_belongs(apply_to):
    assert "put chunk after tokenize" in apply_to({"text": "a"}, ChunkConfig(size=2), TEXT).reason


@pytest.mark.parametrize(
    ("condition", "row", "expected"),
    [
        ({"min_length": 3}, {"text": "ab"}, False),
        ({"min_length": 2, "max_length": 2}, {"text": "ab"}, True),
        ({"max_length": 1}, {"text": "ab"}, False),
        ({"field": "lang", "equals": "en"}, {"lang": "en", "text": "a"}, True),
        ({"field": "lang", "equals": "en"}, {"lang": "de", "text": "a"}, False),
        ({"field": "lang", "one_of": ["en", "fr"]}, {"lang": "fr", "text": "a"}, True),
        ({"matches": r"\d"}, {"text": "a1"}, True),
        ({"matches": r"^\d"}, {"text": "a1"}, False),
        ({"field": "score", "at_least": 0.5}, {"score": 0.5, "text": "a"}, True),
        ({"field": "score", "at_least": 0.5}, {"score": "0.4", "text": "a"}, False),
        ({"field": "score", "at_most": 0.5}, {"score": 0.6, "text": "a"}, False),
        ({"field": "score", "at_least": 0.5}, {"score": math.nan, "text": "a"}, False),
    ],
)
def test_a_filter_keeps_what_meets_every_condition(apply_to, condition, row, expected):
    assert kept(apply_to(row, FilterConfig(**condition), TEXT)) is expected


def test_a_filter_may_be_a_function_of_the_sample(apply_to):
    short = FilterConfig(function=lambda sample: len(sample["text"]) < 3)
    assert kept(apply_to({"text": "ab"}, short, TEXT))
    assert not kept(apply_to({"text": "abc"}, short, TEXT))


@pytest.mark.parametrize(
    ("condition", "row", "reason"),
    [
        ({"min_length": 3}, {"body": "a"}, "MissingField: no field 'text'"),
        ({"min_length": 3}, {"text": 7}, "WrongType: field 'text' has no length"),
        ({"matches": "a"}, {"text": 7}, "must be text to be matched, got int"),
        ({"at_least": 1}, {"text": "many"}, "must be a number to be compared, got 'many'"),
    ],
)
def test_a_field_that_cannot_be_compared_fails_and_is_not_filtered(apply_to, condition, row, reason):
    result = apply_to(row, FilterConfig(**condition), TEXT)
    assert result.outcome is Outcome.FAILED
    assert reason in result.reason


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (FilterConfig(), "a filter needs a condition"),
        (FilterConfig(matches="("), "no regular expression"),
        (SelectConfig(fields=[]), "at least one field"),
    ],
)
def test_a_transform_that_cannot_mean_anything_is_refused(make_chain, config, message):
    with pytest.raises(ConfigError, match=message) as refused:
        make_chain(config, TEXT)
    assert str(refused.value).startswith("sources.web.transforms[0]: ")


def test_select_keeps_only_what_it_names_and_renames(apply_to):
    seen = []
    look = FunctionConfig(function=lambda sample: seen.append(dict(sample)) or sample)
    row = {"body": "a", "id": 4, "junk": 0}
    assert ids(apply_to(row, SelectConfig(fields={"text": "body", "key": "id"}), look, TEXT)) == [[97]]
    apply_to({"text": "a", "junk": 0}, SelectConfig(fields=["text"]), look, TEXT)
    assert seen == [{"text": "a", "key": 4}, {"text": "a"}]


def test_selecting_a_field_that_is_not_there_fails_the_row(apply_to):
    assert "no field 'id' to select; this row has 'text'" in apply_to({"text": "a"}, SelectConfig(fields=["id"])).reason
