"""Make the demo corpus: collect, write into a folder beside the target, move into place."""

import json
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from msd.core.checks import working_directory
from msd.errors import InputError
from msd.loader.transforms.config import ImageConfig
from msd.loader.transforms.patches import fit_size
from msd.testing.corpus import frames, photos, recipe, text, write

MARKER = ".msd-corpus.json"
"""Lists what a corpus consists of, so that making it again replaces that and nothing else."""

BUILDING = ".msd-corpus-building.json"
"""In a folder that is being filled: which process of which machine fills it."""

ENTRIES = (
    "code",
    "corpus.yaml",
    "descriptions",
    "docs",
    "docstrings",
    "frames",
    "frames.yaml",
    "photos",
    "tokenizer.json",
)

_BYTES = {"code": 5_000_000, "docstrings": 1_500_000, "docs": 1_500_000, "descriptions": 900_000}
_NUM_PHOTOS, _NUM_ANIMATIONS = 480, 64
_TOKENIZER_BYTES = 2_500_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStats:
    """What one source of the corpus holds. Lengths are tokens of a row, before a long row is cut."""

    name: str
    format: str
    files: int
    rows: int
    stored_bytes: int
    tokens: int
    tokens_min: int
    tokens_median: int
    tokens_mean: float
    tokens_p99: int
    tokens_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusReport:
    """What was made."""

    path: Path
    seed: int
    scale: float
    vocabulary: int
    sources: tuple[SourceStats, ...]

    @property
    def config(self) -> Path:
        """The ready configuration over it."""
        return self.path / "corpus.yaml"

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON-able values."""
        return asdict(self) | {"path": str(self.path), "config": str(self.config)}


def make_corpus(
    path: str | Path,
    *,
    scale: float = 1.0,
    seed: int = 17,
    force: bool = False,
    on_progress: Callable[[str], None] | None = None,
) -> CorpusReport:
    """Make a corpus of five sources, animations, a tokenizer, `corpus.yaml` and `frames.yaml` under `path`.

    Equal arguments on one machine give equal bytes. Nothing appears under `path` before all of it is made. A corpus
    that is there already is replaced; files that are not its own are never touched.

    Args:
        path: A folder that does not exist, is empty, or holds a corpus.
        scale: Share of the usual amount of data (about 9 MB of text and 480 photographs).
        seed: Which files, regions and sizes are drawn.
        force: Also write into a folder that holds other things, none of which is touched.
        on_progress: Called with the name of each stage as it begins.

    Raises:
        InputError: If the folder is in use by something else, or `scale` is not positive.
    """
    if not 0 < scale <= 100:
        raise InputError(f"scale must lie in (0, 100], got {scale}; 1 makes about 20 MB")
    target = Path(path).resolve()
    _check_target(target, force)
    target.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(target)
    building = Path(tempfile.mkdtemp(prefix=f".{target.name}.{os.getpid()}.", suffix=".partial", dir=target.parent))
    try:
        (building / BUILDING).write_text(json.dumps(_builder(os.getpid())), encoding="utf-8")
        report = _fill(building, target, scale, seed, on_progress or (lambda stage: None))
        _move_into_place(building, target)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return report


def _fill(folder: Path, target: Path, scale: float, seed: int, say: Callable[[str], None]) -> CorpusReport:
    say("collecting text")
    budget = {name: int(size * scale) for name, size in _BYTES.items()}
    rows = {
        "code": text.code_rows(budget["code"], seed),
        "docstrings": text.docstring_rows(budget["docstrings"], seed),
        "docs": text.document_rows(budget["docs"], seed),
        "descriptions": text.description_rows(budget["descriptions"], seed),
    }
    say("making photographs")
    pairs = list(photos.make_photos(max(8, round(_NUM_PHOTOS * scale)), seed))
    say("making animations")
    animations = list(frames.make_frames(max(4, round(_NUM_ANIMATIONS * scale)), seed))
    say("training the tokenizer")
    captions = [pair.caption for pair in pairs]
    tokenizer = recipe.train_tokenizer(_training_texts(rows, captions), folder / "tokenizer.json")
    say("writing files")
    code_files = write.write_parquet(rows["code"], folder / "code", num_files=4, rows_per_group=32)
    docstring_files = write.write_jsonl_zst(rows["docstrings"], folder / "docstrings", num_files=3, rows_per_frame=128)
    docs_files = write.write_jsonl(rows["docs"], folder / "docs", num_files=2)
    description_files = write.write_jsonl_gz(rows["descriptions"], folder / "descriptions", num_files=2)
    photo_files = write.write_tars(pairs, folder / "photos", num_files=4)
    write.write_tars(animations, folder / "frames", num_files=2, kind="webp")
    for name in ("corpus", "frames"):
        configuration = recipe.configuration(seed, tokenizer.get_vocab_size(), name=name)
        (folder / f"{name}.yaml").write_text(configuration, encoding="utf-8")
    say("counting tokens")
    # The end of a text is a token too.
    length = {name: _lengths(tokenizer, [row["text"] for row in rows[name]]) + 1 for name in rows}
    length["photos"] = _lengths(tokenizer, captions) + 1 + np.array([_placeholders(pair) for pair in pairs])
    stats = (
        _stats("code", "parquet", code_files, length["code"]),
        _stats("docstrings", "jsonl.zst", docstring_files, length["docstrings"]),
        _stats("docs", "jsonl", docs_files, length["docs"]),
        _stats("descriptions", "jsonl.gz", description_files, length["descriptions"]),
        _stats("photos", "webdataset", photo_files, length["photos"]),
    )
    (folder / MARKER).write_text(
        _marker_text({entry.name for entry in folder.iterdir()} - {BUILDING}), encoding="utf-8"
    )
    return CorpusReport(path=target, seed=seed, scale=scale, vocabulary=tokenizer.get_vocab_size(), sources=stats)


def _training_texts(rows: dict[str, list[text.Row]], captions: Sequence[str]) -> list[str]:
    """Return an even share of each source, up to what a vocabulary of this size needs."""
    chosen: list[str] = []
    for texts in (*([row["text"] for row in of_source] for of_source in rows.values()), captions):
        spent = 0
        for piece in texts:
            if spent >= _TOKENIZER_BYTES // (len(rows) + 1):
                break
            chosen.append(piece)
            spent += len(piece)
    return chosen


def _placeholders(pair: photos.Photo) -> int:
    """Return the image tokens of a pair under the geometry that `corpus.yaml` sets."""
    unit = recipe.PATCH * recipe.MERGE
    height, width = fit_size(
        pair.height, pair.width, unit=unit, min_pixels=ImageConfig().min_pixels, max_pixels=recipe.MAX_PIXELS
    )
    return height * width // unit**2


def _lengths(tokenizer: Any, texts: Sequence[str]) -> np.ndarray[Any, np.dtype[np.int64]]:
    encodings = tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
    return np.array([len(encoding.ids) for encoding in encodings], dtype=np.int64)


def _stats(name: str, kind: str, files: Sequence[Path], length: np.ndarray[Any, np.dtype[np.int64]]) -> SourceStats:
    return SourceStats(
        name=name,
        format=kind,
        files=len(files),
        rows=len(length),
        stored_bytes=sum(file.stat().st_size for file in files),
        tokens=int(length.sum()),
        tokens_min=int(length.min()),
        tokens_median=int(np.median(length)),
        tokens_mean=round(float(length.mean()), 1),
        tokens_p99=int(np.percentile(length, 99)),
        tokens_max=int(length.max()),
    )


def _builder(pid: int) -> dict[str, Any]:
    return {"made_by": "msd corpus", "host": socket.gethostname(), "pid": pid}


def _remove_abandoned(target: Path) -> None:
    """Remove what processes of this machine that were killed have left beside `target`."""
    named = re.compile(rf"\.{re.escape(target.name)}\.(\d{{1,9}})\.\w+\.partial")
    for folder in target.parent.iterdir():
        match = named.fullmatch(folder.name)
        if match is None or folder.is_symlink() or _is_alive(int(match[1])):
            continue
        try:
            builder = json.loads((folder / BUILDING).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if builder == _builder(int(match[1])):
            shutil.rmtree(folder, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _check_target(target: Path, force: bool) -> None:
    if target == working_directory():
        raise InputError(f"{str(target)!r} is the current directory; name a folder of its own, such as demo-corpus")
    if target.exists() and not target.is_dir():
        raise InputError(f"{str(target)!r} is a file; name a folder")
    if not target.is_dir() or not any(target.iterdir()):
        return
    own = _own_entries(target)
    if not own and not force:
        raise InputError(
            f"{str(target)!r} is not empty and not a corpus made by msd; name another folder, or add --force to write "
            "beside what is there"
        )
    foreign = sorted(name for name in ENTRIES if name not in own and (target / name).exists())
    if foreign:
        raise InputError(
            f"{str(target / foreign[0])!r} exists and was not made by msd; move it away or name another folder"
        )


def _move_into_place(building: Path, target: Path) -> None:
    if not target.exists() or not any(target.iterdir()):
        (building / BUILDING).unlink()
        building.chmod(0o755)
        building.replace(target)
        return
    # The marker is written before anything is replaced, so that what an interruption leaves is still known as ours.
    made = {entry.name for entry in building.iterdir()} - {BUILDING}
    marker = target / MARKER
    marker.write_text(_marker_text(_own_entries(target) | made), encoding="utf-8")
    for name in sorted(_own_entries(target) - {MARKER}):
        if (target / name).is_dir():
            shutil.rmtree(target / name)
        else:
            (target / name).unlink(missing_ok=True)
    for name in sorted(made, key=lambda name: name == MARKER):
        (building / name).replace(target / name)


def _own_entries(target: Path) -> set[str]:
    """Return the names under `target` that an earlier run made."""
    try:
        listed = json.loads((target / MARKER).read_text(encoding="utf-8"))["entries"]
    except FileNotFoundError:
        return set()
    except (ValueError, KeyError, TypeError):
        raise InputError(
            f"{str(target / MARKER)!r} is not what msd corpus writes; remove it, or name another folder"
        ) from None
    return {Path(str(name)).name for name in listed}


def _marker_text(entries: set[str]) -> str:
    return json.dumps({"made_by": "msd corpus", "entries": sorted(entries)}, indent=1) + "\n"
