# What people and CI run. Everything lives in .venv; versions come from requirements.lock.

VENV    := .venv
BIN     := $(VENV)/bin
STAMP   := $(VENV)/.ready
RUNS    ?= runs
# The first Python from 3.11 to 3.13 that is at hand; `make PYTHON=python3.12 setup` picks one.
SUPPORTED := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
PYTHON  ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c '$(SUPPORTED)' >/dev/null 2>&1 && { echo $$p; break; }; done)
PIP     := $(BIN)/python -m pip --disable-pip-version-check --quiet

TL4     := .venv-tl4
RAY     := .venv-ray

.PHONY: setup demo demo-llm example docs gallery notebooks test tests test-benchmarks test-notebooks test-tl4 test-ray test-slow test-wheel check lint types benchmarks lock clean

setup: $(STAMP)

$(STAMP): requirements.lock pyproject.toml
	@test -n "$(PYTHON)" && $(PYTHON) -c '$(SUPPORTED)' || { \
	  echo "mechplateau needs Python 3.11, 3.12 or 3.13; none was found. Install one, or name it: make PYTHON=/path/to/python3.12 setup"; exit 2; }
	@test -n "$(TORCH_INDEX_URL)" || command -v nvidia-smi >/dev/null 2>&1 || \
	  echo "No NVIDIA driver seen. If pip is about to fetch a CUDA build of torch, set TORCH_INDEX_URL to PyTorch's CPU wheels (see the README)."
	$(PYTHON) -m venv $(VENV)
	$(if $(TORCH_INDEX_URL),$(PIP) install --no-deps --index-url "$(TORCH_INDEX_URL)" $$(grep '^torch==' requirements.lock))
	$(PIP) install -r requirements.lock
	$(PIP) install --no-deps --no-build-isolation -e .
	@touch $(STAMP)

demo: $(STAMP)
	$(BIN)/mechplateau demo --runs-dir $(RUNS)

demo-llm: $(STAMP)
	$(BIN)/mechplateau llm demo --runs-dir $(RUNS)

# The finished run that comes with the package (`mechplateau.example`).
example: $(STAMP)
	rm -rf mechplateau/runs/shipped/mws
	$(BIN)/mechplateau train mws --preset small --threads 1 --runs-dir mechplateau/runs/shipped/mws
	find mechplateau/runs/shipped -name .lock -delete

# The documentation site, into site/; needs no network.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The pictures of the site and its page of figures: trains what is missing first.
gallery: $(STAMP)
	$(BIN)/python docs/_site/gallery.py --train

# What the notebooks show, run again: some minutes. Nothing of the machine is kept.
notebooks: $(STAMP)
	$(BIN)/python docs/_site/notebooks.py

# mypy needs one core, and not for long: it runs beside the tests.
test: lint
	$(MAKE) --no-print-directory -j2 types tests

tests: $(STAMP)
	$(BIN)/python -m pytest -m "not slow" -n 2 --dist worksteal --ignore tests/benchmarks --ignore tests/notebooks

# The tests of the scripts under benchmarks/.
test-benchmarks: $(STAMP)
	$(BIN)/python -m pytest -m "not slow" -n 2 --dist worksteal tests/benchmarks

# The notebooks, each from its first cell to its last, but for three that take minutes.
test-notebooks: $(STAMP)
	$(BIN)/python -m pytest -m "not slow" -n 2 --dist worksteal tests/notebooks

# The tests that need no HookedTransformer, on the newest TransformerLens 4: a second environment that sees the first
# one's packages behind its own.
test-tl4: $(TL4)/.ready
	$(TL4)/bin/python -m pytest tests/bridge

$(TL4)/.ready: $(STAMP)
	$(call behind,$(TL4))
	$(PIP) --python $(TL4)/bin/python install --no-deps 'transformer-lens>=4,<5'
	@touch $(TL4)/.ready

# The tests of runs on a Ray cluster, in such an environment too.
test-ray: $(RAY)/.ready
	$(RAY)/bin/python -m pytest -m "not slow" tests/ray

$(RAY)/.ready: $(STAMP)
	$(call behind,$(RAY))
	$(PIP) --python $(RAY)/bin/python install 'ray>=2.60,<3'
	@touch $(RAY)/.ready

# A new environment that sees the first one's packages behind its own.
behind = $(BIN)/python -m venv --clear --without-pip $(1) && \
	echo "import site; site.addsitedir('$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')')" \
	  > $$($(1)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/first.pth

test-slow: $(STAMP) $(RAY)/.ready
	$(BIN)/python -m pytest -m "slow and not wheel" --ignore tests/ray
	$(RAY)/bin/python -m pytest -m slow tests/ray

# The wheel in bare environments, with the oldest and with the newest versions it works with: ten minutes each and more,
# most of it downloads.
test-wheel: $(STAMP)
	$(BIN)/python -m pytest -m wheel tests/test_wheel.py

check: lint types

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports

types: $(STAMP)
	$(BIN)/mypy

benchmarks: $(STAMP)
	$(BIN)/python -m pytest benchmarks

# Renew requirements.lock and requirements.oldest (needs uv). CUDA's own libraries are left out: the build of torch that
# is installed pins them itself, and a CPU build needs none.
CUDA_PACKAGES := $(addprefix --no-emit-package ,cuda-bindings cuda-pathfinder cuda-toolkit nvidia-cublas \
	nvidia-cuda-cupti nvidia-cuda-nvrtc nvidia-cuda-runtime nvidia-cudnn-cu13 nvidia-cufft nvidia-cufile \
	nvidia-curand nvidia-cusolver nvidia-cusparse nvidia-cusparselt-cu13 nvidia-nccl-cu13 nvidia-nvjitlink \
	nvidia-nvshmem-cu13 nvidia-nvtx)
lock:
	uv pip compile --universal --python-version 3.11 --extra dev --extra docs --extra wandb pyproject.toml $(CUDA_PACKAGES) \
	  --no-annotate --no-header --quiet --output-file requirements.lock
	echo torch==2.13.0 | uv pip compile --no-config --resolution lowest-direct --python-version 3.11 pyproject.toml - \
	  $(CUDA_PACKAGES) --no-emit-package triton --no-annotate --no-header --quiet --output-file requirements.oldest

clean:
	rm -rf $(VENV) $(TL4) $(RAY) .mypy_cache .ruff_cache .benchmarks
