"""What a plugin author touches: experiment, environment, policy, algorithm, block, errors. Never imports torch."""
