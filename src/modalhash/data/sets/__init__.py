"""One module per named data set, with its loader and the converter of its official files; see ``catalog.py``."""
