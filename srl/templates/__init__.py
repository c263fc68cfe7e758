"""What ``srl-run new`` writes: files that run as they are; ``skeleton`` and ``Skeleton`` become the name asked for."""
