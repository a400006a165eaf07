"""One run over several processes: ranks, what they exchange, and who coordinates."""
