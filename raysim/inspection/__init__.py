"""What is inside a run: clients' networks, data and representations, and what can be learnt from them."""
