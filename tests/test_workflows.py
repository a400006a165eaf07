"""Workflows of a code host: other people's actions are those of one commit, and jobs may do no more than they need."""

import re
from pathlib import Path

import pytest

WORKFLOWS = sorted((Path(__file__).parents[1] / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_and_nothing_is_permitted_by_default(path):
    text = path.read_text()
    used = re.findall(r"uses: (\S+)(.*)", text)
    assert used
    for action, comment in used:
        assert re.fullmatch(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}", action), action
        assert re.fullmatch(r" # v\d+\.\d+\.\d+", comment), action
    assert text.count("\npermissions: {}\n") == 1
    assert text.count("persist-credentials: false") == text.count("actions/checkout@")
    assert text.count("timeout-minutes:") == text.count("runs-on:")


def test_one_action_has_one_commit_everywhere():
    commits = {}
    for path in WORKFLOWS:
        for action, commit in re.findall(r"uses: ([\w.-]+/[\w.-]+)[\w./-]*@(\S+)", path.read_text()):
            commits.setdefault(action, set()).add(commit)
    assert {len(each) for each in commits.values()} == {1}
    assert len(commits) >= 5
