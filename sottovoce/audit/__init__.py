"""Audits: what attacks on real runs prove about a mechanism, beside what was promised.

A guarantee is an upper bound on the leak; an audit is a lower bound that holds with a stated confidence. When the lower
one is above the upper one, the guarantee is wrong or something else ran. When it is below, nothing is proven: another
attack may do better. See docs/audit.md.

- `result`: the lower bound itself, an `Audit`;
- `scores`: from the scores of many independent runs;
- `onerun`: from one run with many canaries;
- `mechanism`: runs the traced loop with a canary at a victim and scores what a view really received;
- `claims`, `canaries`: audits of finished runs, beside what they promised.
"""

from sottovoce.audit.mechanism import audit
from sottovoce.audit.onerun import audit_guesses, audit_one_run
from sottovoce.audit.result import Audit, Guesses, Rates
from sottovoce.audit.scores import audit_scores, roc_area

__all__ = ["Audit", "Guesses", "Rates", "audit", "audit_guesses", "audit_one_run", "audit_scores", "roc_area"]
