package gateway

import (
	"slices"
	"strings"

	"google.golang.org/grpc"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/proto/role"
)

// What a role may call is data, and this file is all of it. Names are CRI's; each is in
// one of the two services only.
var (
	// lists are all that show what there is, in both forms that CRI has.
	lists = []string{
		"ListPodSandbox", "StreamPodSandboxes",
		"ListContainers", "StreamContainers",
		"ListImages", "StreamImages",
	}
	// stats are all that show what is used.
	stats = []string{
		"ContainerStats", "ListContainerStats", "StreamContainerStats",
		"PodSandboxStats", "ListPodSandboxStats", "StreamPodSandboxStats",
		"ListMetricDescriptors", "ListPodSandboxMetrics", "StreamPodSandboxMetrics",
	}
	// hello is what every CRI client asks when it connects, crictl among them. It contains only names and versions.
	hello = []string{"Version"}
)

// methods of each role, without the service's name. A role that is not here has none.
var methods = map[role.Role][]string{
	role.PLEG: slices.Concat(hello, lists, []string{
		"Status", "PodSandboxStatus", "ContainerStatus", "ImageStatus", events,
		// A client of cri-client's image service, as crictl is, asks this when it connects.
		"ImageFsInfo",
		// The rest of the lists: they are all read-only.
		"ListContainerStats", "ListPodSandboxStats", "ListMetricDescriptors", "ListPodSandboxMetrics",
	}),
	role.Prober: slices.Concat(hello, []string{"ExecSync"}),
	role.ImageGC: slices.Concat(hello,
		[]string{"ListImages", "StreamImages", "ImageStatus", "RemoveImage", "ImageFsInfo", "ListContainers",
			"StreamContainers"}),
	role.Stats:   slices.Concat(hello, lists, stats, []string{"ImageFsInfo"}),
	role.Evictor: slices.Concat(hello, lists, stats, []string{"ImageFsInfo"}),
	role.NodeAPI: slices.Concat(hello, lists, []string{
		"ContainerStatus", "Exec", "Attach", "PortForward", "ExecSync", "CheckpointContainer",
	}),
}

// checks are the requests of a role that are decoded and decided upon; all others of its methods are passed
// on as they come, since no field of theirs leads to the host: they name containers, sandboxes, images and
// filters. TestEveryFieldIsAccountedFor holds the list against CRI.
var checks = map[role.Role]map[string]check{
	role.PLEG: {
		"Status":           checked(terse[*runtimeapi.StatusRequest]),
		"PodSandboxStatus": checked(terse[*runtimeapi.PodSandboxStatusRequest]),
		"ContainerStatus":  checked(terse[*runtimeapi.ContainerStatusRequest]),
		"ImageStatus":      checked(terse[*runtimeapi.ImageStatusRequest]),
	},
	role.Prober:  {"ExecSync": checked(probeCommand)},
	role.ImageGC: {"ImageStatus": checked(terse[*runtimeapi.ImageStatusRequest])},
	// What else nodeapi runs in containers is for the apiserver to allow: Exec, Attach, PortForward, ExecSync.
	role.NodeAPI: {
		"ContainerStatus": checked(terse[*runtimeapi.ContainerStatusRequest]),
		"CheckpointContainer": checked(
			checkpointFile,
		),
	},
}

// Roles returns the roles that have a socket, in the order of role.All.
func Roles() []role.Role {
	return slices.DeleteFunc(role.All(), func(r role.Role) bool { return methods[r] == nil })
}

// Allowed reports whether a role may call the method of this full name.
func Allowed(r role.Role, fullMethod string) bool {
	if !slices.Contains(services, strings.TrimPrefix(fullMethod[:max(strings.LastIndex(fullMethod, "/"), 0)], "/")) {
		return false
	}
	return slices.Contains(methods[r], fullMethod[strings.LastIndex(fullMethod, "/")+1:])
}

// descriptions are CRI's services. All of their methods are registered.
var descriptions = []*grpc.ServiceDesc{&runtimeapi.RuntimeService_ServiceDesc, &runtimeapi.ImageService_ServiceDesc}

var services = []string{runtimeapi.RuntimeService_ServiceDesc.ServiceName,
	runtimeapi.ImageService_ServiceDesc.ServiceName}

// patient are the calls that wait by nature: they have no deadline but their caller's.
var patient = []string{"ExecSync", "CheckpointContainer"}

// events is the stream that lasts as long as its caller.
const events = "GetContainerEvents"

// nameOf is a method's name for metrics. gRPC calls no handler for a name that is not registered, so a
// caller cannot make up any number of them.
func nameOf(fullMethod string) string { return fullMethod[strings.LastIndex(fullMethod, "/")+1:] }

// joins reports whether callers may share one answer of this method.
func joins(method string) bool { return strings.HasPrefix(method, "List") }
