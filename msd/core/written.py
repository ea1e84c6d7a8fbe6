"""What a folder of packed sequences says of itself: a run that reads it back must agree with it."""

from dataclasses import dataclass, replace

MANIFEST = "manifest.json"
"""Lists the files of a folder that batch mode wrote; the folder is finished once it is there."""
RUN = "run.json"
"""What a folder is being filled with; the manifest takes its place."""
FOLDER_VERSION = 2
"""Raised when what is written would be read otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenImages:
    """How the images of a folder were cut, and what stands for them."""

    patch: int
    """Pixels of a patch's side."""
    merge: int
    """One placeholder stands for merge * merge patches."""
    image_token: int
    """Placeholder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A folder of packed sequences: each row is a whole sequence with the documents that it holds."""

    sequence_length: int
    document_multiple: int
    """Each document's extent in its sequence is its length rounded up to this."""
    num_buckets: int
    """Of the mesh that it was written for."""
    num_microbatches: int
    sequences_per_step: int | None
    """Rows of a step; None where steps are of several sizes, or rows no longer come in the order of the steps."""
    tokenizers: tuple[str, ...]
    """Digests of those that made its tokens; none where the rows came with ids."""
    images: WrittenImages | None
    fingerprint: str
    """Of its settings and its files: the same for the same content."""

    @property
    def without_steps(self) -> "Written":
        """The same, where rows no longer come in the order of the steps."""
        return replace(self, sequences_per_step=None)
