"""Running statistics of observations and returns: float64, merged exactly, owned by trainers, part of the weights."""
