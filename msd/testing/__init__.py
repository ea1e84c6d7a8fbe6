"""Fakes and conformance checks, for our tests and our users' tests."""
