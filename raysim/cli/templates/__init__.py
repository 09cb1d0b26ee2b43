"""The templates that `raysim new` copies. They run unchanged; users then modify them."""
