"""The corpus's tokenizer, and `corpus.yaml`: a ready configuration over everything that was made."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

VOCABULARY = 4096
END_OF_TEXT = "<|endoftext|>"
IMAGE = "<|image|>"
PATCH, MERGE, MAX_PIXELS = 14, 2, 200_704

_CONFIGURATION = """\
# A ready configuration over the corpus beside this file; paths are relative to it.
#   msd validate corpus.yaml · msd index corpus.yaml · msd plan corpus.yaml --steps 20 · msd preview corpus.yaml

seed: {seed}                 # the order of every sample is a function of this file and this number

sources:
  code:                       # Python of the standard library, a file a row; long files become several samples
    format: parquet
    path: code/*.parquet
    transforms:
      - {{kind: tokenize, tokenizer: tokenizer.json, field: text, append_eos: true}}
  docstrings:                 # Zstandard of several frames: each frame can be entered at random
    format: jsonl
    path: docstrings/*.jsonl.zst
    transforms:
      - {{kind: tokenize, tokenizer: tokenizer.json, field: text, append_eos: true}}
  docs:                       # plain JSON lines
    format: jsonl
    path: docs/*.jsonl
    transforms:
      - {{kind: tokenize, tokenizer: tokenizer.json, field: text, append_eos: true}}
  descriptions:               # gzip: a stream; `msd index --seekable` rewrites such files into frames
    format: jsonl
    path: descriptions/*.jsonl.gz
    transforms:
      - {{kind: tokenize, tokenizer: tokenizer.json, field: text, append_eos: true}}
  photos:                     # WebDataset: KEY.jpg and KEY.txt are one row
    format: webdataset
    path: photos/*.tar
    transforms:
      - {{kind: image, field: jpg, patch: {patch}, merge: {merge}, max_pixels: {max_pixels}}}
      - {{kind: tokenize, tokenizer: tokenizer.json, field: txt, append_eos: true}}

mixture:
  unit: tokens                # what a weight counts; image placeholders are tokens
  weights: {{code: 0.35, docstrings: 0.2, docs: 0.15, descriptions: 0.1, photos: 0.2}}

batch:
  sequence_length: 1024
  global_batch_size: 16       # sequences per optimizer step, over all ranks
  packing: {{method: best_fit}} # or concat (cuts documents), none (one document a sequence)

mesh: {{dp: 2}}                 # two data-parallel ranks ...
num_microbatches: 2           # ... of two microbatches a step: rows of 16 / (2 * 2) = 4 sequences

cost:                         # what balancing evens out: FLOPs of a small transformer and of its image encoder
  backbone: {{kind: transformer, hidden: 256, layers: 4, heads: 4, vocab: {vocabulary}}}
  encoder: {{kind: transformer, hidden: 128, layers: 2, heads: 2, causal: false}}

runtime: {{kind: local}}
"""


_FRAMES = """\
# A configuration whose sources cost from microseconds to tenths of a second a row; paths are relative to this file.
#   msd profile frames.yaml · msd partition frames.yaml · msd plan frames.yaml --steps 20

seed: {seed}

sources:
  docs:                       # text: tens of microseconds
    format: jsonl
    path: docs/*.jsonl
    transforms:
      - {{kind: tokenize, tokenizer: tokenizer.json, field: text, append_eos: true}}
  photos:                     # photographs: milliseconds
    format: webdataset
    path: photos/*.tar
    transforms:
      - {{kind: image, field: jpg, patch: {patch}, merge: {merge}, max_pixels: {max_pixels}}}
      - {{kind: tokenize, tokenizer: tokenizer.json, field: txt, append_eos: true}}
  frames:                     # animations, of which at most eight frames are taken: tens of milliseconds
    format: webdataset
    path: frames/*.tar
    transforms:
      - {{kind: image, field: webp, patch: {patch}, merge: {merge}, max_pixels: {max_pixels}, frames: 8}}
      - {{kind: tokenize, tokenizer: tokenizer.json, field: txt, append_eos: true}}

mixture: {{unit: samples, weights: {{docs: 0.6, photos: 0.3, frames: 0.1}}}}
batch: {{sequence_length: 1024, global_batch_size: 16}}
mesh: {{dp: 2}}
num_microbatches: 2
"""

_CONFIGURATIONS = {"corpus": _CONFIGURATION, "frames": _FRAMES}


def configuration(seed: int, vocabulary: int, *, name: str = "corpus") -> str:
    """Return the text of `corpus.yaml`, or of `frames.yaml`."""
    return _CONFIGURATIONS[name].format(
        seed=seed, vocabulary=vocabulary, patch=PATCH, merge=MERGE, max_pixels=MAX_PIXELS
    )


def train_tokenizer(texts: Iterable[str], path: Path) -> Any:
    """Train a byte-level BPE (Sennrich et al. 2016) on `texts`, save it, and return it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END_OF_TEXT, IMAGE],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(path))
    return tokenizer
