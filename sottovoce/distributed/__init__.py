"""One run over several processes."""
