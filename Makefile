.PHONY: demo test lint format slow notebooks clean

# What the environment holds: everything the demo, the tests and the notebooks need.
EXTRAS = data train notebooks dev
PYTHON = .venv/bin/python

# Real text from a real model (SmolLM2-135M-Instruct), speculative beside plain decoding.
demo: .venv/ready
	@$(PYTHON) -m jetspec_jax.cli demo

test: .venv/maths
	@$(PYTHON) -m pytest -n 2 --dist loadfile

lint: .venv/ready
	@$(PYTHON) -m ruff check .
	@$(PYTHON) -m ruff format --check .

format: .venv/ready
	@$(PYTHON) -m ruff check --fix .
	@$(PYTHON) -m ruff format .

# Minutes on two cores; what it measures is recorded in docs/results.md.
slow: .venv/maths
	@$(PYTHON) -m pytest -m slow

# Rewrites the outputs that are stored in the notebooks.
notebooks: .venv/ready
	@for notebook in notebooks/*.ipynb; do $(PYTHON) -m tools.run_notebook $$notebook; done

clean:
	rm -rf .venv .tools build dist .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Generated maths problems need a C compiler (pycosat), which the demo shall not.
.venv/maths: .venv/ready
	@tools/bootstrap.sh $(EXTRAS) maths
	@touch $@

.venv/ready: pyproject.toml tools/bootstrap.sh
	@tools/bootstrap.sh $(EXTRAS)
	@touch $@
