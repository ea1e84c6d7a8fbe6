import os
from pathlib import Path

import numpy as np
import pytest

from msd.core.sample import Outcome
from msd.errors import ConfigError
from msd.loader.transforms.config import FunctionConfig, TokenizeConfig, TokensConfig
from msd.loader.transforms.tokenizer import load_tokenizer


def tokens(result):
    assert result.outcome is Outcome.OK, result.reason
    return [sample.tokens_T.tolist() for sample in result.samples]


def test_bytes_are_their_own_ids_and_256_ends_a_document(apply_to):
    result = apply_to({"text": "é!"}, TokenizeConfig(tokenizer="bytes", append_eos=True, prepend_bos=True))
    assert tokens(result) == [[257, 0xC3, 0xA9, 0x21, 256]]
    assert result.samples[0].tokens_T.dtype == np.int32


def test_encoded_text_of_a_tar_member_is_read_as_utf8(apply_to):
    step = TokenizeConfig(tokenizer="bytes", field="txt")
    assert tokens(apply_to({"txt": b"ab"}, step)) == [[97, 98]]
    assert "UnicodeDecodeError" in apply_to({"txt": b"\xff"}, step).reason


def test_the_files_truncation_padding_and_template_are_not_applied(apply_to, word_tokenizer):
    result = apply_to({"text": "the cat sat on a mat"}, TokenizeConfig(tokenizer=word_tokenizer))
    assert tokens(result) == [[0, 1, 2, 3, 4, 5]]


def test_the_usual_end_and_begin_tokens_are_found(apply_to, word_tokenizer):
    step = TokenizeConfig(tokenizer=word_tokenizer, append_eos=True, prepend_bos=True)
    assert tokens(apply_to({"text": "cat"}, step)) == [[8, 1, 9]]
    other = TokenizeConfig(tokenizer=word_tokenizer, append_eos=True, eos_token="mat")
    assert tokens(apply_to({"text": "cat"}, other)) == [[1, 5]]


def test_a_prompt_and_its_answer_are_joined_and_only_the_answer_is_learned(apply_to, word_tokenizer):
    result = apply_to(
        {"q": "the cat", "a": "sat on"},
        TokenizeConfig(tokenizer=word_tokenizer, field="q", trained=False, prepend_bos=True),
        TokenizeConfig(tokenizer=word_tokenizer, field="a", append_eos=True),
    )
    assert tokens(result) == [[8, 0, 1, 2, 3, 9]]
    assert result.samples[0].trained_T.tolist() == [0, 0, 0, 1, 1, 1]


def test_a_column_named_input_ids_is_not_taken_for_tokens_that_were_made(apply_to):
    row = {"text": "a", "input_ids": [7, 7], "loss_mask": [0, 0]}
    result = apply_to(row, TokenizeConfig(tokenizer="bytes"))
    assert tokens(result) == [[97]]
    assert result.samples[0].trained_T is None


def test_tokens_that_a_function_made_are_followed_by_more(apply_to):
    prompt = FunctionConfig(function=lambda sample: {**sample, "input_ids": [1, 2], "loss_mask": [0, 1]})
    result = apply_to({"text": "a"}, prompt, TokenizeConfig(tokenizer="bytes"))
    assert tokens(result) == [[1, 2, 97]]
    assert result.samples[0].trained_T.tolist() == [0, 1, 1]


def test_tokens_of_the_conventional_field_are_taken_over_with_their_mask(apply_to):
    prompt = FunctionConfig(function=lambda sample: {"input_ids": [1, 2], "loss_mask": [0, 1]})
    result = apply_to({}, prompt, TokensConfig(field="input_ids", append_eos_id=9))
    assert tokens(result) == [[1, 2, 9]]
    assert result.samples[0].trained_T.tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"body": "x"}, "MissingField: no field 'text'; this row has 'body' (in transform 0 tokenize)"),
        ({"text": 5}, "WrongType: field 'text' must be text, got int (in transform 0 tokenize)"),
        ({"text": None}, "WrongType: field 'text' must be text, got NoneType (in transform 0 tokenize)"),
    ],
)
def test_a_row_without_text_fails_with_what_was_found(apply_to, row, reason):
    result = apply_to(row, TokenizeConfig(tokenizer="bytes"))
    assert (result.outcome, result.reason) == (Outcome.FAILED, reason)


@pytest.mark.parametrize("name", ["bytes", "file"])
def test_text_without_a_utf8_form_fails_alone(make_chain, word_tokenizer, name):
    chain = make_chain(TokenizeConfig(tokenizer="bytes" if name == "bytes" else word_tokenizer))
    good, bad, last = chain.apply([(0, {"text": "the"}), (1, {"text": "a\ud800"}), (2, {"text": "cat"})])
    assert [good.outcome, bad.outcome, last.outcome] == [Outcome.OK, Outcome.FAILED, Outcome.OK]
    assert bad.reason.startswith("UnicodeEncodeError")
    assert tokens(last) == tokens(chain.apply([(2, {"text": "cat"})])[0])


