"""Built-in algorithms, each a folder with the same file names."""
