"""What three users do, from their data to what they sign: a hospital, a student, an auditor."""
