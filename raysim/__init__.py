"""raysim: simulate model-heterogeneous federated learning on Ray."""
