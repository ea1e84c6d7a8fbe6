"""How many loaders of what, where: decided from costs, shares and budgets. Values in, values out: no clock, no Dask."""
