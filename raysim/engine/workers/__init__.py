"""What runs beside the clients and the server: building models, running hooks, measuring."""
