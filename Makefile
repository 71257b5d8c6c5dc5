# The two commands are `make run` and `make test`.
CARGO ?= cargo
WATTLINE := target/release/wattline
OUT ?= out

# Other people's data that may not be committed; tests that need it say so and pass without it.
export WATTLINE_SHARED ?= $(abspath $(wildcard ../shared))

ONLY ?=

.PHONY: run lab compare test check nightly results bench lint fmt build setup deny book deb clean

# Where the live demo answers, and how much faster than real time it goes.
DEMO ?= $(OUT)/demo
SPEED ?= 120

## Run live on the built-in emulated cluster until Ctrl-C
run: build
	@mkdir -p $(DEMO)
	@rm -f $(DEMO)/journal $(DEMO)/journal-wal $(DEMO)/journal-shm $(DEMO)/journal.state $(DEMO)/journal.lock $(DEMO)/journal.audit*
	@echo
	@echo "The API answers at the socket $(DEMO)/wattline.sock. In another terminal, try:"
	@echo
	@echo "  export WATTLINE_SOCKET=$(abspath $(DEMO))/wattline.sock"
	@echo "  $(WATTLINE) queue --watch"
	@echo "  $(WATTLINE) submit --workload gpt2 --gpus 4 --duration '2 h' --deadline '6 h'"
	@echo "  $(WATTLINE) explain 0"
	@echo
	@echo "Ctrl-C ends it. To compare policies in the simulator instead: make compare"
	@echo
	@exec $(WATTLINE) serve --scenario demo --speed $(SPEED) --journal $(DEMO)/journal --socket $(DEMO)/wattline.sock --stay

## A real SLURM on this machine with Wattline in control, and jobs that run (needs root)
lab: build
	lab/run.sh

## Compare policies on the built-in demo and write a report
compare: build
	$(WATTLINE) compare --scenario demo --policies fifo,edf,priority,tiresias,andreas,powerflow,ones,wattline --out $(OUT)
	@echo
	@echo "The report: file://$(abspath $(OUT))/report.html"

# What tests that were skipped say, one line each. The last lines of the output show it.
SKIPPED := $(abspath $(OUT))/skipped.txt

define show_skipped
	@sort -u $(SKIPPED) >$(SKIPPED).sorted; count=$$(wc -l <$(SKIPPED).sorted); \
	echo; if [ $$count = 0 ]; then echo "Skipped tests: none"; else \
	echo "Skipped tests: $$count"; sed 's/^/  /' $(SKIPPED).sorted; fi; rm -f $(SKIPPED).sorted
endef

## Set up, lint and test everything. Tests on SLURM mostly wait and the others compute: they run side
## by side, and those that compute give way. Those on SLURM are left out of the second half, which is
## no reason to call them skipped.
test: export WATTLINE_SKIPPED = $(SKIPPED)
test: lint
	@mkdir -p $(OUT)
	@: >$(SKIPPED); : >$(SKIPPED).beside
	$(CARGO) test --workspace --locked --no-run
	@echo "Tests on SLURM. The others run beside them; theirs is shown when both are done."
	@WATTLINE_LAB=no WATTLINE_SKIPPED=$(SKIPPED).beside \
	nice -n 19 $(CARGO) test --workspace --locked --no-fail-fast >$(OUT)/tests.txt 2>&1 & others=$$!; \
	trap 'kill $$others; exit 130' INT TERM; \
	$(CARGO) test --workspace --locked --no-fail-fast --test 'slurm_*'; slurm=$$?; \
	wait $$others; others=$$?; cat $(OUT)/tests.txt; \
	test $$slurm = 0 -a $$others = 0
	lab/check.sh
	@sed '/: WATTLINE_LAB=no$$/d' $(SKIPPED).beside >>$(SKIPPED); rm -f $(SKIPPED).beside
	$(show_skipped)

## The fast part of the tests: formatting, and what each crate tests of itself
check: export WATTLINE_SKIPPED = $(SKIPPED)
check: setup
	@mkdir -p $(OUT)
	@: >$(SKIPPED)
	$(CARGO) fmt --all --check
	$(CARGO) test --workspace --locked --lib
	$(show_skipped)

# The seed of a nightly run: another one each time, unless SEED says which.
ifndef SEED
SEED := $(shell od -An -N4 -tu4 /dev/urandom | tr -d ' ')
endif

## Property tests with ten times as many cases, drawn anew; SEED=… draws those of an earlier run
nightly: export WATTLINE_SKIPPED = $(SKIPPED)
nightly:
	@mkdir -p $(OUT)
	@: >$(SKIPPED)
	@echo "Cases are drawn with seed $(SEED). To draw the same again: make nightly SEED=$(SEED)"
	@WATTLINE_NIGHTLY=$(SEED) WATTLINE_LAB=no nice -n 19 $(CARGO) test --workspace --locked --no-fail-fast || \
	{ echo "Failed with seed $(SEED). To draw the same again: make nightly SEED=$(SEED)"; exit 1; }
	$(show_skipped)

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
	@mkdir -p $(OUT)
	$(CARGO) bench --workspace --locked
	$(WATTLINE) bench sim --scenario demo
	$(WATTLINE) bench sim --scenario scale --scaling
	$(WATTLINE) bench predict
	$(WATTLINE) bench plan --scaling
	$(WATTLINE) bench serve --folder $(OUT)

## The page of results, by the commands it shows; ONLY=andreas,plan writes some sections anew
results: build
	$(WATTLINE) bench results $(if $(ONLY),--only $(ONLY))

## Licences, advisories and sources of dependencies (needs cargo-deny)
deny:
	$(CARGO) deny check

## The book (needs mdbook)
book:
	mdbook build docs

## A Debian package in target/debian (needs cargo-deb: cargo install cargo-deb)
deb: build
	rm -rf out/package && mkdir -p out/package/completions
	$(WATTLINE) man --out out/package/man
	for shell in bash zsh fish; do $(WATTLINE) completions $$shell >out/package/completions/wattline.$$shell; done
	$(CARGO) deb -p wattline --no-build --locked

clean:
	$(CARGO) clean
	rm -rf $(OUT)
