"""Encoding of many items into files of codes, in processes or on a Dask cluster."""
