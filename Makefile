# Everything here works on a machine with only Python 3.11+ and make.
PYTHON ?= python3
BIN := .venv/bin
unexport PYTHONDONTWRITEBYTECODE # compiling the sources anew takes most of the time that a process starts in
export CONFIDE_DATA ?= $(abspath $(wildcard ../shared/data))

.PHONY: demo test processor thorough docs walk picture bench reproduce clean

demo: .venv/.run
	rm -rf confide-demo
	$(BIN)/confide demo --out confide-demo

# The types are checked beside the tests; either fails the target.
test: .venv/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@$(BIN)/pyright >.venv/types.txt & types=$$!; \
	$(BIN)/python -m pytest -n 2 --dist worksteal; tests=$$?; \
	wait $$types || { cat .venv/types.txt; exit 1; }; exit $$tests

# Stored runs and statistics once more, with the programs that libraries have for an older processor.
processor: .venv/.test
	PYTHONPATH=tests $(BIN)/python -m helpers.processors haswell $(BIN)/python -m pytest -n 2 --dist worksteal -m processor

# With more of what the tests show already: every sabotage in every model, and such.
thorough:
	CONFIDE_EVERYTHING=1 CONFIDE_THOROUGH=1 $(MAKE) test

docs: .venv/.test
	$(BIN)/python docs/generate.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The modules that a row passes on its way to the posterior, and those of one noisy gradient.
walk: .venv/.run
	$(BIN)/python docs/walk.py

# Needs Chromium.
picture: .venv/.test
	$(BIN)/python docs/picture.py
	$(BIN)/python docs/curves.py

bench: .venv/.test
	$(BIN)/python benchmarks/accounting.py
	$(BIN)/python benchmarks/attack_accountants.py --count 1000
	$(BIN)/python benchmarks/learning.py
	$(BIN)/python benchmarks/networks.py
	$(BIN)/python benchmarks/convex.py speed
	$(BIN)/python benchmarks/audits.py bounds
	$(BIN)/python benchmarks/shadows.py
	$(BIN)/python benchmarks/accounts.py steps
	$(BIN)/python benchmarks/accounts.py estimate

# Takes hours. What was stopped goes on where it was: `confide reproduce NAME --out docs/results`.
reproduce: .venv/.test
	$(BIN)/confide reproduce li2019-figure1 --out docs/results
	$(BIN)/confide reproduce li2019-figure2 --out docs/results
	$(BIN)/confide reproduce li2019-figure3 --out docs/results
	$(BIN)/confide reproduce li2019-gan --out docs/results
	$(BIN)/confide reproduce li2019-table1 --out docs/results
	$(BIN)/confide reproduce triastcyn2020-figure1 --out docs/results
	$(BIN)/confide reproduce triastcyn2020-figure2 --out docs/results
	$(BIN)/confide reproduce triastcyn2020-figure3 --out docs/results
	$(BIN)/confide reproduce triastcyn2020-figure4 --out docs/results
	$(BIN)/confide reproduce triastcyn2020-figure5 --out docs/results
	$(BIN)/confide reproduce triastcyn2020-table1 --out docs/results
	$(BIN)/confide reproduce wang2015-figure1 --out docs/results
	$(BIN)/confide reproduce wu2020-table1 --out docs/results
	$(BIN)/confide reproduce wu2020-table2 --out docs/results
	$(BIN)/python docs/generate.py
	$(BIN)/python benchmarks/adult.py
	$(BIN)/python benchmarks/baselines.py
	$(BIN)/python benchmarks/pate.py
	$(BIN)/python benchmarks/images.py mnist
	$(BIN)/python benchmarks/images.py cifar10
	$(BIN)/python benchmarks/images.py svhn
	$(BIN)/python benchmarks/convex.py accuracy
	$(BIN)/python benchmarks/accounts.py individual
	$(BIN)/python benchmarks/audits.py canaries
	$(BIN)/python benchmarks/nuts.py

# What the tests need includes what a run needs: one installation serves both.
.venv/.test .venv/.run: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("confide needs Python 3.11 or later") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e '.$(if $(filter %.test,$@),[test])'
	touch .venv/.run $@

clean:
	rm -rf .venv build dist confide-demo site reproductions .hypothesis .ruff_cache .jax_cache* src/*.egg-info
