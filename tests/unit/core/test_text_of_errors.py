import os

from msd.core.text import encodable, text_of


def test_names_of_any_bytes_can_be_sent_and_good_ones_stay():
    for name in ("a  b\n", "日本", "\\udcff", ""):
        assert encodable(name) == name
    assert encodable(os.fsdecode(b"d\xff.jsonl")) == "d\\udcff.jsonl"


def test_a_message_is_one_line_or_says_why_there_is_none():
    class Mute(Exception):
        def __str__(self):
            raise LookupError

    assert text_of(ValueError(" a\n b\ud800")) == "a b\\ud800"
    assert text_of(ValueError()) == ""
    assert text_of(Mute()) == "its message cannot be had: LookupError"
