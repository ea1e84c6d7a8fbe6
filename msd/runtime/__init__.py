"""Perform: the same decisions in one process or on a cluster."""
