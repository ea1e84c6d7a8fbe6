"""Conversations: the tokens of each turn, and which of them are learned."""

import numpy as np
import pytest
from PIL import Image

from msd.core.sample import Outcome
from msd.errors import ConfigError
from msd.loader.transforms.config import ChatConfig, ImageConfig, TokenizeConfig, TurnConfig

WORDS = [
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "[UNK]",
    "user",
    "assistant",
    "system",
    "hi",
    "yo",
    "more",
    "\n",
]
PLAIN = {
    "user": TurnConfig(prefix="U:", separator="|"),
    "assistant": TurnConfig(prefix="A:", suffix="#", separator="|"),
}


@pytest.fixture(scope="session")
def chat_tokenizer(tmp_path_factory):
    """A tokenizer with the special tokens of ChatML, a word and a line break each a token."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\n|\w+"), "isolated")
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>", "<|endoftext|>"])
    path = tmp_path_factory.mktemp("chat") / "tokenizer.json"
    tokenizer.save(str(path))
    return str(path)


def turns(*pairs):
    return {"messages": [{"role": role, "content": content} for role, content in pairs]}


def shown(result):
    """What a sample of bytes says, with what is learned in brackets."""
    assert result.outcome is Outcome.OK, result.reason
    (sample,) = result.samples
    mask = np.ones(len(sample.tokens_T)) if sample.trained_T is None else sample.trained_T
    text, inside = "", 0
    for token, is_trained in zip(sample.tokens_T.tolist(), mask.tolist(), strict=True):
        text += ("" if is_trained == inside else "]["[int(is_trained)]) + {256: "$", 257: "^"}.get(
            token, chr(token % 256)
        )
        inside = is_trained
    return text + "]" * int(inside)


def test_chatml_by_hand(apply_to, chat_tokenizer):
    result = apply_to(
        turns(("system", "more"), ("user", "hi"), ("assistant", "yo")),
        ChatConfig(tokenizer=chat_tokenizer, append_eos=True),
    )
    (sample,) = result.samples
    #                               system                 user                  assistant
    assert sample.tokens_T.tolist() == [0, 6, 10, 9, 1, 10, 0, 4, 10, 7, 1, 10, 0, 5, 10, 8, 1, 10, 2]
    assert sample.trained_T.tolist() == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0]
    # The line break after `assistant` (14) predicts "yo", and "yo" the end of the turn.
    assert sample.label_runs().tolist() == [[14, 16]]


def test_every_turn_of_the_assistant_is_learned_with_its_end_and_nothing_else(apply_to):
    row = turns(("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"))
    assert shown(apply_to(row, ChatConfig(tokenizer="bytes", template=PLAIN))) == "U:a|A:[b#]|U:c|A:[d#]|"


def test_the_roles_that_are_learned_can_be_chosen(apply_to):
    row = turns(("user", "a"), ("assistant", "b"))
    assert shown(apply_to(row, ChatConfig(tokenizer="bytes", template=PLAIN, trained=["user"]))) == "U:[a]|A:b#|"
    both = ChatConfig(tokenizer="bytes", template=PLAIN, trained=["user", "assistant"])
    assert shown(apply_to(row, both)) == "U:[a]|A:[b#]|"


def test_turns_of_from_and_value_have_their_usual_roles(apply_to):
    row = {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}
    chosen = ChatConfig(tokenizer="bytes", template=PLAIN, field="conversations")
    assert shown(apply_to(row, chosen)) == "U:a|A:[b#]|"
    row["conversations"][1]["from"] = "bot"
    assert "has the role 'bot', which the template has not (its roles: user, assistant)" in apply_to(row, chosen).reason
    renamed = ChatConfig(
        tokenizer="bytes", template=PLAIN, field="conversations", roles={"human": "user", "bot": "assistant"}
    )
    assert shown(apply_to(row, renamed)) == "U:a|A:[b#]|"


def test_the_end_of_text_is_learned_where_the_last_turn_is_learned_to_its_end(apply_to):
    open_ended = {**PLAIN, "assistant": TurnConfig(prefix="A:", suffix="#")}
    row, with_eos = turns(("user", "a"), ("assistant", "b")), {"tokenizer": "bytes", "append_eos": True}
    assert shown(apply_to(row, ChatConfig(**with_eos, template=open_ended, prepend_bos=True))) == "^U:a|A:[b#$]"
    assert shown(apply_to(row, ChatConfig(**with_eos, template=PLAIN))) == "U:a|A:[b#]|$"


def test_a_conversation_without_a_turn_to_learn_is_filtered(apply_to):
    for row in (turns(("user", "a")), {"messages": []}):
        result = apply_to(row, ChatConfig(tokenizer="bytes", template=PLAIN))
        assert (result.outcome, result.samples) == (Outcome.FILTERED, ())


def test_one_bad_conversation_fails_alone(make_chain):
    chain = make_chain(ChatConfig(tokenizer="bytes", template=PLAIN))
    good = turns(("user", "a"), ("assistant", "b"))
    results = chain.apply([(0, good), (1, turns(("user", "\ud800"), ("assistant", "b"))), (2, {}), (3, good)])
    assert [result.outcome for result in results] == [Outcome.OK, Outcome.FAILED, Outcome.FAILED, Outcome.OK]
    assert "UnicodeEncodeError" in results[1].reason
    assert "no field 'messages'" in results[2].reason
    assert shown(results[3]) == "U:a|A:[b#]|"


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ("text", "field 'messages' must be a list of messages, got str"),
        (["text"], "messages[0] must be a mapping with role and content, got str"),
        ([{"role": "user"}], "messages[0] has no content or value, only role"),
        (
            [{"role": "user", "content": None}],
            "messages[0].content must be text, or a list of parts with text in them, got",
        ),
        (
            [{"from": "human", "value": 5}],
            "messages[0].value must be text, or a list of parts with text in them, got int",
        ),
        (
            [{"role": "assistant", "content": None, "tool_calls": [{"id": 1}]}],
            "messages[0] has tool_calls and no text; write them out as its content",
        ),
        ([{"role": None, "content": "a"}], "messages[0] has the role None"),
        ([{"role": "user", "content": [{"type": "image"}]}], "messages[0] has a part of type 'image' without text"),
    ],
)
def test_a_message_that_cannot_be_read_fails_its_row_with_its_place(apply_to, messages, reason):
    result = apply_to({"messages": messages}, ChatConfig(tokenizer="bytes", template=PLAIN))
    assert result.outcome is Outcome.FAILED
    assert reason in result.reason


def test_parts_of_a_content_are_joined_and_images_stand_before_the_text(apply_to):
    parts = [{"type": "image"}, {"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    row = {"img": _png(28), **turns(("user", parts), ("assistant", "c"))}
    image = ImageConfig(field="img", image_token=300)
    result = apply_to(row, image, ChatConfig(tokenizer="bytes", template=PLAIN))
    (sample,) = result.samples
    assert sample.num_image_tokens == 1
    assert bytes(sample.tokens_T[1:].tolist()) == b"U:ab|A:c#|"
    assert sample.trained_T.tolist() == [0] * 8 + [1, 1, 0]


def test_messages_of_a_table_are_read_as_arrays_with_the_keys_of_all(apply_to):
    parts = np.array([{"type": "text", "text": "a"}], dtype=object)
    messages = [
        {"role": "user", "content": parts, "from": None, "value": None},
        {"role": None, "content": None, "from": "gpt", "value": "b"},
    ]
    result = apply_to({"messages": np.array(messages, dtype=object)}, ChatConfig(tokenizer="bytes", template=PLAIN))
    assert shown(result) == "U:a|A:[b#]|"


def test_a_piece_in_which_nothing_is_learned_is_left_out_and_counted(apply_to):
    row = turns(("user", "a" * 20), ("assistant", "b" * 9), ("user", "c" * 25))
    result = apply_to(row, ChatConfig(tokenizer="bytes", template=PLAIN), length=16)
    # 23 tokens are context, then 2 of the prefix, 10 are learned: pieces of 16 from 0, 16, 32, 48.
    assert [sample.trained_T.sum() for sample in result.samples] == [7, 3]
    assert (result.num_split, result.num_unlabelled) == (3, 2)
    assert [sample.id.part for sample in result.samples] == [0, 1]


def test_truncation_before_the_answer_leaves_nothing(apply_to):
    row = turns(("user", "a" * 20), ("assistant", "b"))
    result = apply_to(row, ChatConfig(tokenizer="bytes", template=PLAIN), length=16, overflow="truncate")
    assert (result.outcome, result.num_unlabelled) == (Outcome.FILTERED, 1)


def test_a_template_that_cannot_mean_anything_is_refused(make_chain, chat_tokenizer):
    with pytest.raises(ConfigError, match="trained names the role 'bot', which the template has not"):
        make_chain(ChatConfig(tokenizer="bytes", trained=["bot"]))
    with pytest.raises(ConfigError, match="roles names the role 'usr', which the template has not"):
        make_chain(ChatConfig(tokenizer="bytes", roles={"human": "usr"}))
    assert make_chain(ChatConfig(tokenizer="bytes", template={"assistant": PLAIN["assistant"]}))
    with pytest.raises(ConfigError, match="chat trained is empty"):
        ChatConfig(tokenizer="bytes", trained=[])
    with pytest.raises(ConfigError, match="chat template is empty"):
        ChatConfig(tokenizer="bytes", template={})
    with pytest.raises(ConfigError, match="different tokenizers"):
        make_chain(ChatConfig(tokenizer="bytes"), TokenizeConfig(tokenizer=chat_tokenizer))


def test_the_identity_says_all_that_the_tokens_depend_on(make_chain):
    def identity(**changes):
        return make_chain(ChatConfig(tokenizer="bytes", **changes)).identity

    changes = [
        {"field": "other"}, {"template": PLAIN}, {"roles": {}}, {"trained": ["user"]}, {"append_eos": True},
        {"prepend_bos": True},
    ]  # fmt: skip
    assert identity() == identity()
    assert all(identity(**change) != identity() for change in changes)


def _png(side):
    import io

    buffer = io.BytesIO()
    Image.new("RGB", (side, side)).save(buffer, "PNG")
    return buffer.getvalue()
