# The two commands are `make run` and `make test`.
CARGO ?= cargo
WATTLINE := target/release/wattline
OUT ?= out

# Other people's data that may not be committed; tests that need it say so and pass without it.
export WATTLINE_SHARED ?= $(abspath $(wildcard ../shared))

ONLY ?=

.PHONY: run test results bench lint fmt build setup deny book clean

## Compare policies on the built-in demo and write a report
run: build
	$(WATTLINE) compare --scenario demo --policies fifo,edf,priority,tiresias,andreas,powerflow,ones,wattline --out $(OUT)
	@echo
	@echo "The report: file://$(abspath $(OUT))/report.html"

## Set up, lint and test everything
test: lint
	$(CARGO) test --workspace --all-targets --locked
	$(CARGO) test --workspace --doc --locked

build:
	$(CARGO) build --release --locked --bin wattline

# A toolchain installed with the minimal profile lacks these two.
setup:
	@$(CARGO) fmt --version >/dev/null 2>&1 || rustup component add rustfmt
	@$(CARGO) clippy --version >/dev/null 2>&1 || rustup component add clippy

lint: setup
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings

fmt:
	$(CARGO) fmt --all

## Pinned benchmarks: one plan and one event (criterion), then whole simulations
bench: build
	$(CARGO) bench --workspace --locked
	$(WATTLINE) bench sim --scenario demo
	$(WATTLINE) bench sim --scenario scale --scaling
	$(WATTLINE) bench predict
	$(WATTLINE) bench plan --scaling

## The page of results, by the commands it shows; ONLY=andreas,plan writes some sections anew
results: build
	$(WATTLINE) bench results $(if $(ONLY),--only $(ONLY))

## Licences, advisories and sources of dependencies (needs cargo-deny)
deny:
	$(CARGO) deny check

## The book (needs mdbook)
book:
	mdbook build docs

clean:
	$(CARGO) clean
	rm -rf $(OUT)
