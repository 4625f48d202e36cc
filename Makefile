# What people and machines do with larder. `make test` is all that CI runs.

CARGO_TARGET_DIR ?= target
export CARGO_TARGET_DIR

# The clients' tests use the development build: `cargo test` has just made it, and a release build would take longer
# than all tests together. Hashing, where it would be slow, is optimised there too (Cargo.toml, profile.dev).
larder := $(CARGO_TARGET_DIR)/debug/larder

# Run one command as a named stage and say how long it took.
stage = @begin=$$(date +%s) && echo "== $@" && $(1) && echo "== $@: $$(($$(date +%s) - begin)) s"

.PHONY: test run demo bench image conformance fmt fmt-check lint unit doc deny clients push side-by-side scripts

test: fmt-check lint unit doc deny clients push side-by-side conformance

# In this order also under `make -j`: they share the cores and the lock of the target folder.
.NOTPARALLEL:

run:
	cargo run --release -- serve $(CONFIG)

demo:
	cargo run --release -- demo

bench:
	cargo build --release --bin larder --example load
	benches/serve.sh $(CARGO_TARGET_DIR)/release

image:
	deploy/image.sh

fmt:
	cargo fmt

fmt-check:
	$(call stage,.ci/needs rustfmt cargo fmt --check)

lint:
	$(call stage,.ci/needs clippy cargo clippy --locked --all-targets -- -D warnings)

# The library, the binary, and conformance/ (over HTTP against an upstream that misbehaves).
unit:
	$(call stage,cargo test --locked)

doc:
	$(call stage,env RUSTDOCFLAGS="-D warnings" cargo doc --locked --no-deps --document-private-items)

deny:
	$(call stage,if cargo deny --version >/dev/null 2>&1; then cargo deny check; else .ci/deny.py; fi)

# Real containerd, skopeo and crane.
clients: $(larder)
	$(call stage,conformance/clients/run.sh $(larder))

# Real skopeo, buildah, crane and oras push to a larder that hosts; a second one caches it.
push: $(larder)
	$(call stage,conformance/clients/push.sh $(larder))

# Beside the registries that larder replaces.
side-by-side: $(larder)
	$(call stage,conformance/clients/sidebyside.sh $(larder))

# The official OCI conformance suite. Its reports stay beside what was built.
conformance: $(larder)
	$(call stage,env LARDER_REPORTS=$(CARGO_TARGET_DIR)/conformance conformance/official/run.sh $(larder))

# Always asked: only cargo knows whether it is new enough.
.PHONY: $(larder)
$(larder):
	@cargo build --locked --quiet --bin larder
