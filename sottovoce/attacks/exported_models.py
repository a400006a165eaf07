"""Who was in the training of a model that is handed on: what reviews of exports ask, on rows that the reviewer has.

- `loss`: a low loss speaks for a member;
- `worst case`: a forest learns from half of the rows, of which it is told who is a member, and is tried on the others.
  It sees the loss and what the model says of a row, its probabilities in their order. The halves do not change places:
  what one has more of, the other has less of, so that together they would do worse than guess.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sottovoce.attacks.evaluation import MembershipResult, Scores, check_confidence, evaluate_scores
from sottovoce.errors import InputError
from sottovoce.learning.exported_model import ExportedModel

TREES, LEAF, FEWEST = 200, 5, 20
"""Of the forest: trees, and rows in a leaf at least. With fewer rows nothing is learnt."""


def attack_model(
    model: ExportedModel, members: Path, others: Path, *, confidence: float = 0.95, seed: int = 0
) -> tuple[MembershipResult, MembershipResult]:
    """Both attacks: rows of `members` were trained on, rows of `others` were not."""
    from sklearn.ensemble import RandomForestClassifier

    check_confidence(confidence)
    rows = [(path, *model.losses(path, str(path))) for path in (members, others)]
    for path, losses, _ in rows:
        if len(losses) < FEWEST:
            raise InputError(f"{path}: {len(losses)} rows", f"the worst case takes {FEWEST}", "give more")
    member = np.repeat([1, 0], [len(losses) for _, losses, _ in rows])
    losses = np.concatenate([each for _, each, _ in rows])
    features = np.column_stack([losses, np.sort(np.concatenate([said for *_, said in rows]), axis=1)])
    learnt = np.random.default_rng(seed).random(len(member)) < 0.5
    forest = RandomForestClassifier(TREES, min_samples_leaf=LEAF, class_weight="balanced", random_state=seed)
    worst = forest.fit(features[learnt], member[learnt]).predict_proba(features[~learnt])[:, 1]
    tried = member[~learnt]
    loss, told = (
        evaluate_scores(name, [Scores(0, found[of == 1], found[of == 0])], confidence=confidence, seed=seed)
        for name, found, of in (("loss", -losses, member), ("worst case", worst, tried))
    )
    return loss, told
