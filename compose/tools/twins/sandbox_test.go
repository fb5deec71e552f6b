package twins

import (
	"context"
	"strings"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/kubernetes/pkg/kubelet"
	"k8s.io/kubernetes/pkg/kubelet/kuberuntime"

	"github.com/microlet/microlet/services/podsync/internal/criconfig"
)

// boxed is a pod whose sandbox is configured.
type boxed struct {
	Pod      *v1.Pod
	Settings settings
	Attempt  uint32
	// Groups are those that the pod's volumes ask for.
	Groups []int64
}

// message is what the runtime is given, as text, or the error instead.
type message struct{ Err, Text string }

func textOf(m proto.Message, err error) message {
	if err != nil {
		return message{Err: err.Error()}
	}
	return message{Text: prototext.MarshalOptions{Multiline: true}.Format(m)}
}

var _ = register(Pair[boxed, message]{
	Name: "sandbox",
	Generate: func(s *Source) boxed {
		in := boxed{Settings: drawSettings(s), Pod: drawConfigPod(s), Attempt: uint32(s.Intn(3))}
		if s.Percent(10) {
			in.Groups = []int64{777}
		}
		return in
	},
	Upstream: kubeletSandbox,
	Ours:     ourSandbox,
	Branches: func(in boxed, out message) []string {
		did := found(out.Text, sandboxBranches)
		if out.Err != "" {
			did = append(did, "is an error")
		}
		if in.Pod.Spec.Overhead != nil {
			did = append(did, "overhead")
		}
		return did
	},
	Wanted: append(names(sandboxBranches), "is an error", "overhead"),
	Differences: []Difference[boxed, message]{
		{Name: "does not wait for the groups of volumes", As: func(in boxed) (boxed, bool) {
			wants := len(in.Groups) > 0
			in.Groups = nil
			return in, wants
		}},
	},
	Break: func(_ boxed, out *message) { out.Text = strings.ReplaceAll(out.Text, "UDP", "TCP") },
})

// sandboxBranches are parts of the message.
var sandboxBranches = map[string]string{
	"a host name": "\nhostname:", "ports": "port_mappings:", "UDP": "UDP", "a host port": "host_port:",
	"sysctls": "sysctls:", "privileged": "privileged:", "a user": "run_as_user:", "a group": "run_as_group:",
	"further groups": "supplemental_groups:", "a policy of groups": "supplemental_groups_policy:",
	"SELinux": "selinux_options:", "users of its own": "uids:", "the host's network": "network:",
	"the host's processes": "pid:", "a quota": "cpu_quota:", "all killed together": "unified:",
	"a limit of memory": "memory_limit_in_bytes:",
}

// found is which parts a text has. The form of protobuf has one blank or two after a colon, as the build wants it.
func found(text string, parts map[string]string) []string {
	var names []string
	for name, part := range parts {
		if strings.Contains(text, part) || strings.Contains(text, strings.Replace(part, ": ", ":  ", 1)) {
			names = append(names, name)
		}
	}
	return names
}

func names(parts map[string]string) []string {
	var names []string
	for name := range parts {
		names = append(names, name)
	}
	return names
}

func podDNS() *runtimeapi.DNSConfig { return &runtimeapi.DNSConfig{Servers: []string{"10.96.0.10"}} }

type fixedDNS struct{}

func (fixedDNS) PodDNS(*v1.Pod) (*runtimeapi.DNSConfig, error) { return podDNS(), nil }

func kubeletSandbox(in boxed) (out message) {
	helper := kubelet.NewTwinHelper(&kubelet.TwinNode{
		ClusterDomain: in.Settings.ClusterDomain, CgroupParent: "/kubepods/pod", DNS: podDNS(), Groups: in.Groups,
		Users: userNamespace(in.Pod),
	})
	in.Settings.with(func() {
		out = textOf(kuberuntime.NewTwinConfig(helper, nil, in.Settings.upstream("/root", "/logs")).
			Sandbox(context.Background(), in.Pod.DeepCopy(), in.Attempt))
	})
	return out
}

func ourSandbox(in boxed) message {
	b := criconfig.Builder{Node: in.Settings.ours("/root", "/logs"), DNS: fixedDNS{}}
	return textOf(b.Sandbox(in.Pod, criconfig.SandboxInput{
		Attempt: in.Attempt, CgroupParent: "/kubepods/pod", UserNamespace: userNamespace(in.Pod),
	}))
}
