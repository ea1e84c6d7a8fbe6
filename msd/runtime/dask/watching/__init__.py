"""What the scheduler of a run shows of it: a page, numbers for Prometheus, and the same as JSON."""
