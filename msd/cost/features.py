"""What is known of a row before anything is done to it, as columns: what its cost is predicted from."""

# R = rows, F = features.

FEATURES = ("bytes", "characters", "pieces", "pixels", "frames")
"""Bytes of all its fields as stored, characters of its text, words and runs of signs in it (of long texts as many as
stretches of it let expect: what a tokenizer works through one by one), pixels of its images as stored (of all frames,
by their headers, without decoding), and frames of them."""

BYTES = "bytes"
"""The one that an index knows too, of rows that nobody has read."""
