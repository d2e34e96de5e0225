# `make demo` and `make test` set up all they need; see scripts/bootstrap.
PY := .venv/bin/python
UV_COMPILE := .venv/bin/uv pip compile --quiet --system-certs --universal --python-version 3.11 \
	--generate-hashes --no-annotate --no-header
# All but torch: its build for GPUs takes 5 GB, and the tests with torch have an environment.
EXTRAS := arrow azure cluster csi dev fsspec gcs hdfs kube pyfuse3 s3
# What torch names for GPUs; the tests with torch replace it (scripts/torch-venv).
OF_CUDA := cuda-bindings cuda-pathfinder cuda-toolkit nvidia-cublas nvidia-cuda-cccl nvidia-cuda-cupti \
	nvidia-cuda-nvrtc nvidia-cuda-runtime nvidia-cudnn-cu13 nvidia-cufft nvidia-cufile \
	nvidia-curand nvidia-cusolver nvidia-cusparse nvidia-cusparselt-cu13 nvidia-nccl-cu13 \
	nvidia-nvjitlink nvidia-nvshmem-cu13 nvidia-nvtx triton

TAG = $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)

.DEFAULT_GOAL := help
.PHONY: help demo stores train test image kube coverage check lint format unit bench requirements venv versitygw clean

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## /\1	/p' $(MAKEFILE_LIST) | expand -t 14

demo: ## a bucket mounted, read cold and warm, killed and mounted again; a cluster (needs root and /dev/fuse)
	@scripts/bootstrap $$(scripts/versitygw --cached && echo run || echo dev) --fuse "make demo"
	@$(PY) -m demo.demo

stores: ## a bucket and HDFS side by side on two nodes, changed behind the cache (needs root and /dev/fuse)
	@scripts/bootstrap dev --fuse "make stores"
	@scripts/versitygw
	@scripts/hdfs >/dev/null
	@$(PY) -m demo.stores

train: ## PyTorch on a bucket 20 ms away, with and without an announced order, killed and resumed (needs root and /dev/fuse)
	@scripts/bootstrap dev --fuse "make train"
	@scripts/versitygw
	@scripts/torch-venv >/dev/null
	@$(PY) -m demo.train

test: ## all checks and all tests (needs root and /dev/fuse)
	@scripts/bootstrap dev --fuse "make test"
	@scripts/versitygw
	@scripts/fake-gcs >/dev/null
	@scripts/azurite >/dev/null
	@scripts/sshd >/dev/null
	@scripts/hdfs >/dev/null
	@scripts/csi-sanity >/dev/null
	@scripts/deploy-tools >/dev/null
	@scripts/helm >/dev/null
	@scripts/image-base >/dev/null
	@scripts/torch-venv >/dev/null
	@$(PY) scripts/check.py all

image: ## the container image cachefs:TAG (needs buildah; BASE=... names another base)
	@command -v buildah >/dev/null || { echo "make image needs buildah: apt-get install buildah" >&2; exit 1; }
	@buildah build $(if $(BASE),--build-arg BASE=$(BASE)) --file deploy/docker/Dockerfile \
		--ignorefile deploy/docker/ignore --tag cachefs:$(TAG) .

kube: ## the tests on a real Kubernetes node, built once per user (needs root and /dev/fuse)
	@scripts/bootstrap dev --fuse "make kube"
	@scripts/kube-tools
	@scripts/helm >/dev/null
	@scripts/image-base >/dev/null
	@$(PY) -m tests.kube.real

coverage: ## as `make test`, and measures the coverage of the tests' own processes
	@scripts/bootstrap dev --fuse "make coverage"
	@scripts/versitygw
	@scripts/fake-gcs >/dev/null
	@scripts/azurite >/dev/null
	@scripts/sshd >/dev/null
	@scripts/hdfs >/dev/null
	@scripts/csi-sanity >/dev/null
	@scripts/deploy-tools >/dev/null
	@scripts/helm >/dev/null
	@scripts/image-base >/dev/null
	@scripts/torch-venv >/dev/null
	@$(PY) scripts/check.py coverage

check: venv ## the fast checks: format, lint, types, imports, docs, unit tests
	@$(PY) scripts/check.py fast

lint: venv ## format, lint, types, imports, docs
	@$(PY) scripts/check.py lint

format: venv ## rewrite the sources in the project's format
	@.venv/bin/ruff format . && .venv/bin/ruff check --fix .

unit: venv ## the unit tests
	@$(PY) -m pytest tests/unit

bench: ## every bar of performance, peers beside it; writes bench/RESULTS*.md (needs root and /dev/fuse)
	@scripts/bootstrap dev --fuse "make bench"
	@scripts/versitygw
	@scripts/hdfs >/dev/null
	@$(PY) -m bench.run


requirements: venv ## pin and hash anew what pyproject.toml and requirements/*.in ask for
	@$(UV_COMPILE) $(UPGRADE) $(addprefix --extra ,$(EXTRAS)) pyproject.toml -o requirements/dev.txt
	@$(UV_COMPILE) $(UPGRADE) --extra s3 --extra pyfuse3 --extra cluster pyproject.toml \
		-c requirements/dev.txt -o requirements/run.txt
	@$(UV_COMPILE) $(UPGRADE) --extra s3 --extra hdfs --extra gcs --extra azure \
		--extra cluster --extra csi --extra kube pyproject.toml \
		-c requirements/dev.txt -o requirements/image.txt
	@$(UV_COMPILE) $(UPGRADE) requirements/build.in -c requirements/dev.txt -o requirements/build.txt
	@$(UV_COMPILE) $(UPGRADE) requirements/go.in -o requirements/go.txt
	@$(filter-out --universal,$(UV_COMPILE)) $(UPGRADE) --python-platform x86_64-manylinux_2_28 \
		$(addprefix --no-emit-package ,$(OF_CUDA)) requirements/torch.in -o requirements/torch.txt

venv:
	@scripts/bootstrap dev

versitygw: venv
	@scripts/versitygw

clean: ## remove what the checks left in the tree (the virtual environment stays)
	@rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage build
	@find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
