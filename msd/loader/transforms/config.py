"""What may happen to a row on its way to a sample. Each kind is a struct; `kind` says which."""

import os
from typing import Any, Literal

import msgspec

from msd.core.checks import check_range, own_path
from msd.core.config import ConfigStruct
from msd.errors import ConfigError

_MAX_ID = (1 << 31) - 1
"""Token ids are int32."""
_MAX_PIXELS = 1 << 40


class TransformStruct(ConfigStruct, frozen=True, kw_only=True, tag_field="kind"):
    """Common base of the transforms."""


class TokenizingStruct(TransformStruct, frozen=True, kw_only=True):
    """Common base of the transforms that need a tokenizer.

    Truncation, padding and template of a `tokenizer.json` are not applied: what begins and ends a document is said
    here. Special tokens spelled out in a text become their ids.
    """

    tokenizer: str
    """Path of a `tokenizer.json`, or `bytes` for the built-in tokenizer of UTF-8 bytes (259 ids)."""
    field: str
    append_eos: bool = False
    prepend_bos: bool = False
    eos_token: str | None = None
    """Null finds it: `<|endoftext|>`, `</s>`, `<eos>`, `<|end_of_text|>`, `<|im_end|>`, in that order."""
    bos_token: str | None = None

    def __post_init__(self) -> None:
        if self.tokenizer != "bytes":
            msgspec.structs.force_setattr(self, "tokenizer", own_path(self.tokenizer, name="tokenizer"))


class TokenizeConfig(TokenizingStruct, frozen=True, kw_only=True, tag="tokenize"):
    """Text to token ids, appended to those that earlier transforms made."""

    field: str = "text"
    trained: bool = True
    """False: these tokens are context, never a target (a prompt)."""


class TurnConfig(ConfigStruct, frozen=True, kw_only=True):
    """What stands around the content of a turn."""

    prefix: str = ""
    """Says who speaks; never learned."""
    suffix: str = ""
    """Ends the turn; learned where the turn is, so that the model learns to end."""
    separator: str = ""
    """Stands between this turn and the next; never learned."""


USUAL_ROLES = {"human": "user", "gpt": "assistant"}
"""Names of data in the form of ShareGPT."""


