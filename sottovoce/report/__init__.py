"""Pages, tables and figures about finished runs."""
