"""Correlated noise: the C that suits a graph best, with a certificate."""
