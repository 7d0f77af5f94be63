"""How initialisation and learning rates scale: the one rule, roles, strategies, the plan."""
