"""What a person does with experiments and trials, in Python; ``srl-run`` is made of this.

The public names are those of :mod:`srl`: ``srl.run``, ``srl.load``, ``srl.recipe``, ``srl.Trial``, ``srl.TrialGroup``.
"""
