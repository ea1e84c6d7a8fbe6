import collections
import functools
import types

import numpy as np
import pytest

from msd.core.sample import Outcome
from msd.core.seeds import rng_for
from msd.errors import ConfigError, EngineError, SourceError
from msd.loader.transforms.config import ChunkConfig, FilterConfig, FunctionConfig, TokenizeConfig
from msd.loader.transforms.function import code_of

TEXT = TokenizeConfig(tokenizer="bytes")


def call(function, **options):
    return FunctionConfig(function=function, options=options)


def ids(result):
    assert result.outcome is Outcome.OK, result.reason
    return [sample.tokens_T.tolist() for sample in result.samples]


def draws(sample, rng):
    return {"input_ids": rng.integers(0, 1000, 4)}


def test_a_function_draws_from_the_generator_of_its_sample(apply_to):
    keep = FilterConfig(min_length=0)
    expected = rng_for(5, "transform", "web", 3, 1).integers(0, 1000, 4).tolist()
    assert ids(apply_to({"text": "a"}, keep, call(draws))) == [expected]
    assert ids(apply_to({"text": "a"}, call(draws))) != [expected]


def test_parts_of_one_row_draw_apart(apply_to):
    result = apply_to({"text": "abcd"}, ChunkConfig(size=2, unit="characters"), call(draws))
    assert ids(result) == [
        rng_for(5, "transform", "web", 3, 1).integers(0, 1000, 4).tolist(),
        rng_for(5, "transform", "web", 3, 1, 1).integers(0, 1000, 4).tolist(),
    ]


@pytest.mark.parametrize(
    "function",
    [
        lambda sample: {"input_ids": [1]},
        lambda sample, rng: {"input_ids": [int(isinstance(rng, np.random.Generator))]},
        lambda sample, draw: {"input_ids": [int(isinstance(draw, np.random.Generator))]},
        lambda sample, *, rng: {"input_ids": [int(isinstance(rng, np.random.Generator))]},
        lambda sample, other=None: {"input_ids": [int(other is None)]},
        lambda sample, *rest, **more: {"input_ids": [int(not rest and not more)]},
        functools.partial(lambda start, sample: {"input_ids": [start]}, 1),
    ],
)
def test_the_signature_says_whether_a_generator_is_wanted(apply_to, function):
    assert ids(apply_to({}, call(function))) == [[1]]


def test_options_are_passed_as_keywords(apply_to):
    def add(sample, rng, amount):
        return {"input_ids": [sample["x"] + amount]}

    assert ids(apply_to({"x": 1}, call(add, amount=4))) == [[5]]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, []),
        ([], []),
        ({"text": "a"}, [[97]]),
        ([{"text": "a"}, {"text": "b"}], [[97], [98]]),
        (({"text": "a"},), [[97]]),
        (types.MappingProxyType({"text": "a"}), [[97]]),
    ],
)
def test_a_function_gives_none_one_or_many(apply_to, given, expected):
    result = apply_to({}, call(lambda sample: given), TEXT)
    assert result.outcome is (Outcome.OK if expected else Outcome.FILTERED)
    assert [sample.tokens_T.tolist() for sample in result.samples] == expected


def test_a_function_may_yield_its_samples(apply_to):
    def words(sample):
        for word in sample["text"].split():
            yield {"text": word}

    assert ids(apply_to({"text": "a b"}, call(words), TEXT)) == [[97], [98]]


@pytest.mark.parametrize("given", [5, "text", [1], [{"text": "a"}, None]])
def test_anything_else_that_it_returns_fails_the_row(apply_to, given):
    result = apply_to({}, call(lambda sample: given), TEXT)
    assert result.outcome is Outcome.FAILED
    assert "WrongType: the function must return" in result.reason


