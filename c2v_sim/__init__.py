"""c2v_sim: federated learning, simulated fast and exactly."""
