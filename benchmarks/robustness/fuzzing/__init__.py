"""The parts of the fuzz campaign: mutations, coverage, promises, targets, and the process that tries inputs."""
