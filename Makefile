# The Residual Stream. `make book` builds the site from nothing; `make test` checks everything.
# Needs Python 3.10-3.13 and make. All else goes into .venv (packages) and the user's cache (the model).
#   make book PYTHON=python3.12            another Python
#   make book TORCH_INDEX=ADDRESS          another place for torch's wheel (PyTorch's CPU index saves gigabytes on Linux)

PYTHON ?= python3
JOBS ?= 2
VENV := .venv
PY := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed

export PIP_DISABLE_PIP_VERSION_CHECK := 1

PYTEST := $(PY) -m pytest
NBVAL := --nbval --nbval-current-env --nbval-sanitize-with chapters/nbval_sanitize.cfg --nbval-cell-timeout 300
# Processes run side by side, so each takes one thread.
PARALLEL := -n $(JOBS) --dist loadscope
PORTABLE := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 \
	MKL_ENABLE_INSTRUCTIONS=AVX2

# $(call timed,NAME,COMMANDS): run the commands, say how long they took
timed = @echo "--- $(1)"; start=$$(date +%s); { $(2); } && echo "--- $(1): $$(($$(date +%s) - start)) s"

.PHONY: help env model book pdf test lint colab test-portable test-course grade protections course bench notebooks lock clean distclean
.DEFAULT_GOAL := help

help:  ## say what there is
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 16

$(INSTALLED): requirements.txt requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' || \
		{ echo "make: $(PYTHON) is $$($(PYTHON) -V 2>&1); Python 3.10 to 3.13 is needed: make PYTHON=python3.11 ..."; exit 1; }
	$(call timed,environment,test -x $(PY) || $(PYTHON) -m venv $(VENV))
	$(call timed,torch,$(PY) -m pip install -q -c requirements.lock $(if $(TORCH_INDEX),--no-deps --index-url $(TORCH_INDEX)) torch)
	$(call timed,packages,$(PY) -m pip install -q -c requirements.lock -r requirements.txt -e .)
	@touch $@

env: $(INSTALLED)  ## make the environment .venv with exactly the pinned packages

model: $(INSTALLED)  ## fetch and convert the book's model into the user's cache, once
	$(call timed,model,$(PY) -c "import residual_stream as rs; rs.load('smollm2-135m')")

book: $(INSTALLED) model  ## build the site into _build/html
	rm -rf _build
	$(call timed,site,$(VENV)/bin/jupyter-book build -W -n --keep-going .)

pdf: $(INSTALLED)  ## print the whole book into _build/the-residual-stream.pdf (needs Chromium)
	$(call timed,pdf,$(PY) tools/print_book.py)

lint: $(INSTALLED)
	$(call timed,lint,$(VENV)/bin/ruff check . && $(VENV)/bin/ruff format --check .)

test: $(INSTALLED) model lint  ## lint, unit tests, doctests, every notebook, the site, the browser
	@OMP_NUM_THREADS=1 $(PYTEST) $(PARALLEL) --durations 12 --doctest-modules $(NBVAL) lib/residual_stream tests chapters

colab: $(INSTALLED) model  ## every chapter and sheet as on Colab, with its versions: gigabytes (COLAB_PYTHON=python3.12)
	@$(PY) tools/colab_check.py --clean $(if $(COLAB_PYTHON),--python $(COLAB_PYTHON)) \
		$(if $(TORCH_INDEX),--torch-index $(TORCH_INDEX)) chapters/*.ipynb assignments/student/*.ipynb

test-portable: $(INSTALLED) model  ## every notebook again, one thread, AVX2 only: outputs must hold on any processor
	@$(PORTABLE) $(PYTEST) $(PARALLEL) --durations 12 $(NBVAL) chapters

COURSE := HF_HUB_OFFLINE=1 PYTHONPATH=lib:tools $(PY) -m course

test-course: $(INSTALLED) model  ## the assignments and their graders, in full: every attack, every damage
	@OMP_NUM_THREADS=1 COURSE_TESTS=full $(PYTEST) $(PARALLEL) --durations 12 tests/test_course_*.py

course: $(INSTALLED)  ## write every version of every assignment (OTTER=path: otter's package too)
	@$(COURSE) build $(if $(OTTER),--otter $(OTTER))

grade: $(INSTALLED) model  ## grade a folder of notebooks: make grade SUBMISSIONS=folder [SHEET=01_bus] [OUT=…] [OPTIONS=…]
	@test -n "$(SUBMISSIONS)" || { echo "make: grade what? make grade SUBMISSIONS=folder"; exit 1; }
	@$(COURSE) grade "$(SUBMISSIONS)" $(if $(SHEET),--sheet $(SHEET)) $(if $(OUT),--out "$(OUT)") \
		--places $(JOBS) $(OPTIONS)

protections: $(INSTALLED)  ## measure what a graded notebook is kept from on this machine
	@$(COURSE) protections

bench: $(INSTALLED) model  ## measure the library beside TransformerLens's own functions
	@for file in benchmarks/*.py; do echo "--- $$file"; $(PY) $$file || exit 1; done

notebooks: $(INSTALLED) model  ## execute every chapter and write it back, normalised
	@$(PY) tools/setup_cell.py --write
	@$(PY) tools/captions.py --write
	@$(PY) tools/execute_notebooks.py

lock: $(INSTALLED)  ## renew requirements.lock from requirements.txt and pyproject.toml
	$(PY) -m pip install -q uv==0.13.9
	UV_PYTHON_DOWNLOADS=never $(VENV)/bin/uv pip compile -q --universal --python-version 3.10 $(LOCK_OPTIONS) \
		--no-annotate --no-header requirements.txt pyproject.toml -o requirements.lock
	@sed -i.part '1i\# The whole closure for Python 3.10-3.13, used as constraints (make lock writes it).' requirements.lock
	@rm requirements.lock.part

clean:  ## remove what was built and every cache in this folder, but the environment
	rm -rf _build build .pytest_cache .ruff_cache lib/*.egg-info
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean  ## remove the environment too
	rm -rf $(VENV)
