"""The figures of the papers, and their statements beside the truth: one TOML file for each figure.

`catalogue` reads the files. `accounts`, `averaging`, `training` and `gradients` compute lines of four kinds, `making`
draws them and says which claims hold. Settings are those of run files and of sweeps.
"""
