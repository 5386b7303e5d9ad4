"""Training an engine, training it again, and checking sources beforehand."""
