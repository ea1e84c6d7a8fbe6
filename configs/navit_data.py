"""Write `navit_data.yaml`: 306 sources of stated laws in nine families.

python configs/navit_data.py > configs/navit_data.yaml
"""

import math
import sys

from msd.core.seeds import raw_words

FAMILIES = {
    # name: (sources, median rows, median and sigma of text, median and sigma or mean of images, side, what it is like)
    "caption": (90, 40_000, (24, 0.8), 1, (420, 0.5), "an image and a line"),
    "recaption": (40, 20_000, (140, 0.7), 1, (500, 0.5), "an image and a paragraph"),
    "ocr": (44, 12_000, (300, 1.1), 1, (760, 0.4), "a page and its text"),
    "chart": (30, 6_000, (90, 0.9), 1, (560, 0.3), "a chart with questions"),
    "grounding": (22, 8_000, (60, 0.8), 1, (480, 0.4), "an image with regions"),
    "interleaved": (26, 8_000, (600, 1.6), (2.0, 0.9), (420, 0.5), "a web page with its images"),
    "video": (18, 3_000, (120, 1.0), (6.0, 0.4), (300, 0.2), "frames of a clip"),
    "chat": (20, 5_000, (350, 1.0), 0.6, (480, 0.5), "a conversation, often on an image"),
    "text": (16, 30_000, (500, 1.8), 0, (448, 0.5), "documents"),
}
HEAD = """\
# 306 sources like NaViT's data, without it: rows follow stated laws, one line a source, written by navit_data.py.
#
# Rows, medians and sigmas vary within a family: a long tail of small sources, some with texts many times as
# long as others'. text: [median tokens, sigma], images: a mean, or [median, sigma]; side: [median pixels, sigma].
seed: 17

sources:
"""
TAIL = """\

mixture:
  unit: tokens
  mode: temperature                 # shares go with the square root of the rows, so that small sources are seen
  temperature: 2

batch:
  sequence_length: 8192
  global_batch_size: 256

# 1,024 ranks.
mesh: {pp: 4, dp: 32, cp: 2, tp: 4}
num_microbatches: 8
cost:
  backbone: {kind: transformer, hidden: 4608, layers: 45, heads: 36, ffn: 12288, gated: true, vocab: 32000}
  encoder: {kind: transformer, hidden: 1664, layers: 48, heads: 16, ffn: 8192, causal: false}
"""
FIRST = """\
  {name}:
    format: msd.testing.synthetic:HeavyTailed
    options: {options}
    transforms:
      - {{kind: image, field: none, on_missing: skip, image_token: 151655}}
      - {{kind: function, function: "msd.testing.synthetic:blank"}}
"""


def main() -> None:
    """Print the configuration."""
    lines = []
    for family, (count, *law, meaning) in FAMILIES.items():
        lines.append(f"  # {family}: {meaning}\n")
        lines += [
            _source(f"{family}_{number:02}", *law, is_first=not number and not lines[1:]) for number in range(count)
        ]
    sys.stdout.write(HEAD + "".join(lines) + TAIL)


def _source(name, rows, text, images, side, *, is_first):
    few, long, wide = (1 / 256 + (word >> 56) / 256 for word in raw_words(3, "navit", name).tolist())
    options = (
        f"{{name: {name}, rows: {round(rows * math.exp(2.0 * (few - 0.5) * 2)):d}, "
        f"text: [{round(text[0] * math.exp(long - 0.5)):d}, {text[1] + 0.4 * (long - 0.5):.2f}], "
        f"images: {list(images) if isinstance(images, tuple) else images}, "
        f"side: [{round(side[0] * math.exp(0.6 * (wide - 0.5))):d}, {side[1]}]}}"
    )
    if is_first:
        anchor = FIRST.format(name=name, options=options)
        return anchor.replace(f"  {name}:\n", f"  {name}: &made\n", 1)
    return f"  {name}: {{<<: *made, options: {options}}}\n"


if __name__ == "__main__":
    main()
