"""Batch mode: the same samples and sequences as the stream's, as files, by ordinary Dask tasks."""
