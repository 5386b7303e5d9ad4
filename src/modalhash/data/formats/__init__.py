"""One module per file format; each lists the variables of a file and loads them when they are needed."""
