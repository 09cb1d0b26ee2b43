"""The templates that `raysim new` copies. They run unchanged, and users modify them."""
