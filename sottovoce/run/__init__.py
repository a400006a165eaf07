"""A run, from its settings to what is known when it has ended: each object of its life is one file.

    Experiment        the settings, of `support/config.py`; `protocol` reads algorithm and topology from them
    TrainingRun       `build` makes it of settings, `training_run` plays and measures its rounds
    RunAccountant     `run_accountant` traces it once, accounts for each adversary once, and finds its noise
    PrivacyReport     `privacy_report` accounts for the adversaries that are asked for, and says what that comes to:
    PrivacyDocument   `privacy_document`, as it is kept in `privacy.json`, shown on pages and entered in ledgers
    RunFiles          `layout`: the folder with its files, lock and noise key; `fingerprint` says whose folder it is
    Checkpoint        `checkpoint`; what attackers receive is in `recording`, the entry in a ledger in `run_ledger`
    RunDocuments      `run_documents`: what a folder says that may be handed on

`execute` is the story of a run in its folder. `simulation` needs no folder. `finished_run` opens a run again,
`accounts_of_runs` asks about runs that are there, `baselines` and `rerun` play them in other ways, `sweep` plays many.
"""
