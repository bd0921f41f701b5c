"""Operators of client networks' layers, for training on a CPU."""
