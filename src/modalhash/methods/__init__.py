"""One module per method, named after it; :mod:`modalhash.registry` lists them."""
