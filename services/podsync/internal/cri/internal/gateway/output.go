package gateway

import (
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/proto/role"
)

// maxOutput is how much of each output of a command the prober gets: as much as it shows.
const maxOutput = 10 << 10

// shortened are the answers to a role's calls that are not passed on as they come: a container can print 16 MiB at each
// probe, and all containers of a node at the same moment.
var shortened = map[role.Role]map[string]func(answer []byte) ([]byte, error){role.Prober: {"ExecSync": shortOutput}}

func shortOutput(data []byte) ([]byte, error) {
	if len(data) <= maxOutput {
		return data, nil
	}
	var a runtimeapi.ExecSyncResponse
	if err := proto.Unmarshal(data, &a); err != nil {
		return nil, err
	}
	a.Stdout, a.Stderr = a.Stdout[:min(len(a.Stdout), maxOutput)], a.Stderr[:min(len(a.Stderr), maxOutput)]
	return proto.Marshal(&a)
}
