SETTINGS = """
name = "try"
noise_key = "5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a"
data = {rows = 12}
topology = {graph = "ring:4"}
training = {rounds = 1, batch = "full", clip = "per-example", bound = 1.0}
algorithm = {sigma = 1.0, step_size = 0.5}
privacy = {attackers = "none"}
metrics = {every = 1, test_rows = 20}
record = {attackers = [0], every = 1}
machine = {checkpoint_seconds = 0.0}
"""
