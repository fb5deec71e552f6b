package nodecheck

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/internal/kubeletconfig"
)

// runtime asks the runtime for its version, its conditions and its cgroup driver.
func (h Host) runtime(ctx context.Context, r *report, k *kubeletconfig.Config) {
	endpoint := k.RuntimeEndpoint()
	remedy := "start the runtime, or name its socket with containerRuntimeEndpoint, which is " + endpoint
	if socket, ok := strings.CutPrefix(endpoint, "unix://"); ok {
		if _, err := os.Stat(socket); err != nil {
			r.failed("runtime", "nothing serves "+socket, remedy)
			h.cni(r)
			return
		}
	}
	conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		r.failed("runtime", "the endpoint "+endpoint+" cannot be used", remedy)
		return
	}
	defer func() { _ = conn.Close() }() // it was asked, and keeps nothing
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	client := runtimeapi.NewRuntimeServiceClient(conn)
	version, err := client.Version(ctx, &runtimeapi.VersionRequest{})
	if err != nil {
		r.failed("runtime", endpoint+" does not answer: "+status.Convert(err).Message(), remedy)
		h.cni(r)
		return
	}
	r.ok("runtime", "%s %s, CRI %s", version.GetRuntimeName(), version.GetRuntimeVersion(), version.GetRuntimeApiVersion())
	h.cgroupDriver(ctx, r, k, client)
	state, err := client.Status(ctx, &runtimeapi.StatusRequest{})
	if err != nil {
		r.failed("runtime", "its status cannot be read: "+status.Convert(err).Message(), "see the log of the runtime")
		return
	}
	for _, c := range state.GetStatus().GetConditions() {
		h.condition(r, c)
	}
}

func (h Host) condition(r *report, c *runtimeapi.RuntimeCondition) {
	said := strings.Trim(c.GetReason()+": "+c.GetMessage(), ": ")
	switch {
	case c.GetType() == runtimeapi.NetworkReady && c.GetStatus():
		r.ok("cni", "the runtime's network is ready")
	case c.GetType() == runtimeapi.NetworkReady:
		r.failed("cni", "the runtime's network is not ready: "+said,
			"put the configuration of a network plugin into /etc/cni/net.d and its programs into /opt/cni/bin, or start the "+
				"pod that does so")
	case !c.GetStatus() && c.GetType() != runtimeapi.RuntimeReady:
		// Conditions of one runtime, such as containerd's about what a later version drops, keep no pod from running.
		r.warn("runtime", c.GetType()+" is false: "+said, "see the log of the runtime")
	case !c.GetStatus():
		r.failed("runtime", c.GetType()+" is false: "+said, "see the log of the runtime")
	}
}

func (h Host) cgroupDriver(ctx context.Context, r *report, k *kubeletconfig.Config,
	client runtimeapi.RuntimeServiceClient) {
	config, err := client.RuntimeConfig(ctx, &runtimeapi.RuntimeConfigRequest{})
	switch {
	case status.Code(err) == codes.Unimplemented:
		r.warn("cgroup driver", "the runtime does not report which it uses; the agent uses "+k.Kubelet.CgroupDriver,
			"see that the runtime's configuration has the same")
		return
	case err != nil:
		r.warn("cgroup driver", "the runtime does not say which it uses: "+status.Convert(err).Message(),
			"see the log of the runtime")
		return
	}
	driver := strings.ToLower(config.GetLinux().GetCgroupDriver().String())
	if driver != k.Kubelet.CgroupDriver && k.Provenance["cgroupDriver"] != "" {
		r.warn("cgroup driver", "the runtime uses "+driver+", and cgroupDriver is "+k.Kubelet.CgroupDriver+
			": the runtime's holds", "set cgroupDriver: "+driver)
		return
	}
	if _, err := os.Stat(h.path("run/systemd/system")); err != nil && driver == "systemd" {
		r.failed("cgroup driver", "the runtime uses systemd, and systemd does not run here",
			"set the runtime's cgroup driver to cgroupfs")
		return
	}
	r.ok("cgroup driver", "%s", driver)
}

// cni looks for configurations of network plugins while the runtime cannot be asked.
func (h Host) cni(r *report) {
	names, err := filepath.Glob(h.path("etc/cni/net.d/*.conf*"))
	if err != nil || len(names) == 0 {
		r.warn("cni", "/etc/cni/net.d has no configuration of a network plugin",
			"install a network plugin; pods on the host's network run without one")
		return
	}
	r.ok("cni", "%s", names[0])
}
