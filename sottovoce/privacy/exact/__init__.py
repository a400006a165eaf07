"""The exact loss of a view, by the route that suits its size."""
