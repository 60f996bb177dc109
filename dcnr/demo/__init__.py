"""`dcnr demo`: a whole network on this machine, from raw data to a trained, exported model, with machines killed on the way.

Every process is a real one, started with the commands of the README; nothing shown is computed by this package but the comparison at the end.
"""
