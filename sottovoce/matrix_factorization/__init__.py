"""Correlated noise that costs least: the C that suits a graph, with a proof of how close to optimal it is."""
