"""Tables of the report, a module per subject: pure functions of what was gathered."""
