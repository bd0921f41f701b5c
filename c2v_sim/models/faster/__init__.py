"""Layers of any model by the operators of ops/layers, where that pays."""