class ChatConfig(TokenizingStruct, frozen=True, kw_only=True, tag="chat"):
    """Conversations to token ids, with a mask that says which turns are learned; appended to earlier tokens.

    A message is `{role, content}` or `{from, value}`; its content is text, or a list of parts with text in them.
    """

    field: str = "messages"
    template: Literal["chatml"] | dict[str, TurnConfig] = "chatml"
    """What stands around a turn, by role."""
    roles: dict[str, str] = msgspec.field(default_factory=lambda: dict(USUAL_ROLES))
    """Names in the data to roles of the template."""
    trained: list[str] = msgspec.field(default_factory=lambda: ["assistant"])
    """Roles whose turns are learned; the others are context."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.trained:
            raise ConfigError("chat trained is empty, so nothing would be learned; name a role, such as assistant")
        if not self.template:
            raise ConfigError("chat template is empty; use chatml, or give prefix and suffix for every role")


class TokensConfig(TransformStruct, frozen=True, kw_only=True, tag="tokens"):
    """Pre-tokenised rows: a list or array of ids."""

    field: str = "ids"
    mask: str | None = None
    """Field with one number per token: 0 where the token is context only."""
    append_eos_id: int | None = None

    def __post_init__(self) -> None:
        if self.append_eos_id is not None:
            check_range("tokens append_eos_id", self.append_eos_id, 0, _MAX_ID)


class ImageConfig(TransformStruct, frozen=True, kw_only=True, tag="image"):
    """Encoded images to patches, with placeholders before the text."""

    field: str = "jpg"
    """One image or a list of them; bytes, a path, or a mapping with `bytes`."""
    patch: int = 14
    merge: int = 2
    """One placeholder stands for merge * merge patches."""
    max_pixels: int = 200704
    """Largest area after resizing; always holds. Sides become multiples of patch * merge, near the aspect ratio."""
    min_pixels: int = 784
    """Smallest area after resizing, as far as whole patches and `max_pixels` allow."""
    frames: int = 1
    """Of an animation (WebP, GIF, APNG), at most so many frames, evenly spaced from the first one on; each becomes an
    image of its own."""
    image_token: str | int | None = None
    """Token text or id; null looks for `<|image|>`, then `<|image_pad|>` in the source's tokenizer, else takes the
    first id after the vocabulary."""
    bomb_pixels: int = 178_956_970
    """An image that claims more pixels than this is refused before it is decoded."""
    on_missing: Literal["fail", "skip"] = "fail"
    """A row without the field: a failure, or a sample of text alone."""
    folder: str | None = None
    """That paths in rows are relative to and may not lead out of. Null takes any path, from the working directory."""

    def __post_init__(self) -> None:
        if self.folder is not None:
            folder = os.path.abspath(own_path(self.folder, name="image folder"))
            msgspec.structs.force_setattr(self, "folder", folder)
        if self.patch < 1 or self.merge < 1:
            raise ConfigError(f"image patch and merge must be at least 1, got patch={self.patch}, merge={self.merge}")
        check_range("image patch", self.patch, 1, 1 << 16)
        check_range("image merge", self.merge, 1, 1 << 16)
        check_range("image frames", self.frames, 1, 1 << 16)
        check_range("image min_pixels", self.min_pixels, 0, _MAX_PIXELS)
        check_range("image bomb_pixels", self.bomb_pixels, 1, _MAX_PIXELS)
        if self.max_pixels < (self.patch * self.merge) ** 2:
            raise ConfigError(
                f"image max_pixels {self.max_pixels} is below one merged patch of {(self.patch * self.merge) ** 2} "
                "pixels; raise max_pixels"
            )
        check_range("image max_pixels", self.max_pixels, 1, _MAX_PIXELS)


class ChunkConfig(TransformStruct, frozen=True, kw_only=True, tag="chunk"):
    """Cut a long text or token sequence into several samples."""

    size: int
    """Units of a chunk."""
    overlap: int = 0
    unit: Literal["tokens", "characters"] = "tokens"
    """tokens cuts `input_ids` (after tokenize); characters cuts `field` (before it)."""
    field: str = "text"

    def __post_init__(self) -> None:
        if self.size < 1 or not 0 <= self.overlap < self.size:
            raise ConfigError(
                f"chunk needs size >= 1 and 0 <= overlap < size, got size={self.size}, overlap={self.overlap}"
            )


class FilterConfig(TransformStruct, frozen=True, kw_only=True, tag="filter"):
    """Keep a sample only if every condition given holds; what is left out is counted, not failed."""

    field: str = "text"
    min_length: int | None = None
    """Smallest length of the field: characters, bytes or items."""
    max_length: int | None = None
    equals: Any = None
    one_of: list[Any] | None = None
    matches: str | None = None
    """Regular expression found somewhere in the field."""
    at_least: float | None = None
    """Smallest number."""
    at_most: float | None = None
    function: Any = None
    """Function of the sample that returns true to keep it, or its dotted path."""

    def __post_init__(self) -> None:
        for low, high in (("min_length", "max_length"), ("at_least", "at_most")):
            smallest, largest = getattr(self, low), getattr(self, high)
            for name, value in ((low, smallest), (high, largest)):
                if value is not None and (value != value or ("length" in name and value < 0)):
                    raise ConfigError(
                        f"filter {name} must be a number{', 0 or more' if 'len' in name else ''}, got {value}"
                    )
            if smallest is not None and largest is not None and smallest > largest:
                raise ConfigError(f"filter {low} {smallest} lies above {high} {largest}, so nothing passes; swap them")


class SelectConfig(TransformStruct, frozen=True, kw_only=True, tag="select"):
    """Keep these fields only; a mapping from new names to old ones renames them as well."""

    fields: list[str] | dict[str, str]


class FunctionConfig(TransformStruct, frozen=True, kw_only=True, tag="function"):
    """A function `(sample, rng) -> sample | None | list of samples`; also one that takes the sample alone.

    The sample is a copy. `input_ids` that earlier transforms made are an int32 array. To give the same each time, draw
    from `rng` only: it belongs to this row of this source, whoever computes it and whenever.
    """

    function: Any
    """Dotted path `package.module:function`, or the function itself from Python."""
    options: dict[str, Any] = {}
    """Further keyword arguments."""
    version: str = ""
    """Part of the run's identity: change it when the function's meaning changes."""


TransformConfig = (
    TokenizeConfig
    | ChatConfig
    | TokensConfig
    | ImageConfig
    | ChunkConfig
    | FilterConfig
    | SelectConfig
    | FunctionConfig
)
