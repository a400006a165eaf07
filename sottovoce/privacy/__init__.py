"""What an adversary can learn: views, guarantees, calibration."""
