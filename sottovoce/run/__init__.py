"""Training runs: from settings to the files of a run folder."""
