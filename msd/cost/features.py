"""What is known of a row before anything is done to it, as columns: what its cost is predicted from."""

# R = rows, F = features.

FEATURES = ("bytes", "characters", "pixels", "frames")
"""Bytes of all its fields as stored, characters of its text, pixels of its images as stored (of all frames, by their
headers, without decoding), and frames of them."""

BYTES = "bytes"
"""The one that an index knows too, of rows that nobody has read."""
