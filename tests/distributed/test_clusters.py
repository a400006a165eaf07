"""The job files of the page about clusters, as SLURM and Kubernetes start them: with an srun and a sotto of our own."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from sottovoce import InputError
from sottovoce.distributed.launch import first_host, place_among_ranks

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/scaling.md").read_text()
SRUN = """#!/bin/bash
pids=()
for rank in 0 1; do
  SLURM_PROCID=$rank SLURM_LOCALID=$rank SLURM_STEP_NUM_TASKS=2 SLURM_STEP_ID=0 SLURM_STEP_NODELIST="$HOST" "$@" &
  pids+=($!)
done
for pid in "${pids[@]}"; do wait "$pid" || exit 1; done
"""
STUDY = """
name = "study"
data.rows = 20
algorithm.sigma = 2.0
privacy.attackers = "none"
training = {rounds = 2, clip = "per-example", bound = 1.0}
topology.graph = "ring:4"
"""


def job_file(name: str) -> str:
    """As the page has it."""
    (found,) = re.findall(rf'```\w+ title="{name}"\n(.*?)```', PAGE, flags=re.DOTALL)
    return found


@pytest.fixture
def cluster(tmp_path):
    """`cluster(text, SLURM_JOB_ID="7")` runs a job file there, with these variables besides."""
    place = tmp_path / "bin"
    place.mkdir()
    for name, text in (("srun", SRUN), ("sotto", f'#!/bin/sh\nexec {sys.executable} -m sottovoce "$@"\n')):
        (place / name).write_text(text)
        (place / name).chmod(stat.S_IRWXU)

    def run(text: str, **more: str) -> subprocess.CompletedProcess:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "RANK"))}
        environment |= {"PATH": f"{place}:{os.environ['PATH']}", "SCRATCH": str(tmp_path), "HOST": "127.0.0.1"}
        environment |= {
            "PYTHONPATH": str(ROOT),
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
        }
        return subprocess.run(
            ["bash", "-c", text], cwd=tmp_path, env=environment | more, capture_output=True, text=True, timeout=300
        )

    return run


@pytest.mark.slow
def test_srun_names_the_ranks_of_one_run(cluster, tmp_path):
    (tmp_path / "run.toml").write_text(STUDY)
    (tmp_path / "data").mkdir()
    ended = cluster(job_file("one-run.sbatch"), SLURM_JOB_ID="4711", SLURM_PROCID="0", SLURM_NTASKS="2")
    assert ended.returncode == 0, ended.stderr
    line = (tmp_path / "runs/study/metrics.jsonl").read_text().splitlines()[-1]
    assert json.loads(line)["wire_bytes"] > 0, "two processes"


@pytest.mark.slow
@pytest.mark.parametrize("where", ["slurm", "kubernetes"])
def test_parts_of_a_sweep_make_its_results(where, cluster, tmp_path):
    (tmp_path / "sweep.toml").write_text(f"{STUDY}seeds = [0, 1, 2, 3]\n")
    job = yaml.safe_load(job_file("sweep.yaml"))["spec"]
    assert (job["completionMode"], job["completions"]) == ("Indexed", 50)
    (container,) = job["template"]["spec"]["containers"]
    shell, option, line = container["command"]
    assert (shell, option) == ("sh", "-c")
    for part in (2, 1, 2):
        if where == "slurm":
            ended = cluster(
                job_file("sweep.sbatch"), SLURM_ARRAY_TASK_ID=str(part), SLURM_ARRAY_TASK_COUNT="2",
                SLURM_PROCID="0", SLURM_LOCALID="0", SLURM_STEP_NUM_TASKS="2", SLURM_STEP_NODELIST="elsewhere",
            )  # fmt: skip
        else:
            ended = cluster(
                line.replace("/work", str(tmp_path)).replace("/50", "/2"), JOB_COMPLETION_INDEX=str(part - 1)
            )
        assert ended.returncode == 0, ended.stderr
    (row,) = json.loads((tmp_path / "runs/study/results.json").read_text())["runs"]
    assert row["seeds"] == 4


STEP = {"SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NODELIST": "n[07-08]",
        "SLURM_JOB_ID": "1", "SLURM_STEP_ID": "2"}  # fmt: skip


@pytest.mark.parametrize(
    ("given", "found"),
    [(STEP, (3, 4)), (STEP | {"RANK": "0", "WORLD_SIZE": "2"}, (0, 2)), (STEP | {"SLURM_STEP_NUM_TASKS": "1"}, None),
     ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "1"}, None)],
)  # fmt: skip
def test_a_task_of_srun_is_a_rank_and_the_script_of_a_job_is_none(given, found, monkeypatch):
    for name in [*STEP, "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"]:
        monkeypatch.setenv(name, "")  # so that what the code sets is taken back
        monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert place_among_ranks() == found
    if found == (3, 4):
        assert os.environ["MASTER_ADDR"] == "n07"
        assert 20_000 <= int(os.environ["MASTER_PORT"]) < 40_000


@pytest.mark.parametrize("listed", ["", "[1-2]", "rack[1-2]n[3-4]", ",a"])
def test_hosts_that_are_not_clear_are_refused(listed):
    with pytest.raises(InputError, match="MASTER_ADDR"):
        first_host(listed)
