"""What was sent and what was spent: one file for each holder of data, written before anything leaves the machine."""
