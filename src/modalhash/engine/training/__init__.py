"""Train an engine, retrain it, and check sources before training."""
