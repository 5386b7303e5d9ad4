"""One module per file format; each lists the variables of a file and loads them on demand."""
