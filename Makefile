# make demo: train something small and see it; make test: all checks; make docs: the documentation as a site.
# All set up what they need first.

PYTHON ?= python3
# The version that tests run with; the package itself takes a range. make test TORCH=2.3.0 exchanges it.
TORCH ?= 2.13.0
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready-torch-$(TORCH)
PIP = $(1)/bin/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test slow bench torch-ends outside test-adapters test-package artifact docs clean

demo: $(READY)
	$(BIN)/sotto demo

test: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/pytest -m "not slow" -n auto --dist worksteal

slow: $(READY)
	$(BIN)/pytest -m slow

bench: $(READY)
	$(BIN)/python -m benchmarks.loop
	$(BIN)/python -m benchmarks.privacy
	$(BIN)/python -m benchmarks.factorize
	$(BIN)/python -m benchmarks.learning
	$(BIN)/python -m benchmarks.attacks
	$(BIN)/python -m benchmarks.runs
	$(BIN)/python -m benchmarks.startup
	$(BIN)/python -m benchmarks.processes
	$(BIN)/python -m benchmarks.peers
	$(BIN)/python -m benchmarks.members
	$(BIN)/python -m benchmarks.ledger

# Before a release: all tests that use torch, with the oldest version that pyproject.toml allows and with the newest there
# is, one after the other in build/torch. Builds with CUDA take up to 6 GB there.
ENDS = import tomllib; \
  torch = next(d for d in tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["learning"] if d.startswith("torch")); \
  print(torch.split(",")[0].replace(">=", "=="), torch)
torch-ends:
	set -e; for torch in $$($(PYTHON) -c '$(ENDS)'); do \
	  $(PYTHON) -m venv --clear build/torch; \
	  $(call PIP,build/torch) "$$torch"; \
	  $(call PIP,build/torch) --editable ".[dev]"; \
	  build/torch/bin/python -c 'import torch; print("torch", torch.__version__)'; \
	  build/torch/bin/pytest -m "not slow" -n auto --dist worksteal tests; \
	done; rm -rf build/torch

# What packages of others say of the same figures, in build/outside. What cannot be installed is skipped, and the page says so.
OUTSIDE := jax-privacy dp-accounting PLD-accounting prv-accountant riskcal opacus
outside:
	$(PYTHON) -m venv --clear build/outside
	$(call PIP,build/outside) "torch==$(TORCH)"
	$(call PIP,build/outside) --editable .
	for package in $(OUTSIDE); do $(call PIP,build/outside) $$package || echo "skipped: $$package"; done
	build/outside/bin/python -m benchmarks.outside docs/outside-evidence.md

# NVFlare and Flower, with Opacus beside them, in one environment of their own: their simulators, and what leaves sites.
test-adapters:
	$(PYTHON) -m venv --clear build/adapters
	$(call PIP,build/adapters) "torch==$(TORCH)"
	$(call PIP,build/adapters) --editable ".[nvflare,flower]" "flwr[simulation]" opacus pytest
	build/adapters/bin/pytest -o filterwarnings= tests/adapters

# What pip installs: built twice, bit for bit the same, and tried in empty environments of each version of Python that
# is there. The accountant alone: without torch, which is asked for by name where it is missing.
PYTHONS ?= python3.11 python3.12 python3.13 python3.14
EPOCH := $(shell git log -1 --format=%ct)
test-package:
	rm -rf build/package && $(PYTHON) -m venv build/package/tools
	$(call PIP,build/package/tools) build cyclonedx-bom
	for turn in 1 2; do SOURCE_DATE_EPOCH=$(EPOCH) build/package/tools/bin/python -m build --outdir build/package/$$turn >/dev/null; done
	cmp build/package/1/*.whl build/package/2/*.whl
	set -e; for python in $(PYTHONS); do \
	  $$python -c "" 2>/dev/null || { echo "skipped: no $$python"; continue; }; \
	  place=build/package/$$python; $$python -m venv $$place; \
	  $(call PIP,$$place) build/package/1/*.whl; \
	  (cd build/package && ../../$$place/bin/sotto account --graph ring:8 --rounds 5 --sigma 1 --view node:0 >/dev/null \
	    && ../../$$place/bin/sotto calibrate --graph ring:8 --rounds 5 --epsilon 4 >/dev/null); \
	  ! $$place/bin/python -c 'import torch' 2>/dev/null; \
	  $$place/bin/sotto demo 2>&1 | grep -q 'sottovoce\[learning\]'; \
	  echo "$$python: $$(du -sm $$place | cut -f1) MB"; \
	done
	build/package/tools/bin/cyclonedx-py environment build/package/$(firstword $(PYTHONS)) -o build/package/sbom.json
	ls -l build/package/1 build/package/sbom.json

# Expected figures, from packages that are pinned by their hashes: artifact/README.md.
artifact:
	$(PYTHON) -m venv --clear build/artifact
	$(call PIP,build/artifact) --require-hashes -r artifact/requirements.lock
	$(call PIP,build/artifact) --no-deps --no-build-isolation .
	build/artifact/bin/python artifact/check.py

docs: $(READY)
	$(BIN)/mkdocs build --strict --quiet
	@echo "open site/index.html"

# torch is installed first and by itself: asked for by its range, pip would take the newest, which for Linux brings
# several gigabytes of CUDA. Marks of another torch are removed, because it is no longer there.
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit(f"found Python {v[0]}.{v[1]}; 3.11 or newer is needed; run make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	@rm -f $(VENV)/.ready*
	$(call PIP,$(VENV)) "torch==$(TORCH)"
	$(call PIP,$(VENV)) --editable ".[dev]"
	@touch $@

clean:
	rm -rf $(VENV) build site *.egg-info
