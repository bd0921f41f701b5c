"""Layers of client networks, for training on a CPU: where torch's own leave the core half used."""
