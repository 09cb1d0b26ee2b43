"""Where the rooms meet: a scenario becomes data, models, a placement, a backend and trackers, and is run."""