def test_sources_share_one_tokenizer_of_equal_content(word_tokenizer, tmp_path):
    copy = tmp_path / "copy.json"
    copy.write_bytes(Path(word_tokenizer).read_bytes())
    assert load_tokenizer(str(copy)) is load_tokenizer(word_tokenizer)


def test_threads_of_the_tokenizer_library_are_the_users_to_choose(word_tokenizer, monkeypatch):
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    load_tokenizer(word_tokenizer)
    assert os.environ["TOKENIZERS_PARALLELISM"] == "true"
    monkeypatch.delenv("TOKENIZERS_PARALLELISM")
    load_tokenizer(word_tokenizer)
    assert os.environ["TOKENIZERS_PARALLELISM"] == "false"


@pytest.mark.parametrize(
    ("content", "found"), [(b"{}", "Model missing"), (b"\xff\xfe", "expected value"), (None, "No such file")]
)
def test_a_broken_tokenizer_is_refused_with_its_path(make_chain, tmp_path, content, found):
    path = tmp_path / "broken.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=found) as refused:
        make_chain(TokenizeConfig(tokenizer=str(path)))
    assert str(path) in str(refused.value)
    assert str(refused.value).startswith("sources.web.transforms[0]: ")


def test_a_tokenizer_that_draws_is_refused(tmp_path):
    from tokenizers import Tokenizer, models

    path = tmp_path / "drawing.json"
    Tokenizer(models.BPE(vocab={"a": 0}, merges=[], dropout=0.5)).save(str(path))
    with pytest.raises(ConfigError, match=r"dropout 0\.5"):
        load_tokenizer(str(path))


def test_an_unknown_end_token_is_refused_with_the_nearest(make_chain, word_tokenizer):
    with pytest.raises(ConfigError, match=r"eos_token '</ss>' is not in the vocabulary .* did you mean '</s>'"):
        make_chain(TokenizeConfig(tokenizer=word_tokenizer, append_eos=True, eos_token="</ss>"))


def test_two_tokenizers_in_one_source_are_refused(make_chain, word_tokenizer):
    with pytest.raises(ConfigError, match="different tokenizers"):
        make_chain(TokenizeConfig(tokenizer="bytes"), TokenizeConfig(tokenizer=word_tokenizer))


@pytest.mark.parametrize("ids", [[3, 4], (3, 4), np.array([3, 4], dtype=np.uint16), np.array([3, 4], dtype=np.int64)])
def test_token_ids_may_be_any_flat_sequence_of_integers(apply_to, ids):
    assert tokens(apply_to({"ids": ids}, TokensConfig(append_eos_id=9))) == [[3, 4, 9]]


@pytest.mark.parametrize(
    ("ids", "reason"),
    [
        ([1.5], "flat list of integers, got 1-D of float64"),
        (["1"], "flat list of integers"),
        ([True], "got 1-D of bool"),
        ([[1], [2]], "got 2-D"),
        ([[1], [2, 3]], "flat list"),
        ([None], "got 1-D of object"),
        ([-1], "token id -1"),
        ([2**31], "token id 2147483648"),
        ([2**70], "flat list"),
        (b"\x01", "got bytes"),
        ("12", "got str"),
    ],
)
def test_anything_else_is_no_token_ids(apply_to, ids, reason):
    result = apply_to({"ids": ids}, TokensConfig())
    assert result.outcome is Outcome.FAILED
    assert reason in result.reason


def test_a_mask_of_a_field_says_what_is_learned(apply_to):
    step = TokensConfig(mask="m", append_eos_id=9)
    result = apply_to({"ids": [1, 2, 3], "m": [False, 1.0, 0]}, step)
    assert result.samples[0].trained_T.tolist() == [0, 1, 0, 1]
    assert apply_to({"ids": [1], "m": [1]}, step).samples[0].trained_T is None


@pytest.mark.parametrize(
    ("mask", "reason"),
    [
        ([1], "shape [1], but there are 2 tokens"),
        ([0.5, 1], "0 and 1 only, got 0.5"),
        ([2, 1], "0 and 1 only, got 2"),
        ([-1, 1], "0 and 1 only, got -1"),
        ([float("nan"), 1], "0 and 1 only, got nan"),
        (["a", "b"], "must hold 0 and 1"),
        (None, "got NoneType"),
    ],
)
def test_a_mask_that_is_none_fails_the_row(apply_to, mask, reason):
    result = apply_to({"ids": [1, 2], "m": mask}, TokensConfig(mask="m"))
    assert result.outcome is Outcome.FAILED
    assert reason in result.reason


def test_a_row_is_not_changed(apply_to):
    row = {"ids": np.array([1, 2, 3], dtype=np.int32), "text": "a"}
    made = apply_to(row, TokensConfig(), TokenizeConfig(tokenizer="bytes")).samples[0]
    row["ids"][:] = 0
    assert made.tokens_T.tolist() == [1, 2, 3, 97]
    assert set(row) == {"ids", "text"}
