"""Triton kernels, one file an operator, installed as `c2v_sim.kernels`; imports nothing of c2v_sim."""
