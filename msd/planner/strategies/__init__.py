"""Strategies that come with msd, written with the same primitives as a user's own."""
