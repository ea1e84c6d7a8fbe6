"""What a URL leads to, on any file system of fsspec."""

import glob
import posixpath
from collections.abc import Iterator
from typing import Any

from msd.core.text import text_of
from msd.errors import SourceError
from msd.sources.config import ReaderConfig
from msd.sources.descriptors import is_exhausted, too_many_open
from msd.sources.files import reading
from msd.sources.found import Found, expand_braces, fixed_part
from msd.sources.remote import reaching, retried
from msd.sources.versions import version_of_info


def _reached(name: str, url: str, config: ReaderConfig) -> tuple[Any, str]:
    """Return the file system of a URL and the path on it."""
    import fsspec

    try:
        fs, path = fsspec.core.url_to_fs(url, **config.storage_options)
    except FileNotFoundError as error:
        raise SourceError(
            f"sources.{name}: {url} does not exist: {text_of(error)}; correct the path or put the data there"
        ) from error
    except (ValueError, ImportError) as error:
        raise SourceError(
            f"sources.{name}: cannot reach {url}: {text_of(error)}; install what fsspec needs for it"
        ) from None
    except Exception as error:
        if isinstance(error, OSError) and is_exhausted(error):
            raise too_many_open(error) from error
        raise SourceError(
            f"sources.{name}: cannot reach {url} ({type(error).__name__}: {text_of(error)}); correct the URL, its "
            "storage_options, or the file that it leads into"
        ) from error
    return fs, str(path)


def remote_files(name: str, url: str, config: ReaderConfig) -> Iterator[Found]:
    """Yield the files that a URL, or a pattern of one, leads to.

    Raises:
        SourceError: If it cannot be reached, whatever its store raises, or leads to no file.
    """
    fs, path = _reached(name, url, config)
    path = path.rstrip("/")
    infos: dict[str, Any] = {}
    root, is_named = posixpath.dirname(path), True
    with reading(url), reaching():
        if glob.has_magic(path) or len(expand_braces(path)) > 1:
            patterns = expand_braces(path)
            root = posixpath.commonpath([fixed_part(pattern) for pattern in patterns])
            for pattern in patterns:
                infos |= retried(lambda pattern=pattern: fs.glob(pattern, detail=True), url)  # type: ignore[misc]
        else:
            try:
                info = retried(lambda: fs.info(path), url)
            except FileNotFoundError:
                raise SourceError(
                    f"sources.{name}: {url} does not exist; correct the path or upload the data"
                ) from None
            if info["type"] == "directory":
                root, is_named = path, False
                infos = retried(lambda: fs.find(path, detail=True), url)
            else:
                infos = {path: info}
    files = {file: info for file, info in infos.items() if info["type"] != "directory"}
    if not files:
        raise SourceError(f"sources.{name}: {url} matches no file; correct the path, or end a glob in /**/*")
    for file, info in files.items():
        inside = posixpath.relpath(file, root) if root else file
        yield Found(root, inside, _url(url, fs, file), int(info.get("size") or 0), version_of_info(info), is_named)


def _url(pattern: str, fs: Any, path: str) -> str:
    """Return the URL of one file that a URL pattern led to; chained URLs keep their chain."""
    links = pattern.split("::")
    if len(links) == 1:
        return str(fs.unstrip_protocol(path))
    # `simplecache::zip://*.jsonl::file:///a.zip`: the first link with an address is the one that was listed.
    listed = next((number for number, link in enumerate(links) if "://" in link), len(links) - 1)
    protocol, colon, _ = links[listed].partition("://")
    has_protocol = not colon or path.startswith(f"{protocol}://")
    links[listed] = path if has_protocol else f"{protocol}://{path}"
    return "::".join(links)
