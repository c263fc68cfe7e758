"""Distributions over actions, in numpy: sampling for actors, log-probabilities with their gradients for trainers."""
