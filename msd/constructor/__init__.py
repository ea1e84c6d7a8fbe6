"""Assemble: samples and a plan become the batches of ranks."""
