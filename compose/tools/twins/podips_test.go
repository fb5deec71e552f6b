package twins

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubelettypes "k8s.io/kubelet/pkg/types"
	"k8s.io/kubernetes/pkg/kubelet"
	"k8s.io/kubernetes/pkg/kubelet/kuberuntime"
	netutils "k8s.io/utils/net"

	"github.com/microlet/microlet/services/podsync/internal/cri/runtime"
	podstatus "github.com/microlet/microlet/services/podsync/internal/pod/status"
)

// addressed is what the runtime says of a pod's addresses, and the node's own.
type addressed struct {
	NodeIPs, IPs []string
	NoNetwork    bool
}

var _ = register(Pair[addressed, []string]{
	Name: "podips",
	Generate: func(s *Source) addressed {
		in := addressed{
			NodeIPs:   OneOf(s, []string{"10.0.0.1"}, []string{"fd00::1"}, []string{"10.0.0.1", "fd00::1"}, nil),
			NoNetwork: s.Percent(5),
		}
		for range OneOf(s, 1, 2, 0, 3) {
			// None is empty: the kubelet replaces a sandbox without a first address.
			in.IPs = append(in.IPs, OneOf(s, "10.1.0.1", "fd01::1", "10.1.0.2", "fd01:0:0::2", "FD01::3", "::ffff:10.1.0.3",
				"10.1.00.4", "junk", "10.1.0.5/24", "fe80::1%eth0"))
		}
		return in
	},
	Upstream: func(in addressed) []string {
		t := kuberuntime.NewTwinConfig(nil, nil, &kuberuntime.TwinSettings{})
		helper := kubelet.NewTwinHelper(&kubelet.TwinNode{NodeIPs: kubeIPs(in.NodeIPs)})
		return slices.Concat(helper.SortIPs(t.IPs(context.Background(), in.status())))
	},
	Ours: func(in addressed) []string {
		r, err := runtime.New(boxes{status: in.status()}, nil, runtime.Options{Log: slog.New(slog.DiscardHandler)})
		must(err)
		state, err := r.State(context.Background(), "u1")
		must(err)
		return podstatus.SortIPs(state.Sandboxes[0].IPs, slices.Concat(in.NodeIPs, []string{""})[0])
	},
	Differences: []Difference[addressed, []string]{
		{Name: "leaves out what is no address", As: func(in addressed) (addressed, bool) {
			all := in.IPs
			in.IPs = nil
			for _, ip := range all {
				if netutils.ParseIPSloppy(ip) != nil {
					in.IPs = append(in.IPs, ip)
				}
			}
			return in, len(in.IPs) < len(all)
		}},
	},
	Branches: func(_ addressed, out []string) []string {
		switch len(out) {
		case 0:
			return []string{"none"}
		case 1:
			return []string{"one"}
		}
		if netip.MustParseAddr(out[0]).Is6() {
			return []string{"two, IPv6 first"}
		}
		return []string{"two, IPv4 first"}
	},
	Wanted: []string{"none", "one", "two, IPv6 first", "two, IPv4 first"},
	Break:  func(_ addressed, out *[]string) { slices.Reverse(*out) },
})

func (in *addressed) status() *runtimeapi.PodSandboxStatus {
	status := &runtimeapi.PodSandboxStatus{
		Id: "sandbox", Metadata: &runtimeapi.PodSandboxMetadata{Name: "web", Uid: "u1"}, CreatedAt: 1,
	}
	if in.NoNetwork {
		return status
	}
	status.Network = &runtimeapi.PodSandboxNetworkStatus{}
	for i, ip := range in.IPs {
		if i == 0 {
			status.Network.Ip = ip
		} else {
			status.Network.AdditionalIps = append(status.Network.AdditionalIps, &runtimeapi.PodIP{Ip: ip})
		}
	}
	return status
}

// boxes is a runtime with one sandbox.
type boxes struct {
	grpc.ClientConnInterface
	status *runtimeapi.PodSandboxStatus
}

func (b boxes) Invoke(_ context.Context, _ string, _, reply any, _ ...grpc.CallOption) error {
	switch r := reply.(type) {
	case *runtimeapi.ListPodSandboxResponse:
		r.Items = []*runtimeapi.PodSandbox{{
			Id: b.status.Id, Labels: map[string]string{kubelettypes.KubernetesPodUIDLabel: "u1"},
		}}
	case *runtimeapi.PodSandboxStatusResponse:
		r.Status = b.status
	}
	return nil
}
