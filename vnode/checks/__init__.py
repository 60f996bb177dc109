"""How a machine that trusts nobody checks an interval of somebody's training: replay, sketch, referee (ALGORITHMS.md, "Checks")."""
