module github.com/microlet/microlet/services/pleg

go 1.26.0

require (
	github.com/google/go-cmp v0.7.0
	github.com/microlet/microlet/proto v0.0.0
	github.com/microlet/microlet/services/internal v0.0.0-00010101000000-000000000000
	github.com/prometheus/client_golang v1.24.1
	google.golang.org/grpc v1.85.0
	google.golang.org/protobuf v1.36.12
	k8s.io/cri-api v0.37.2
)

require (
	github.com/beorn7/perks v1.0.1 // indirect
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/kylelemons/godebug v1.1.0 // indirect
	github.com/munnerz/goautoneg v0.0.0-20191010083416-a7dc8b61c822 // indirect
	github.com/prometheus/client_model v0.6.2 // indirect
	github.com/prometheus/common v0.70.1 // indirect
	github.com/prometheus/procfs v0.21.1 // indirect
	golang.org/x/net v0.60.0 // indirect
	golang.org/x/sys v0.48.0 // indirect
	golang.org/x/text v0.42.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260817212433-ac3dfec99bb1 // indirect
)

replace (
	github.com/microlet/microlet/proto => ../../proto
	github.com/microlet/microlet/services/internal => ../internal
)
