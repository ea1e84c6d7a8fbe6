"""Read, transform, hold: rows become samples."""
