"""Networks of the built-in algorithms: options (without torch), torch modules, and an MLP in numpy."""
