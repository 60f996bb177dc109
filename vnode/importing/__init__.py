"""A maintainer's ``torch.nn.Module`` as a graph of our components. It runs the maintainer's own code on the maintainer's machine; only the graph travels."""
