"""LambdaNetworks (Bello, ICLR 2021) in PyTorch."""

__version__ = "0.1.0"
