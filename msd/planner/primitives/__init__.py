"""One operation of a graph per file."""
