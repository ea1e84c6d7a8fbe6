"""Facts about a run."""
