import io
import time

import msgspec
import pytest
from PIL import Image

import msd
from msd.build import build_orders, index_all
from msd.cost.features import FEATURES
from msd.errors import ConfigError
from msd.loader.features import NAMES, RowFeatures
from msd.loader.transforms.config import ImageConfig
from msd.profiling import find, keep, profile, profile_path, read
from msd.profiling.demands import by_samples, demands_of, peak_shares
from msd.profiling.profile import SourceDone
from msd.profiling.store import machine, versions
from msd.sources.base import BadRow
from msd.testing.profiles import made_up_profile, made_up_source

TOKENS = {"kind": "tokens", "field": "ids"}


def waits(sample: dict) -> dict:
    time.sleep(0.002)
    return sample


def fails(sample: dict) -> dict:
    raise ValueError("never")


def rows(count: int, length: int = 20) -> list[dict]:
    return [{"ids": list(range(1, 1 + length + number % 7))} for number in range(count)]


def png(width: int, height: int) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (width, height)).save(out, "PNG")
    return out.getvalue()


def config(**sources) -> msd.Config:
    return msd.Config(
        sources=sources,
        batch={"sequence_length": 64, "global_batch_size": 4},
        mesh={"dp": 1},
        num_microbatches=1,
        cost={"backbone": {"kind": "tokens"}},
    )


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MSD_CACHE", str(tmp_path / "cache"))


def test_names_of_features_are_the_same_in_both_rooms():
    assert NAMES == FEATURES


def test_features_are_sizes_and_what_headers_say():
    stored = png(60, 40)
    features = RowFeatures([ImageConfig(field="jpg")]).of(
        [{"jpg": stored, "txt": "abc"}, {"jpg": b"torn", "txt": ""}, {"ids": [1, 2, 3]}, BadRow("torn")]
    )
    assert features.tolist() == [
        [len(stored) + 3, 3, 1, 60 * 40, 1],
        [4, 0, 0, 0, 0],
        [24, 0, 0, 0, 0],
        [0, 0, 0, 0, 0],
    ]


def test_pieces_are_words_and_signs_and_of_long_texts_what_stretches_of_them_let_expect():
    short = "def f(x): return x, 文字"
    long = "one two, three. " * 1000
    features = RowFeatures([]).of([{"text": short}, {"text": long}, {"chat": [{"content": short}, {"content": short}]}])
    pieces = features[:, NAMES.index("pieces")]
    assert pieces[0] == 9
    assert pieces[1] == pytest.approx(5000, rel=0.02)
    assert pieces[2] == 18


def test_bytes_of_text_are_those_of_its_encoding():
    features = RowFeatures([]).of([{"text": "abc"}, {"text": "äöü"}, {"text": "文字"}, {"text": "\ud800"}])
    assert features[:, 0].tolist() == [3, 6, 6, 3]
    assert features[:, 1].tolist() == [3, 3, 2, 1]


def test_a_source_is_profiled_with_what_waits_told_from_what_computes():
    settings = config(
        plain={"rows": rows(200), "transforms": [TOKENS]}, slow={"rows": rows(40), "transforms": [waits, TOKENS]}
    )
    done: list[SourceDone] = []
    found, problems = profile(settings, seconds=1.0, on_progress=done.append)
    assert problems == {}
    assert [one.source for one in done] == ["plain", "slow"]
    slow, plain = found.sources["slow"], found.sources["plain"]
    assert slow.prepare_s > 0.002
    assert slow.cpu_s < 0.5 * slow.prepare_s
    assert plain.prepare_s < slow.prepare_s
    assert plain.rows_per_sample == 1.0
    assert plain.tokens_per_sample == pytest.approx(23, abs=1)
    assert plain.payload_bytes == pytest.approx(4 * plain.tokens_per_sample)
    assert slow.num_rows >= 32


def test_what_cannot_be_profiled_is_named_and_the_others_are():
    settings = config(good={"rows": rows(40), "transforms": [TOKENS]}, bad={"rows": rows(9), "transforms": [fails]})
    found, problems = profile(settings, seconds=0.5)
    assert set(found.sources) == {"good"}
    assert "all 9 rows that were sampled failed, the first with ValueError: never" in problems["bad"]


def test_a_source_that_there_is_not_cannot_be_profiled():
    with pytest.raises(ConfigError, match="no source 'wob'"):
        profile(config(web={"rows": rows(9), "transforms": [TOKENS]}), sources=["wob"])


def test_a_profile_is_kept_by_what_its_sources_are_and_found_again(tmp_path):
    kept = msgspec.structs.replace(made_up_profile(), machine=machine(), versions=versions())
    prints = {"web": ("d", "t")}
    assert find(prints) == (None, [])
    keep(kept, profile_path(prints))
    assert find(prints) == (kept, [])
    assert read(profile_path(prints)) == kept
    keep(msgspec.structs.replace(kept, versions={**versions(), "pillow": "0.1"}), profile_path(prints))
    none, against = find(prints)
    assert none is None
    assert against[0].startswith("it was made with pillow 0.1")
    with pytest.raises(ConfigError, match="no profile at"):
        read(tmp_path / "nowhere.json")


def test_half_of_the_tokens_are_few_samples_where_those_are_long():
    shares = by_samples({"web": 0.5, "books": 0.5}, {"web": 10.0, "books": 90.0}, unit="tokens")
    assert shares == pytest.approx({"web": 0.9, "books": 0.1})
    assert by_samples({"web": 0.5, "books": 0.5}, {}, unit="samples") == {"web": 0.5, "books": 0.5}


def test_a_source_is_asked_for_its_largest_share_of_the_schedule():
    settings = config(
        web={"rows": rows(40), "transforms": [TOKENS]}, books={"rows": rows(40), "transforms": [TOKENS]}
    ).replace(
        mixture={"weights": {"web": 1, "books": 0}, "schedule": [{"step": 10, "ramp": 5, "weights": {"books": 1}}]}
    )
    orders = build_orders(settings, index_all(settings))
    assert peak_shares(settings, orders, {"web": 10, "books": 10}) == {"web": 1.0, "books": 1.0}
    with pytest.raises(ConfigError, match="'books' is drawn from and not in the profile"):
        demands_of(settings, orders, made_up_profile())
    found = demands_of(settings, orders, made_up_profile(web=made_up_source(), books=made_up_source(prepare_s=0.5)))
    assert [(one.source, one.share) for one in found] == [("web", 1.0), ("books", 1.0)]
    assert found[1].cost.prepare_s == 0.5
