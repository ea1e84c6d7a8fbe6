"""Hundreds of odd and broken image files from Pillow's own tests: each loads as it should or fails with a reason."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from msd.core.sample import Outcome
from msd.loader.transforms.config import ImageConfig, TokenizeConfig
from msd.loader.transforms.decode import decode_image

CORPUS = Path(os.environ.get("MSD_REAL_CORPUS", "")) / "edge"
pytestmark = [
    pytest.mark.real_data,
    pytest.mark.skipif(not (CORPUS / "expected.json").is_file(), reason="MSD_REAL_CORPUS has no edge/expected.json"),
    # Pillow warns about what it mends in damaged files.
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(scope="module")
def images():
    expected = json.loads((CORPUS / "expected.json").read_text(encoding="utf-8"))
    return {name: facts for name, facts in expected.items() if name.startswith("images/")}


def is_readable(facts):
    return "pillow_error" not in facts and not facts.get("bomb")


def test_every_image_gives_a_sample_or_a_reason(images, make_chain):
    image = ImageConfig(field="image")
    chain = make_chain(image, TokenizeConfig(tokenizer="bytes"), length=4096)
    rows = [(number, {"image": (CORPUS / name).read_bytes(), "text": name}) for number, name in enumerate(images)]
    results = dict(zip(images, chain.apply(rows), strict=True))
    wrong = {
        name: result.reason
        for name, result in results.items()
        if (result.outcome is Outcome.OK) != is_readable(images[name])
    }
    assert wrong == {}
    assert len({result.outcome for result in results.values()}) == 2
    for result in results.values():
        if result.outcome is Outcome.FAILED:
            assert result.reason.startswith("BadImage: ")
            assert "\n" not in result.reason
        else:
            _, grid_h, grid_w = result.samples[0].images.grids_I3[0].tolist()
            assert result.samples[0].num_image_tokens == grid_h * grid_w // 4 > 0
            assert grid_h * grid_w * 14 * 14 <= image.max_pixels


def test_every_readable_image_is_upright_and_of_its_own_size(images):
    wrong = {}
    for name, facts in images.items():
        if is_readable(facts):
            width, height = facts["size"]
            # Of TIFF files Pillow tells the size as turned.
            is_turned = (facts["orientation"] or 1) >= 5 and facts["format"] != "TIFF"
            upright = (height, width) if is_turned else (width, height)
            found = decode_image((CORPUS / name).read_bytes(), max_pixels=10**8)
            if (found.size, found.mode) != (upright, "RGB"):
                wrong[name] = (found.size, found.mode, facts)
    assert wrong == {}


def test_the_eight_orientations_of_one_scan_are_one_image():
    names = [f"images/g4_orientation_{orientation}.tif" for orientation in range(1, 9)]
    found = [np.asarray(decode_image((CORPUS / name).read_bytes(), max_pixels=10**8)).astype(int) for name in names]
    # They were scanned apart, so a few pixels differ; one that lies on its side or head differs in many.
    differences = [np.abs(image - found[0]).mean() for image in found]
    assert max(differences) < 1
    assert np.abs(found[0][::-1] - found[0]).mean() > 2