def test_an_exception_becomes_one_line_without_memory_addresses(apply_to):
    def fails(sample):
        raise KeyError(f"no\n {object()}")

    result = apply_to({}, call(fails))
    assert result.reason.startswith("KeyError: 'no\\n <object object>' (in transform 0 function ")


def test_an_exception_names_the_function_its_file_and_the_line_in_it(apply_to, tmp_path, monkeypatch):
    module = tmp_path / "msd_test_named_line.py"
    module.write_text(
        "import json\n\n\ndef inner(sample):\n    return sample['nokey']\n\n\ndef tf(sample):\n    return inner(sample)"
        "\n\n\ndef keep(sample):\n    return json.loads('no')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    result = apply_to({}, call("msd_test_named_line:tf"))
    where = "(in transform 0 function msd_test_named_line.tf, msd_test_named_line.py line 5)"
    assert result.reason == f"KeyError: 'nokey' {where}"
    assert str(tmp_path) not in result.reason
    # What the user's function calls elsewhere is not where the user looks first.
    filtered = apply_to({"text": "a"}, FilterConfig(function="msd_test_named_line:keep"))
    assert filtered.reason.endswith("(in transform 0 filter msd_test_named_line.keep, msd_test_named_line.py line 13)")


def test_a_function_that_returns_the_wrong_thing_is_named_without_a_line(apply_to):
    def wrong(sample):
        return 5

    assert apply_to({}, call(wrong)).reason.endswith("got int (in transform 0 function test_transform_function.wrong)")


def test_what_a_function_does_to_its_sample_stays_its_own(apply_to):
    row = {"ids": [1], "meta": {"n": [1]}, "a": np.zeros(1, dtype=np.int64)}

    def spoil(sample):
        sample["ids"].append(2)
        sample["meta"]["n"].clear()
        sample["a"][:] = 9
        return {"input_ids": sample["ids"]}

    assert ids(apply_to(row, call(spoil))) == [[1, 2]]
    assert (row["ids"], row["meta"], row["a"].tolist()) == ([1], {"n": [1]}, [0])


@pytest.mark.parametrize("wrapped", [lambda sample: sample, lambda sample: [sample]])
def test_a_buffer_that_a_function_uses_again_is_copied(make_chain, wrapped):
    buffer = np.zeros(2, dtype=np.int32)

    def fill(sample):
        buffer[:] = sample["x"]
        return wrapped({"input_ids": buffer})

    results = make_chain(call(fill)).apply([(0, {"x": 1}), (1, {"x": 2})])
    assert [ids(result) for result in results] == [[[1, 1]], [[2, 2]]]


def test_a_dotted_path_is_resolved(apply_to):
    assert ids(apply_to({"input_ids": [1]}, call("copy:copy"))) == [[1]]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("nowhere_at_all:f", "cannot import 'nowhere_at_all'"),
        ("json:dmps", "did you mean 'dumps'"),
        ("json:__name__", "must be a function of a sample, got str"),
        (5, "must be a function of a sample, got int"),
        (lambda: None, "cannot be called as"),
        (lambda sample, rng, third: None, "cannot be called as"),
    ],
)
def test_a_function_that_cannot_be_called_is_refused_at_once(make_chain, function, message):
    with pytest.raises(ConfigError, match=message):
        make_chain(call(function))


def test_an_async_function_is_refused(make_chain):
    async def later(sample):
        return sample

    with pytest.raises(ConfigError, match="is async; transforms are plain functions"):
        make_chain(call(later))


def test_an_unknown_option_is_refused_at_once(make_chain):
    with pytest.raises(ConfigError, match="amount"):
        make_chain(call(lambda sample: None, amount=1))


def scaled(factor):
    def scale(sample):
        return sample["x"] * factor

    return scale


