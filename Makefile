# microlet: `make run` shows it, `make test` proves it. `make help` lists what a change needs, `make help-all` the rest.

SHELL := /bin/bash
.DEFAULT_GOAL := help

# The modules of the workspace.
MODULES := $(shell sed -n 's,^	\./,,p' go.work)

# Programs that are built once and kept outside the checkout.
CACHE ?= $(or $(MICROLET_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/microlet)
TOOLS := $(CACHE)/dev

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X github.com/microlet/microlet/services/internal/telemetry.Version=$(VERSION)

RIG := bin/rig
STAGE := scripts/stage
GO := go
export GOFLAGS := -buildvcs=false

# The end-to-end scenarios need the rig and run by themselves.
UNIT := ./proto/... ./services/... ./compose/rig/... ./compose/e2e/internal/...

# The module of the project's own tools. It is not in the workspace, so that it changes no version there.
OWN_TOOLS := compose/tools

# The scenarios. Each package of them starts a rig of its own, when one of its scenarios runs: one after the other.
SCENARIOS := ./compose/e2e/scenarios
E2E := $(GO) test -count=1 -p 1

# The sets of build tags, besides the empty one. Each file is in one of them at least.
export TAG_SETS := long machine long,machine bench compose upgrade

# Behind a target, ## is a text for help and help-all, ### one for help-all alone, whose groups begin with ##@.
.PHONY: help
help:
	@awk -F ':[^#]*## ' '/^[a-z-]+:[^#]*## / { printf "%-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: help-all
help-all: ## every target
	@awk -F ':[^#]*##+ ' '/^##@ / { print "\n" substr($$0, 5) ":" } \
		/^[a-z-]+:[^#]*##+ / { printf "  %-19s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

##@ Build and run

# grpcnotrace leaves pages of golang.org/x/net/trace out of gRPC that nothing serves. They are templates, and a program
# that executes templates keeps every exported method of every type: a quarter more than microlet needs.
# scripts/verify-methods looks for that.
BUILD_TAGS := grpcnotrace

# As the rig builds its programs, and releases are built: a package of both is compiled once. Since nothing is linked with
# debug information, none is made; with that, and less garbage collection, the compiler takes four fifths of the time.
COMPILE := CGO_ENABLED=0 GOGC=800 $(GO) build -tags $(BUILD_TAGS) -trimpath -gcflags=all=-dwarf=false -ldflags '$(LDFLAGS)' -o bin/

.PHONY: build
build: ## build bin/microlet, bin/microlet-local and bin/rig
	$(COMPILE) ./services/microlet/cmd/microlet ./services/microlet/cmd/microlet-local ./compose/rig/cmd/rig

# What a node of the rig runs besides microlet. It is built while microlet and the rig are.
.PHONY: node-programs
node-programs:
	@$(COMPILE) ./compose/rig/cmd/rig-node-programs && bin/rig-node-programs

# Not empty: no control plane is built.
STANDALONE ?=

.PHONY: run
run: ## a node with a pod, then a cluster; STANDALONE=1: the node alone
	@begun=$$(date +%s) && $(MAKE) --no-print-directory --jobs=2 build node-programs && \
	$(RIG) run --agent microlet --microlet bin/microlet --demo --begun $$begun $(if $(STANDALONE),--standalone)

.PHONY: clean-rig
clean-rig: ## remove everything that rigs left, crashed ones too
	$(GO) build -o bin/ ./compose/rig/cmd/rig
	$(RIG) clean

##@ Tests

# What a node on a machine of its own shows within a minute: systemd starts, stops and restarts the agent, pods run in
# its cgroups.
SHORTEST_ON_MACHINE := ^(TestBasic|TestUnitRestart|TestUnitAccounts)$$

.PHONY: test
test: ## unit tests, each service alone, short end-to-end scenarios
	@$(STAGE) 'build' $(MAKE) --no-print-directory build
	@# First, since it installs what tests need of the machine too, such as iptables.
	@# The kernel takes a quarter of an hour of a core, once a version.
	@$(STAGE) 'rig programs, kernel and disk' $(RIG) build --with kubelet,machine,devices
	@$(STAGE) 'unit and service tests' scripts/unit $(UNIT)
	@# They read files of other modules, which the cache of results does not know.
	@$(STAGE) 'tools' env GOWORK=off $(GO) -C $(OWN_TOOLS) test -count=1 -race ./...
	@$(STAGE) 'twins of functions' $(MAKE) --no-print-directory twins
	@$(STAGE) 'short end to end' $(E2E) -timeout 20m $(SCENARIOS)/...
	@$(STAGE) 'shortest on a machine' $(E2E) -timeout 10m -tags machine -run '$(SHORTEST_ON_MACHINE)' $(SCENARIOS)/machine

# The service that test-service tests, such as pleg.
SERVICE ?=

.PHONY: test-service
test-service: ## the tests of one service: SERVICE=pleg
	@test -d 'services/$(or $(SERVICE),none)' || { echo 'say which service: make test-service SERVICE=pleg' >&2; exit 2; }
	scripts/unit ./services/$(SERVICE)/...

# How long the functions of the kubelet and ours are compared, from which seed, and what else the test is told: -only
# PAIR for one of them, -input N for one input.
TWINS_TIME ?= 1m
TWINS_SEED ?= 1
TWINS_FLAGS ?=

.PHONY: twins
twins: ### our functions beside the kubelet's own, with the same random input: TWINS_TIME=1m TWINS_SEED=1 TWINS_FLAGS=
	scripts/twins $(CACHE) test -vet=off -count=1 -timeout 0 -v . -args -for $(TWINS_TIME) -seed $(TWINS_SEED) $(TWINS_FLAGS)

# How long test-long compares them.
TWINS_LONG ?= 1h

# How long fuzz runs each target.
FUZZTIME ?= 1m

.PHONY: fuzz
fuzz: ## every fuzz target for a while: FUZZTIME=1m
	@scripts/fuzz $(FUZZTIME)

.PHONY: test-long
test-long: build monitoring-test ## the outages, kills and tables in full
	@$(STAGE) 'rig programs' $(RIG) build --with kubelet,prometheus,metrics-server,charts,csi,traces,devices
	@$(STAGE) 'twins of functions' $(MAKE) --no-print-directory twins \
		TWINS_TIME=$(TWINS_LONG) TWINS_SEED=$$(date +%s) TWINS_FLAGS=-stale
	@$(STAGE) 'long end to end' $(E2E) -timeout 120m -v -tags long $(SCENARIOS)/...

# Of the packages whose scenarios are not about processes, those that are: a process of one service is looked at, or a
# kubelet alone.
ISOLATION ?= ^(Test.*OfTheKubelet|TestDeletedWhilePodsyncIsDown|TestHandover|TestHungVolume|TestSingle|TestStats.*|TestVolumesHandover)$$
# A placement as --placement of microlet up takes it.
PLACEMENT ?= compact

.PHONY: test-placement
test-placement: build ### every scenario that is not about isolation, in a placement: PLACEMENT=compact
	@$(STAGE) 'rig programs' $(RIG) build --with kubelet,prometheus
	@$(STAGE) 'placement $(PLACEMENT)' env MICROLET_PLACEMENT=$(PLACEMENT) $(E2E) -timeout 60m -v -tags long -skip '$(ISOLATION)' $(addprefix $(SCENARIOS)/,pods outages stats)

.PHONY: test-single
test-single: ### the same with all services in one process
	@$(MAKE) --no-print-directory test-placement PLACEMENT=single

# The scenarios that a node on its own machine runs: its own, and those of any node that ask it nothing in another way.
ON_MACHINE ?= ^(TestKills|TestStops|TestHungProcessesComeBack|TestPrivileges|TestCrowd|TestChaos|TestContainerdRestart)$$

.PHONY: test-machine
test-machine: build ## a node on a machine of its own: systemd, cgroup v2, reboots
	@$(STAGE) 'rig programs, kernel and disk' $(RIG) build --with kubelet,machine,kubeadm,nfs,devices
	@$(STAGE) 'machine' $(GO) test -count=1 -timeout 20m -v -tags machine ./compose/rig/machine/...
	@$(STAGE) 'a node on a machine' $(E2E) -timeout 80m -v -tags machine $(SCENARIOS)/machine
	@$(STAGE) 'a node of kubeadm, handed over' $(E2E) -timeout 60m -v -tags 'machine long' -run '^TestKubeadmHandover$$' $(SCENARIOS)/machine
	@$(STAGE) 'NFS, on a machine' $(E2E) -timeout 60m -v -tags machine $(SCENARIOS)/nfs
	@$(STAGE) 'a clock that jumps' $(E2E) -timeout 30m -v -tags 'machine long' -run '^TestClockJumps$$' $(SCENARIOS)/identity
	@$(STAGE) 'any node, on a machine' $(E2E) -timeout 60m -v -tags machine -run '$(ON_MACHINE)' $(addprefix $(SCENARIOS)/,pods services outages)

# What else the images are made of: kubelet, prometheus.
WITH ?=

.PHONY: images
images: build ### load the images of compose/compose.yaml into Docker: WITH=kubelet,prometheus
	$(RIG) images --with '$(WITH)' | docker load

.PHONY: compose-test
compose-test: build ### each service in a container of its own: kills, scale, what is left; it installs docker.io where there is no dockerd
	@$(STAGE) 'rig programs' $(RIG) build --with compose,kubelet,prometheus
	@$(STAGE) 'compose' $(E2E) -timeout 20m -v -tags compose $(SCENARIOS)/compose

# Another build of microlet, such as bin/microlet of an earlier commit: to compare this one with, in place of the kubelet,
# or to upgrade a node from.
BEFORE ?=

.PHONY: upgrade-test
upgrade-test: build ### a node gets this build in place of BEFORE=, one process after the other, and goes back
	@$(STAGE) 'rig programs' $(RIG) build --with csi
	@MICROLET_BEFORE='$(BEFORE)' $(STAGE) 'upgrade' $(E2E) -timeout 30m -v -tags upgrade $(SCENARIOS)/upgrades

##@ Beside the kubelet

# How often bench measures each agent in turn, and whether the node has half of the processors: ONE_CORE=1. BENCH names
# some of the benches. Their samples go to a folder, in JSON.
ROUNDS ?= 3
ONE_CORE ?=
BENCH ?= $(if $(BEFORE),^TestBuilds$$,^TestBench)
BENCH_RESULTS ?= bench-results

.PHONY: bench
bench: build ## memory, CPU, start times beside the kubelet's: ROUNDS= BENCH=
	@$(RIG) build --with kubelet
	MICROLET_BEFORE='$(BEFORE)' $(E2E) -timeout 300m -v -tags bench -run '$(BENCH)' ./compose/e2e/benches \
		-args -rounds $(ROUNDS) $(if $(ONE_CORE),-one-core) -results $(abspath $(BENCH_RESULTS))

.PHONY: bench-record
bench-record: ### add the samples of the last bench of agents to the history, and draw it
	GOWORK=off $(GO) -C $(OWN_TOOLS) run ./benchhistory -add $(abspath $(BENCH_RESULTS))/TestBenchAgents.json \
		-chart $(abspath docs/images/performance.svg) $(abspath docs/performance.jsonl)

# Upstream's specs: which family of compose/conformance/families, and with whom. In place of the family's, FOCUS is a
# regular expression over names, LABELS a filter of labels, and PROCS how many run at once. MACHINE=1 gives the node a
# machine of its own.
FAMILY ?= e2e
AGENT ?= both
FOCUS ?=
PROCS ?=
MACHINE ?=
# LABELS may be empty, which selects all.
CONFORMANCE = $(RIG) conformance --microlet bin/microlet --family '$(FAMILY)' --agent '$(AGENT)' \
	$(if $(FOCUS),--focus '$(FOCUS)') $(if $(filter-out undefined,$(origin LABELS)),--labels '$(LABELS)') \
	$(if $(PROCS),--procs '$(PROCS)') $(if $(MACHINE),--machine)

.PHONY: conformance
conformance: build ## upstream's specs with both agents: FAMILY= AGENT= FOCUS= MACHINE=
	@$(CONFORMANCE)

.PHONY: conformance-record
conformance-record: build ### all of FAMILY=e2e or node, and write the kubelet's list and docs/conformance.md
	@$(CONFORMANCE) --record

##@ Checks

.PHONY: verify
verify: ## format, generated code, contract, vet, lint, links, structure
	@$(STAGE) 'tools' $(MAKE) --no-print-directory $(TOOLS)/buf $(TOOLS)/golangci-lint $(TOOLS)/deadcode
	@$(STAGE) 'format' scripts/verify-format
	@$(STAGE) 'generated code' scripts/verify-generated $(TOOLS)
	@$(STAGE) 'metrics reference' env GOWORK=off $(GO) -C $(OWN_TOOLS) run ./metricsdoc -check $(METRICS)
	@$(STAGE) 'contract' scripts/verify-breaking $(TOOLS)
	@$(STAGE) 'dependabot' scripts/verify-dependabot
	@$(STAGE) 'modules' scripts/verify-modules $(MODULES) $(OWN_TOOLS)
	@$(STAGE) 'vet' scripts/verify-vet $(MODULES)
	@$(STAGE) 'lint' scripts/verify-lint $(TOOLS) $(MODULES)
	@$(STAGE) 'dead code' scripts/verify-deadcode $(TOOLS)
	@$(STAGE) 'links' scripts/verify-links
	@$(STAGE) 'methods' scripts/verify-methods $(BUILD_TAGS) ./services/microlet/cmd/microlet ./services/microlet/cmd/microlet-local
	@# It reads what go list says, which the cache of results does not know.
	@$(STAGE) 'structure' $(GO) test -count=1 ./compose/e2e/walls
	@$(STAGE) 'imports of the twins' scripts/twins $(CACHE) list -deps -test . >/dev/null

##@ What is shipped

# Where release writes.
RELEASE_DIR ?= bin/release

.PHONY: release
release: ## archives, an image, checksums: VERSION= RELEASE_DIR= SIGNING_KEY=
	@$(STAGE) 'release $(VERSION)' scripts/release '$(VERSION)' '$(RELEASE_DIR)'

# Where packages writes.
PACKAGES_DIR ?= bin/packages

.PHONY: packages
packages: ### a deb and an rpm for amd64 and arm64, with checksums: VERSION= PACKAGES_DIR=bin/packages SIGNING_KEY=
	@$(STAGE) 'packages $(VERSION)' scripts/packages '$(VERSION)' '$(PACKAGES_DIR)'

# The architecture of the machine that tests.
ARCHITECTURE := $(shell $(GO) env GOARCH)

.PHONY: chart-test
chart-test: build ### the Helm charts, with the real Helm: values, install, upgrade, rollback, crash, uninstall under probed pods
	@$(STAGE) 'rig programs' $(RIG) build --with charts,prometheus
	@$(STAGE) 'charts' $(E2E) -timeout 20m -v -tags long $(SCENARIOS)/charts

.PHONY: packages-test
packages-test: build cli-files ### install, upgrade, downgrade and remove the deb in a clean Debian; first the disk of the machine and the deb
	@$(STAGE) 'install and uninstall' scripts/install-test bin/microlet bin/share
	@$(STAGE) 'rig programs and disk' $(RIG) build --with machine
	@$(STAGE) 'packages' env ARCHITECTURES=$(ARCHITECTURE) scripts/packages '$(VERSION)' bin/packages-test
	@$(STAGE) 'packages test' scripts/packages-test bin/packages-test/*_$(ARCHITECTURE).deb '$(CACHE)'

# Below which folder install installs; empty is this machine.
DESTDIR ?=

.PHONY: install
install: build cli-files ## the programs, units, users, pages and completions: DESTDIR=
	scripts/install bin/microlet bin/share '$(DESTDIR)'

.PHONY: uninstall
uninstall: build cli-files ### remove what install installed: DESTDIR=
	scripts/uninstall bin/microlet bin/share '$(DESTDIR)'

$(TOOLS)/govulncheck: $(OWN_TOOLS)/go.sum
	mkdir -p $(TOOLS)
	cd $(OWN_TOOLS) && GOWORK=off GOBIN=$(TOOLS) $(GO) install tool
	touch $@

.PHONY: vulncheck
vulncheck: build $(TOOLS)/govulncheck ### known vulnerabilities in what microlet is built from; asks vuln.go.dev
	$(TOOLS)/govulncheck ./services/...

$(TOOLS)/promtool: compose/tools/prometheus/go.mod
	@mkdir -p $(TOOLS)
	@# As the rig builds Prometheus, so that packages of both are compiled once.
	CGO_ENABLED=0 GOWORK=off $(GO) -C compose/tools/prometheus build -trimpath -gcflags=all=-dwarf=false \
		-tags remove_all_sd -o $@ github.com/prometheus/prometheus/cmd/promtool

.PHONY: monitoring-test
monitoring-test: $(TOOLS)/promtool ### the alerts, with the real promtool
	$(TOOLS)/promtool check rules deploy/monitoring/rules.yaml
	$(TOOLS)/promtool test rules deploy/monitoring/rules-test.yaml
	$(TOOLS)/promtool check rules deploy/monitoring/rollout-rules.yaml
	$(TOOLS)/promtool test rules deploy/monitoring/rollout-rules-test.yaml

.PHONY: cli-files
cli-files: ### microlet's manual pages and shell completions, below bin/share as packages have them in /usr/share
	$(COMPILE) ./services/microlet/cmd/clifiles
	bin/clifiles bin/share

.PHONY: trace-picture
trace-picture: ### the picture of a pod's start in docs/images/trace.svg, from a real run
	scripts/trace-picture

.PHONY: readme-pictures
readme-pictures: ### the pictures of terminals in README.md, from a real run; needs termtosvg
	scripts/readme-pictures

##@ Files that are written

# The sources of the metrics reference, and its page.
METRICS := $(CURDIR)/services $(CURDIR)/docs/metrics.md

# The packages whose tests write a page of docs/.
PAGES := ./services/internal/kubeletconfig ./services/podsync/internal/pod/fields

.PHONY: fix
fix: generate ## write what verify compares, such as format and generated code
	git ls-files -z '*.go' ':!*.pb.go' | xargs -0 gofmt -w
	@for m in $(MODULES) $(OWN_TOOLS); do echo "go mod tidy: $$m"; GOWORK=off $(GO) -C $$m mod tidy || exit 1; done
	@for p in $(PAGES); do $(GO) test "$$p" -update || exit 1; done

.PHONY: mutation
mutation: ### how much the tests of the decision notice
	GOWORK=off $(GO) -C $(OWN_TOOLS) build -o $(CURDIR)/bin/mutation ./mutation
	bin/mutation -explained compose/tools/mutation/decide.explained services/podsync/internal/pod/decide

.PHONY: generate
generate: $(TOOLS)/buf ### regenerate the contract's code and the metrics reference
	cd proto && PATH=$(TOOLS):$$PATH buf generate
	GOWORK=off $(GO) -C $(OWN_TOOLS) run ./metricsdoc $(METRICS)

$(TOOLS)/buf: compose/tools/proto/go.mod
	@mkdir -p $(TOOLS)
	cd compose/tools/proto && GOWORK=off GOBIN=$(TOOLS) $(GO) install tool
	@touch $@

$(TOOLS)/golangci-lint $(TOOLS)/deadcode &: compose/tools/lint/go.mod
	@mkdir -p $(TOOLS)
	cd compose/tools/lint && GOWORK=off GOBIN=$(TOOLS) $(GO) install tool
	@touch $(TOOLS)/golangci-lint $(TOOLS)/deadcode
