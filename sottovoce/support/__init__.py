"""What any program needs, whatever it is about: files, text, settings, threads, progress."""
