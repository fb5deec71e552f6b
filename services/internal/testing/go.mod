module github.com/microlet/microlet/services/internal/testing

go 1.26.0

require (
	github.com/godbus/dbus/v5 v5.2.2
	github.com/google/go-cmp v0.7.0
	google.golang.org/grpc v1.85.0
	k8s.io/cri-api v0.37.2
	k8s.io/kubelet v0.37.2
)

require (
	github.com/stretchr/testify v1.12.1 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260817212433-ac3dfec99bb1 // indirect
)

require (
	github.com/microlet/microlet/proto v0.0.0
	golang.org/x/net v0.60.0 // indirect
	golang.org/x/sys v0.49.0
	golang.org/x/text v0.43.0 // indirect
	google.golang.org/protobuf v1.36.12
)

replace github.com/microlet/microlet/proto => ../../../proto
