"""What every test shares: a cache of its own, deterministic Hypothesis, skips that say why."""

import importlib.util
import itertools
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("msd", derandomize=True, deadline=None, database=None, print_blob=False)
settings.load_profile("msd")

REAL_CORPUS = os.environ.get("MSD_REAL_CORPUS")
_numbers = itertools.count()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    without_torch = pytest.mark.skip(reason="needs the torch extra: pip install -e '.[torch]'")
    without_corpus = pytest.mark.skip(reason="MSD_REAL_CORPUS does not name a corpus of real files")
    has_torch = importlib.util.find_spec("torch") is not None
    for item in items:
        if "torch" in item.keywords and not has_torch:
            item.add_marker(without_torch)
        if "real_data" in item.keywords and not REAL_CORPUS:
            item.add_marker(without_corpus)


@pytest.fixture(scope="session")
def repository() -> Path:
    """The checkout that is tested."""
    return Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def _caches(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("msd-cache")


@pytest.fixture(autouse=True)
def _own_surroundings(_caches: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test indexes into a cache of its own and inherits no rank from the machine."""
    # A library that a test runs may configure logging, which disables the loggers that exist.
    monkeypatch.setattr(logging.getLogger("msd"), "disabled", False)
    monkeypatch.setenv("MSD_CACHE", str(_caches / str(next(_numbers))))
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MSD_TLS_CA", "MSD_TLS_CERT", "MSD_TLS_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def tiny_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small copy of the demo corpus, with its `corpus.yaml` and `tokenizer.json`; made once a session."""
    from msd.testing.corpus import make_corpus

    folder = tmp_path_factory.mktemp("corpus") / "tiny"
    make_corpus(folder, scale=0.1)
    return folder


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, str]]:
    """Returns `security` by what its certificates are: `run`, `other` (of another CA), `expired`, `any host`."""
    from msd.runtime.authority import make_certificates

    options = {"run": {}, "other": {}, "expired": {"days": -1 / 48}, "any host": {"any_host": True}}
    made: dict[str, dict[str, str]] = {}

    def of_kind(kind: str) -> dict[str, str]:
        if kind not in made:
            made[kind] = make_certificates(tmp_path_factory.mktemp("certificates"), **options[kind]).security
        return made[kind]

    return of_kind


@pytest.fixture(scope="session")
def real_corpus() -> Path:
    """The corpus of real files named by MSD_REAL_CORPUS."""
    if not REAL_CORPUS:
        pytest.skip("MSD_REAL_CORPUS does not name a corpus of real files")
    return Path(REAL_CORPUS)
