"""The run around the jitted chunk: records, display, signals, checkpoints, evaluation, film."""
