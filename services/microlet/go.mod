module github.com/microlet/microlet/services/microlet

go 1.26.0

require (
	github.com/microlet/microlet/services/internal v0.0.0
	github.com/prometheus/client_golang v1.25.0
	golang.org/x/sys v0.49.0
)

require (
	github.com/beorn7/perks v1.0.1 // indirect
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/go-logr/logr v1.4.4 // indirect
	github.com/klauspost/compress v1.20.3 // indirect
	github.com/munnerz/goautoneg v0.0.0-20191010083416-a7dc8b61c822 // indirect
	github.com/prometheus/client_model v0.6.3 // indirect
	github.com/prometheus/common v0.72.0 // indirect
	github.com/prometheus/procfs v0.22.0 // indirect
	github.com/spf13/pflag v1.0.10 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
	k8s.io/klog/v2 v2.140.0 // indirect
)

replace (
	github.com/microlet/microlet/proto => ../../proto
	github.com/microlet/microlet/services/bus => ../bus
	github.com/microlet/microlet/services/internal => ../internal
	github.com/microlet/microlet/services/nodestatus => ../nodestatus
	github.com/microlet/microlet/services/pleg => ../pleg
	github.com/microlet/microlet/services/podsync => ../podsync
)
