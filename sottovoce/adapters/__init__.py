"""Other frameworks train; what their sites send goes through a guard: clipped, noisy, and in a ledger first."""
