import json

import numpy as np
import pytest

from msd.core.sample import Outcome, SampleId
from msd.errors import ConfigError
from msd.loader.transforms.config import ChunkConfig, FilterConfig, FunctionConfig, TokenizeConfig, TokensConfig
from msd.loader.transforms.patches import PatchedImage
from msd.sources.base import BadRow

TEXT = TokenizeConfig(tokenizer="bytes")


def lengths(result):
    return [len(sample.tokens_T) for sample in result.samples]


def with_images(*grids):
    """Return a chain step that makes images of these grids, as the image transform with patch 1 and merge 2 would."""
    made = [PatchedImage(np.zeros((h * w, 3), dtype=np.uint8), h, w) for h, w in grids]
    return FunctionConfig(function=lambda sample: {**sample, "images": made})


def image_chain(make_chain, *grids, length, overflow):
    from msd.loader.transforms.config import ImageConfig

    image = ImageConfig(patch=1, merge=2, max_pixels=64, min_pixels=1, image_token=500, on_missing="skip")
    return make_chain(image, with_images(*grids), TokensConfig(), length=length, overflow=overflow)


def test_a_long_sample_is_split_into_sequences_and_the_pieces_are_counted(apply_to):
    result = apply_to({"ids": list(range(25))}, TokensConfig(), length=10)
    assert lengths(result) == [10, 10, 5]
    assert [sample.id for sample in result.samples] == [SampleId("web", 3, part) for part in range(3)]
    assert np.concatenate([sample.tokens_T for sample in result.samples]).tolist() == list(range(25))
    assert (result.num_split, result.outcome) == (2, Outcome.OK)


def test_a_split_takes_its_piece_of_the_mask(apply_to):
    row = {"ids": list(range(4)), "m": [0, 1, 1, 1]}
    first, second = apply_to(row, TokensConfig(mask="m"), length=2).samples
    assert first.trained_T.tolist() == [0, 1]
    assert second.trained_T is None


def test_a_long_sample_is_truncated_and_the_lost_tokens_are_counted(apply_to):
    result = apply_to({"ids": list(range(25))}, TokensConfig(), length=10, overflow="truncate")
    assert (lengths(result), result.num_truncated_tokens, result.num_split) == ([10], 15, 0)


def test_a_long_sample_is_dropped_as_an_overflow(apply_to):
    result = apply_to({"ids": list(range(11))}, TokensConfig(), length=10, overflow="drop")
    assert (result.outcome, result.num_dropped, lengths(result)) == (Outcome.OVERFLOWED, 1, [])
    assert lengths(apply_to({"ids": list(range(10))}, TokensConfig(), length=10, overflow="drop")) == [10]


def test_of_a_row_with_several_samples_only_the_long_ones_are_dropped(apply_to):
    halves = FunctionConfig(function=lambda sample: [{"input_ids": [1]}, {"input_ids": [2] * 9}, {"input_ids": [3]}])
    result = apply_to({}, halves, length=4, overflow="drop")
    assert (result.outcome, result.num_dropped) == (Outcome.OK, 1)
    assert [(s.id.part, s.tokens_T.tolist()) for s in result.samples] == [(0, [1]), (1, [3])]


def test_the_run_of_placeholders_stays_with_the_first_piece(make_chain):
    chain = image_chain(make_chain, (2, 4), (2, 2), length=5, overflow="split")
    first, second = chain.apply([(0, {"ids": [1, 2, 3, 4]})])[0].samples
    assert first.tokens_T.tolist() == [500, 500, 500, 1, 2]
    assert first.images.starts_I.tolist() == [0, 2]
    assert (second.tokens_T.tolist(), second.images, second.num_image_tokens) == ([3, 4], None, 0)


@pytest.mark.parametrize("overflow", ["split", "truncate"])
def test_placeholders_that_do_not_fit_a_sequence_fail_the_row(make_chain, overflow):
    chain = image_chain(make_chain, (4, 4), length=3, overflow=overflow)
    result = chain.apply([(0, {"ids": [1]})])[0]
    assert result.outcome is Outcome.FAILED
    assert "take 4 placeholders and a sequence has 3 tokens" in result.reason


def test_a_sample_without_tokens_is_left_out_and_counted(apply_to):
    result = apply_to({"text": ""}, TEXT)
    assert (result.outcome, result.num_empty) == (Outcome.FILTERED, 1)


def test_a_chain_that_makes_no_tokens_says_what_to_add(apply_to):
    result = apply_to({"body": "x"})
    assert "MissingField: no transform made input_ids: add {kind: tokenize" in result.reason
    assert "the sample has 'body'" in result.reason