def test_code_is_identified_by_source_defaults_and_what_it_closes_over():
    assert code_of(scaled(2)) == code_of(scaled(2))
    assert code_of(scaled(2)) != code_of(scaled(3))
    assert code_of(scaled(scaled(2))) != code_of(scaled(scaled(3)))
    assert code_of(functools.partial(draws, rng=1)) != code_of(functools.partial(draws, rng=2))

    def first(sample, n=1):
        return sample

    one = code_of(first)
    first.__defaults__ = (2,)
    assert code_of(first) != one


def test_code_without_source_is_identified_by_what_it_compiles_to():
    def compiled(text):
        return eval(text)

    assert code_of(compiled("lambda x: x + 1")) == code_of(compiled("lambda x: x + 1"))
    assert code_of(compiled("lambda x: x + 1")) != code_of(compiled("lambda x: x + 2"))


def test_a_callable_object_is_identified_by_its_class_and_settings():
    class Cut:
        def __init__(self, size):
            self.size = size

        def __call__(self, sample):
            return sample

    assert code_of(Cut(1)) == code_of(Cut(1))
    assert code_of(Cut(1)) != code_of(Cut(2))


Pair = collections.namedtuple("Pair", "first second")


def mutable(word):
    """Return values that hold one array or list each, however deep."""
    array = np.array([word, word])
    objects = np.empty((1, 2), dtype=object)
    objects[0, 0], objects[0, 1] = np.array([word]), [word]
    return {
        "array": array,
        "tuple": (array.copy(), (array.copy(), [array.copy()])),
        "pair": Pair(array.copy(), [word]),
        "list": [(array.copy(),)],
        "dict": {"a": (array.copy(),)},
        "objects": objects,
        "bytes": bytearray([word]),
        "set": {word},
    }


def spoil(value):
    if isinstance(value, np.ndarray) and value.dtype != object:
        value += 1
    elif isinstance(value, dict | list | tuple | np.ndarray):
        for item in value.values() if isinstance(value, dict) else value.flat if hasattr(value, "flat") else value:
            spoil(item)
        if isinstance(value, list):
            value.append("spoilt")
    elif isinstance(value, bytearray | set):
        value.clear()
    return value


def test_a_function_may_change_all_that_it_is_given_and_the_rows_stay(apply_to):
    row = mutable(7)
    seen = []
    spoils = call(lambda sample: seen.append(spoil(sample)) or {"input_ids": [1]})
    assert ids(apply_to(row, spoils)) == [[1]]
    assert seen[0]["tuple"][1][1][0].tolist() == [8, 8]
    assert type(seen[0]["pair"]) is Pair
    assert seen[0]["objects"].shape == (1, 2)
    assert repr(row) == repr(mutable(7))


class Unspeakable(Exception):
    def __init__(self, said):
        self.said = said

    def __str__(self):
        if isinstance(self.said, Exception):
            raise self.said
        return self.said


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (ValueError("no"), "Unspeakable: its message cannot be had: ValueError (in"),
        (5, "Unspeakable: its message cannot be had: TypeError (in"),
        (None, "Unspeakable: its message cannot be had: TypeError (in"),
        ("a\ud800b\nc", "Unspeakable: a\\ud800b c (in"),
        ("", "Unspeakable (in"),
    ],
)
def test_an_exception_that_cannot_say_what_it_is_fails_its_row_alone(make_chain, said, reason):
    def fails(sample):
        if sample["text"] == "bad":
            raise Unspeakable(said)
        return {"input_ids": [1]}

    bad, good = make_chain(call(fails)).apply([(0, {"text": "bad"}), (1, {"text": "good"})])
    assert bad.outcome is Outcome.FAILED
    assert bad.reason.startswith(reason)
    assert ids(good) == [[1]]


@pytest.mark.parametrize("kind", [SourceError, EngineError])
def test_a_function_that_cannot_reach_what_it_needs_ends_the_run(make_chain, kind):
    def reads(sample):
        raise kind("the store does not answer")

    with pytest.raises(kind, match="the store does not answer"):
        make_chain(call(reads)).apply([(0, {"text": "a"})])
