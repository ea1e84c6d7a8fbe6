"""The run on a Dask cluster: the only folder that imports Dask.

Dask gives placement, membership and the dashboard. What happens every step goes straight from process to process:
one call per host through `calls.call`, and batches to ranks through the link of `msd.client.link`.
"""
