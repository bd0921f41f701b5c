"""Triton kernels, a file an operator, installed as `c2v_sim.kernels`; they import nothing of it."""
