"""A small real multisource corpus made from what is installed; no network."""

from msd.testing.corpus.make import CorpusReport, SourceStats, make_corpus

__all__ = ["CorpusReport", "SourceStats", "make_corpus"]
