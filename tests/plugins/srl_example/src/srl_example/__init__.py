"""A package beside SRL: an algorithm, a network and an environment, found through the entry points ``srl.plugins``."""
