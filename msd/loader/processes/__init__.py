"""Transforms in processes of their own, for those that hold the interpreter's lock."""
