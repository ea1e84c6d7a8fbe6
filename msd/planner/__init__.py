"""Decide what goes where, from metadata alone."""
