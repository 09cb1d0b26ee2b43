"""The workers that run clients and the server: models, hooks, training, evaluation and states."""