def test_rows_that_hold_input_ids_need_no_transform(apply_to):
    assert lengths(apply_to({"input_ids": [1, 2], "loss_mask": [0, 1]})) == [2]


def test_a_row_that_could_not_be_read_fails_with_its_reason(apply_to):
    result = apply_to(BadRow("line 3: not JSON"), TEXT)
    assert (result.outcome, result.reason) == (Outcome.FAILED, "BadRow: line 3: not JSON")


def test_a_row_fails_as_a_whole_when_one_of_its_samples_fails(make_chain):
    def fussy(sample):
        if sample["text"] == "b":
            raise ValueError("b")
        return sample

    chain = make_chain(ChunkConfig(size=1, unit="characters"), FunctionConfig(function=fussy), TEXT)
    results = chain.apply([(0, {"text": "abc"}), (1, {"text": "ac"})])
    assert [(r.outcome, lengths(r)) for r in results] == [(Outcome.FAILED, []), (Outcome.OK, [1, 1])]
    line = fussy.__code__.co_firstlineno + 2
    assert results[0].reason == f"ValueError: b (in transform 1 function test_chain.fussy, test_chain.py line {line})"


@pytest.mark.parametrize("late", [False, True])
def test_the_first_failure_of_a_row_is_its_reason(make_chain, late):
    def fussy(sample):
        if late:
            return {"input_ids": [-ord(sample["text"])]}
        raise ValueError(sample["text"])

    chain = make_chain(ChunkConfig(size=1, unit="characters"), FunctionConfig(function=fussy))
    (result,) = chain.apply([(0, {"text": "abc"})])
    assert ("token id -97" if late else "ValueError: a (") in result.reason


def test_rows_of_a_batch_do_not_depend_on_one_another(make_chain, word_tokenizer):
    chain = make_chain(
        FilterConfig(max_length=12),
        FunctionConfig(function=lambda sample, rng: [sample] * int(rng.integers(0, 4))),
        TokenizeConfig(tokenizer=word_tokenizer),
    )
    texts = ["the cat", "sat on a mat", "", "a", "the " * 9, "cat\ud800"]
    rows = [(number, {"text": texts[number % len(texts)]} if number % 5 else BadRow("bad")) for number in range(40)]
    together = chain.apply(rows)
    apart = [chain.apply([row])[0] for row in rows]
    for one, other in zip(together, apart, strict=True):
        assert (one.outcome, one.reason) == (other.outcome, other.reason)
        assert [(s.id, s.tokens_T.tolist()) for s in one.samples] == [
            (s.id, s.tokens_T.tolist()) for s in other.samples
        ]
    assert len({result.outcome for result in together}) == 3


def test_a_long_reason_is_cut(apply_to):
    def fails(sample):
        raise ValueError("x" * 5000)

    assert len(apply_to({}, FunctionConfig(function=fails)).reason) < 400


def test_identity_is_jsonable_and_changes_with_what_matters(make_chain, word_tokenizer, tmp_path):
    def text(chain):
        return json.dumps(chain.identity)

    words = text(make_chain(TokenizeConfig(tokenizer=word_tokenizer)))
    assert text(make_chain(TokenizeConfig(tokenizer=word_tokenizer))) == words
    assert word_tokenizer not in words
    assert "tokenizers" in json.loads(words)["versions"]
    assert json.loads(text(make_chain(TEXT)))["versions"] == {}
    differing = [
        make_chain(TEXT),
        make_chain(TokenizeConfig(tokenizer="bytes", append_eos=True)),
        make_chain(TEXT, length=32),
        make_chain(TEXT, overflow="drop"),
        make_chain(TEXT, FilterConfig(min_length=1)),
        make_chain(TEXT, FilterConfig(min_length=2)),
        make_chain(TEXT, FunctionConfig(function=lambda sample: sample)),
        make_chain(TEXT, FunctionConfig(function=lambda sample: sample, version="2")),
    ]
    assert len({text(chain) for chain in differing} | {words}) == len(differing) + 1


def test_an_unknown_overflow_is_refused(make_chain):
    with pytest.raises(ConfigError, match="must be split, truncate or drop, got 'cut'"):
        make_chain(TEXT, overflow="cut")


def test_the_end_of_a_document_is_known(make_chain, word_tokenizer):
    assert make_chain(TEXT).eos_id == 256
    assert make_chain(TokenizeConfig(tokenizer=word_tokenizer)).eos_id == 9
    assert make_chain(TokensConfig()).eos_id is None
