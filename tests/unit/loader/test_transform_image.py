import errno
import io
import os
import struct
import warnings
import zlib

import numpy as np
import pytest
from PIL import Image

from msd.core.sample import Outcome
from msd.errors import ConfigError, EngineError, SourceError
from msd.loader.transforms.config import ChunkConfig, FunctionConfig, ImageConfig, TokenizeConfig, TokensConfig
from msd.loader.transforms.decode import decode_frames, decode_image
from msd.loader.transforms.image import ImageStep

TEXT = TokenizeConfig(tokenizer="bytes", field="txt")
IMAGE = ImageConfig(patch=2, merge=2, min_pixels=16, max_pixels=4096)
PLENTY = 10**8


def encoded(image, kind="PNG", **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def pixels_of(stored):
    return np.asarray(decode_image(stored, max_pixels=PLENTY))


def gradient(height=12, width=20):
    rows, columns = np.mgrid[0:height, 0:width]
    return np.stack([rows * 9, columns * 11, (rows + columns) * 5], axis=-1).astype(np.uint8)


def png_claiming(width, height, data=b""):
    def chunk(name, body):
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def test_placeholders_come_before_the_text_and_stand_for_groups_of_patches(apply_to):
    row = {"jpg": encoded(Image.fromarray(gradient(8, 12))), "txt": "hi"}
    (sample,) = apply_to(row, IMAGE, TEXT).samples
    assert sample.tokens_T.tolist() == [258] * 6 + [104, 105]
    assert sample.num_image_tokens == 6
    assert sample.images.grids_I3.tolist() == [[1, 4, 6]]
    assert sample.images.pixels_PF.shape == (24, 12)
    assert sample.images.pixels_PF.dtype == np.uint8
    assert sample.images.pixels_PF[0].tolist() == gradient(8, 12)[:2, :2].reshape(-1).tolist()
    assert sample.trained_T is None


def test_several_images_have_runs_that_follow_one_another(apply_to):
    small, large = (encoded(Image.fromarray(gradient(*size))) for size in ((4, 4), (8, 4)))
    row = {"jpg": [small, {"bytes": large, "path": None}], "more": small, "txt": "a"}
    (sample,) = apply_to(row, IMAGE, ImageConfig(patch=2, merge=2, min_pixels=16, field="more"), TEXT).samples
    assert sample.tokens_T.tolist() == [258] * 4 + [97]
    assert sample.images.starts_I.tolist() == [0, 1, 3]
    assert sample.images.grids_I3.tolist() == [[1, 2, 2], [1, 4, 2], [1, 2, 2]]
    assert len(sample.images.pixels_PF) == 16


def test_a_prompt_that_is_not_learned_keeps_its_mask_behind_the_placeholders(apply_to):
    row = {"jpg": encoded(Image.fromarray(gradient(4, 4))), "txt": "ab", "a": "c"}
    prompt = TokenizeConfig(tokenizer="bytes", field="txt", trained=False)
    (sample,) = apply_to(row, IMAGE, prompt, TokenizeConfig(tokenizer="bytes", field="a")).samples
    assert sample.tokens_T.tolist() == [258, 97, 98, 99]
    assert sample.trained_T.tolist() == [0, 0, 0, 1]


def test_a_mask_that_learns_all_of_the_text_is_no_mask(apply_to):
    row = {"jpg": encoded(Image.fromarray(gradient(4, 4))), "ids": [1, 2], "m": [1, 1]}
    image = ImageConfig(patch=2, merge=2, min_pixels=16, image_token=9)
    assert apply_to(row, image, TokensConfig(mask="m")).samples[0].trained_T is None


def test_of_the_chunks_of_a_row_the_first_has_its_images(apply_to):
    row = {"jpg": encoded(Image.fromarray(gradient(4, 4))), "txt": "abc"}
    first, second = apply_to(row, IMAGE, TEXT, ChunkConfig(size=2)).samples
    assert (first.tokens_T.tolist(), first.num_image_tokens) == ([258, 97, 98], 1)
    assert (second.tokens_T.tolist(), second.images) == ([99], None)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_exif_orientation_is_turned_upright(orientation):
    upright = gradient()
    undo = {2: np.fliplr, 3: lambda a: np.rot90(a, 2), 4: np.flipud, 5: lambda a: a.transpose(1, 0, 2)}
    undo |= {6: lambda a: np.rot90(a, 1), 7: lambda a: np.rot90(a, 2).transpose(1, 0, 2), 8: lambda a: np.rot90(a, 3)}
    stored = Image.fromarray(np.ascontiguousarray(undo.get(orientation, lambda a: a)(upright)))
    exif = Image.Exif()
    exif[0x0112] = orientation
    for kind in ("PNG", "TIFF", "WEBP"):
        options = {"lossless": True} if kind == "WEBP" else {}
        assert np.array_equal(pixels_of(encoded(stored, kind, exif=exif.tobytes(), **options)), upright), kind


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_a_damaged_exif_block_leaves_the_pixels_usable():
    stored = encoded(Image.fromarray(gradient()), "JPEG", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff", quality=95)
    assert pixels_of(stored).shape == (12, 20, 3)


@pytest.mark.parametrize(
    ("kind", "mode"),
    [(kind, mode) for kind in ("PNG", "TIFF", "BMP", "GIF") for mode in ("1", "L", "P", "RGB")]
    + [("JPEG", mode) for mode in ("L", "RGB", "CMYK", "YCbCr")]
    + [("TIFF", mode) for mode in ("CMYK", "YCbCr")],
)
def test_every_opaque_mode_becomes_rgb(kind, mode):
    image = Image.fromarray(np.full((6, 5, 3), 200, dtype=np.uint8))
    image = image.quantize() if mode == "P" else image.convert(mode)
    pixels = pixels_of(encoded(image, kind))
    assert pixels.shape == (6, 5, 3)
    assert set(np.unique(pixels)) == {0, 255} if mode == "1" else np.abs(pixels.astype(int) - 200).max() <= 3


def test_inverted_cmyk_of_adobe_is_read_as_it_was_meant():
    image = Image.new("CMYK", (8, 8), (0, 255, 255, 0))
    assert pixels_of(encoded(image, "JPEG", quality=95))[4, 4].tolist() == pytest.approx([255, 0, 0], abs=12)


@pytest.mark.parametrize(
    ("image", "seen"),
    [
        (Image.new("RGBA", (4, 4), (255, 0, 0, 0)), [255, 255, 255]),
        (Image.new("RGBA", (4, 4), (255, 0, 0, 255)), [255, 0, 0]),
        (Image.new("RGBA", (4, 4), (0, 0, 0, 128)), [127, 127, 127]),
        (Image.new("LA", (4, 4), (0, 0)), [255, 255, 255]),
        (Image.new("LA", (4, 4), (80, 255)), [80, 80, 80]),
    ],
)
def test_what_is_transparent_lies_on_white(image, seen):
    assert pixels_of(encoded(image))[2, 2].tolist() == seen


@pytest.mark.parametrize(
    ("image", "key"),
    [
        (Image.new("RGB", (4, 4), (9, 8, 7)).quantize(), 0),
        (Image.new("L", (4, 4), 7), 7),
        (Image.new("RGB", (4, 4), (1, 2, 3)), (1, 2, 3)),
    ],
)
def test_a_transparent_colour_lies_on_white(image, key):
    assert pixels_of(encoded(image))[0, 0].tolist() != [255, 255, 255]
    assert pixels_of(encoded(image, transparency=key))[0, 0].tolist() == [255, 255, 255]


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM"])
def test_sixteen_bit_grey_keeps_its_high_byte(kind):
    grey = Image.fromarray(np.array([[0, 255], [256, 65535]], dtype=np.uint16))
    assert pixels_of(encoded(grey, kind))[..., 0].tolist() == [[0, 0], [1, 255]]


def test_float_grey_is_cut_to_the_range_of_a_byte():
    grey = Image.fromarray(np.array([[-4.0, 7.9], [np.nan, 1e9]], dtype=np.float32))
    assert pixels_of(encoded(grey, "TIFF"))[..., 1].tolist() == [[0, 7], [0, 255]]


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
def test_the_first_frame_stands_for_an_animation(kind):
    frames = [Image.new("RGB", (6, 6), colour) for colour in ("red", "blue")]
    options = {"lossless": True} if kind == "WEBP" else {}
    stored = encoded(frames[0], kind, save_all=True, append_images=frames[1:], **options)
    assert pixels_of(stored)[3, 3].tolist() == [255, 0, 0]


def animation(colours, kind="WEBP"):
    first, *others = (Image.new("RGB", (8, 8), colour) for colour in colours)
    return encoded(first, kind, save_all=True, append_images=others, lossless=True)


@pytest.mark.parametrize("kind", ["WEBP", "PNG"])
@pytest.mark.parametrize(
    ("frames", "seen"),
    [(1, [0]), (2, [0, 30]), (3, [0, 20, 40]), (6, [0, 10, 20, 30, 40, 50]), (100, [0, 10, 20, 30, 40, 50])],
)
def test_frames_of_an_animation_are_evenly_spaced_and_no_more_than_there_are(kind, frames, seen):
    stored = animation([(10 * number, 0, 0) for number in range(6)], kind)
    found = decode_frames(stored, max_pixels=100, frames=frames)
    assert [int(np.asarray(image)[0, 0, 0]) for image in found] == seen


def test_each_frame_is_an_image_with_placeholders_of_its_own(apply_to):
    stored = animation([(50, 0, 0), (0, 90, 0), (0, 0, 130)])
    how = {"field": "webp", "patch": 4, "merge": 2, "min_pixels": 16, "image_token": 9}
    row = {"webp": stored, "ids": [1, 2]}
    (still,) = apply_to(row, ImageConfig(**how), TokensConfig()).samples
    (moving,) = apply_to(row, ImageConfig(**how, frames=2), TokensConfig()).samples
    assert still.tokens_T.tolist() == [9, 1, 2]
    assert moving.tokens_T.tolist() == [9, 9, 1, 2]
    assert len(moving.images.grids_I3) == 2


def test_an_animation_that_ends_early_fails_with_a_reason(apply_to):
    stored = animation([(number, number, 0) for number in range(0, 200, 5)])
    result = apply_to(
        {"webp": stored[: len(stored) // 2], "ids": [1]},
        ImageConfig(field="webp", frames=50, image_token=9),
        TokensConfig(),
    )
    assert "cannot be decoded" in result.reason or "broken header" in result.reason


def test_taking_frames_is_another_content_and_taking_one_is_what_it_was():
    def identity(**changes):
        return ImageStep(ImageConfig(**changes), after=False).identity()

    assert "frames" not in identity()
    assert identity(frames=4)["frames"] == 4


def test_an_image_may_be_a_path_or_a_pillow_image(tmp_path):
    image = Image.fromarray(gradient())
    (tmp_path / "a.png").write_bytes(encoded(image))
    for stored in (str(tmp_path / "a.png"), {"path": str(tmp_path / "a.png"), "bytes": None}, image):
        assert np.array_equal(pixels_of(stored), gradient())


def cut(stored):
    return stored[: len(stored) // 2]


@pytest.mark.parametrize(
    ("stored", "reason"),
    [
        (b"", "BadImage: 0 bytes"),
        (b"\xff", "BadImage: 1 bytes that begin with ff are no image"),
        (b"P", "no image of a known format"),
        (b"<svg></svg>" * 9, "no image of a known format"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "no image of a known format"),
        (cut(encoded(Image.fromarray(gradient(64, 64)), "JPEG")), "JPEG image of"),
        (cut(encoded(Image.fromarray(gradient(64, 64)))), "PNG image of"),
        (cut(encoded(Image.fromarray(gradient(64, 64)), "WEBP")), "WEBP image of"),
        (encoded(Image.fromarray(gradient()), "JPEG")[:12], "broken header"),
        (png_claiming(60_000, 60_000), "claims 60000 x 60000 pixels, above bomb_pixels"),
        (5, "WrongType: an image must be bytes, a path or a mapping with bytes, got int"),
        ({"href": "x"}, "WrongType: an image mapping needs bytes or path, got keys ['href']"),
        ("nowhere/at/all.jpg", "FileNotFoundError"),
        (None, "MissingField: no image in field 'jpg'; this row has 'jpg', 'txt'"),
    ],
)
def test_what_is_no_image_fails_with_a_reason(apply_to, stored, reason):
    """Answers DA-2."""
    result = apply_to({"jpg": stored, "txt": "x"}, IMAGE, TEXT)
    assert result.outcome is Outcome.FAILED
    assert reason in result.reason
    assert result.reason.endswith("(in transform 0 image)")
    assert "\n" not in result.reason
    assert "0x" not in result.reason


def test_large_images_are_refused_or_not_by_our_bound_and_never_by_warning(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    stored = encoded(Image.fromarray(gradient(12, 20)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert decode_image(stored, max_pixels=240).size == (20, 12)
        with pytest.raises(Exception, match="claims 20 x 12 pixels, above bomb_pixels 239"):
            decode_image(stored, max_pixels=239)


def test_the_bad_one_of_several_images_is_named(apply_to):
    good = encoded(Image.fromarray(gradient()))
    assert "BadImage: image 1 of 2: 0 bytes" in apply_to({"jpg": [good, b""], "txt": "x"}, IMAGE, TEXT).reason


def test_a_row_without_an_image_may_be_text_alone(apply_to):
    step = ImageConfig(patch=2, merge=2, on_missing="skip")
    (sample,) = apply_to({"txt": "a"}, step, TEXT).samples
    assert sample.images is None
    assert sample.tokens_T.tolist() == [97]


def test_a_column_named_images_is_not_taken_for_patches(apply_to):
    row = {"jpg": encoded(Image.fromarray(gradient(4, 4))), "images": [b"raw"], "txt": "a"}
    assert apply_to(row, IMAGE, TEXT).samples[0].num_image_tokens == 1
    assert apply_to(row, TEXT).samples[0].images is None


def test_a_function_that_replaces_the_patches_fails_the_row(apply_to):
    spoil = FunctionConfig(function=lambda sample: {**sample, "images": [b"raw"]})
    result = apply_to({"jpg": encoded(Image.fromarray(gradient())), "txt": "a"}, IMAGE, spoil, TEXT)
    assert "WrongType: images must be the list that the image transform made" in result.reason


def test_text_that_spells_the_placeholder_is_refused(apply_to, word_tokenizer):
    row = {"jpg": encoded(Image.fromarray(gradient(4, 4))), "txt": "cat <|image|>"}
    result = apply_to(row, IMAGE, TokenizeConfig(tokenizer=word_tokenizer, field="txt"))
    assert "BadTokens: the text holds the image token 10" in result.reason


def test_the_placeholder_is_looked_up_when_the_chain_is_built(make_chain, word_tokenizer):
    words = TokenizeConfig(tokenizer=word_tokenizer)
    assert make_chain(ImageConfig(), words).image_token == 10
    assert make_chain(ImageConfig(image_token="mat"), words).image_token == 5
    assert make_chain(ImageConfig(image_token=99), words).image_token == 99
    assert make_chain(ImageConfig(image_token=7), TokensConfig()).image_token == 7
    assert make_chain(ImageConfig(), TokenizeConfig(tokenizer="bytes")).image_token == 258
    assert make_chain(words).image_token is None


@pytest.mark.parametrize(
    ("transforms", "message"),
    [
        ([ImageConfig(image_token="<image>"), TEXT], "'<image>' is not in the tokenizer's vocabulary"),
        ([ImageConfig(image_token=-1), TEXT], r"image_token must lie in \[0, 2\^31\), got -1"),
        ([ImageConfig(), TokensConfig()], "needs image_token as an id"),
        ([ImageConfig(patch=14), ImageConfig(patch=16), TEXT], "different patch: 14 and 16"),
    ],
)
def test_a_placeholder_or_geometry_that_cannot_be_is_refused(make_chain, transforms, message):
    with pytest.raises(ConfigError, match=message):
        make_chain(*transforms)


def test_the_vocabulary_covers_text_and_placeholders(make_chain, word_tokenizer):
    assert make_chain(TokenizeConfig(tokenizer="bytes")).vocab_size == 259
    assert make_chain(ImageConfig(), TokenizeConfig(tokenizer="bytes")).vocab_size == 259
    assert make_chain(TokenizeConfig(tokenizer=word_tokenizer)).vocab_size == 11
    assert make_chain(ImageConfig(image_token=40), TokenizeConfig(tokenizer=word_tokenizer)).vocab_size == 41
    assert make_chain(TokensConfig()).vocab_size is None


def opening(monkeypatch, *errors):
    """Let the next opens of a file fail, and return the waits between tries."""
    waits, left, original = [], list(errors), os.open

    def flaky(path, flags, *more):
        if str(path).endswith(".png") and left:
            raise left.pop(0)
        return original(path, flags, *more)

    monkeypatch.setattr(os, "open", flaky)
    monkeypatch.setattr("msd.sources.remote.time.sleep", waits.append)
    return waits


def test_a_path_that_cannot_be_reached_for_a_moment_is_tried_again(tmp_path, monkeypatch):
    (tmp_path / "a.png").write_bytes(encoded(Image.fromarray(gradient())))
    waits = opening(monkeypatch, OSError(errno.EIO, "I/O error"), OSError(errno.ESTALE, "Stale file handle"))
    assert (pixels_of(str(tmp_path / "a.png")) == gradient()).all()
    assert len(waits) == 2


def test_a_path_that_stays_out_of_reach_ends_the_run_and_fails_no_row(make_chain, tmp_path, monkeypatch):
    (tmp_path / "a.png").write_bytes(encoded(Image.fromarray(gradient())))
    waits = opening(monkeypatch, *[OSError(errno.EIO, "I/O error")] * 9)
    rows = [(0, {"jpg": str(tmp_path / "a.png"), "txt": "a"})]
    with pytest.raises(SourceError, match=r"sources\.web\.transforms\[0\] image: .*a\.png cannot be read .*tried 4"):
        make_chain(IMAGE, TEXT).apply(rows)
    assert len(waits) == 3


def test_a_process_without_descriptors_ends_the_run_and_fails_no_row(make_chain, tmp_path, monkeypatch):
    opening(monkeypatch, *[OSError(errno.EMFILE, "Too many open files")] * 9)
    with pytest.raises(EngineError, match="ulimit -n"):
        make_chain(IMAGE, TEXT).apply([(0, {"jpg": str(tmp_path / "a.png"), "txt": "a"})])


def test_a_path_that_is_wrong_fails_its_row_at_once(apply_to, tmp_path, monkeypatch):
    waits = opening(monkeypatch)
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "self.png").symlink_to("self.png")
    for path, reason in (
        (tmp_path / "gone.png", "FileNotFoundError"),
        (tmp_path, "IsADirectoryError"),
        (tmp_path / ("x" * 300), "OSError: [Errno 36]"),
        (tmp_path / "self.png", "OSError: [Errno 40]"),
        (tmp_path / "pipe.png", "WrongType"),
        ("/dev/zero", "WrongType: /dev/zero is not a regular file"),
        ("a\0b", "ValueError"),
    ):
        result = apply_to({"jpg": str(path), "txt": "a"}, IMAGE, TEXT)
        assert result.outcome is Outcome.FAILED
        assert result.reason.startswith(reason)
    assert not waits
