# make demo: train something small and see it; make test: all checks; make docs: the documentation as a site.
# All set up what they need first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test slow bench docs clean

demo: $(READY)
	$(BIN)/sotto demo

test: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -m "not slow" -n auto --dist worksteal

slow: $(READY)
	$(BIN)/pytest -m slow

bench: $(READY)
	$(BIN)/python -m benchmarks.loop
	$(BIN)/python -m benchmarks.privacy
	$(BIN)/python -m benchmarks.factorize
	$(BIN)/python -m benchmarks.learning
	$(BIN)/python -m benchmarks.attacks
	$(BIN)/python -m benchmarks.startup
	$(BIN)/python -m benchmarks.processes

docs: $(READY)
	$(BIN)/mkdocs build --strict --quiet
	@echo "open site/index.html"

# torch is installed first and by itself, so that pip settles on the pinned build before anything else asks for it
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit(f"found Python {v[0]}.{v[1]}; 3.11 or newer is needed; run make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "$$($(PYTHON) -c 'import tomllib; print(next(d for d in tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"] if d.startswith("torch")))')"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev]"
	@touch $@

clean:
	rm -rf $(VENV) build site *.egg-info
