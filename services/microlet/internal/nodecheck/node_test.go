package nodecheck

import (
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestFindKubelet(t *testing.T) {
	h := machine(t, kubelet("7", "0", "/system.slice/kubelet.service", "--config=/a b", "--node-ip", ""))
	k := FindKubelet(h.Root, nil)
	if k == nil || k.PID != 7 || !slices.Equal(k.Args, []string{"--config=/a b", "--node-ip", ""}) {
		t.Errorf("found %+v", k)
	}
	if k := FindKubelet(h.Root, []int{7}); k != nil {
		t.Errorf("the agent's own process is %+v", k)
	}
	// A link named kubelet leads to microlet.
	if err := os.Symlink("/usr/bin/microlet", h.path("proc/7/exe")); err != nil {
		t.Fatal(err)
	}
	if k := FindKubelet(h.Root, nil); k != nil {
		t.Errorf("microlet is %+v", k)
	}
	if k := FindKubelet(machine(t, kubelet("8", "0", "/")).Root, nil); k == nil || len(k.Args) > 0 {
		t.Errorf("without flags it is %+v", k)
	}
}

func TestTheKubeletThatIsReplaced(t *testing.T) {
	h, r := machine(t, kubelet("7", "0", "/")), &report{}
	h.Like = &Kubelet{PID: 7}
	h.kubelet(r)
	r.expect(t, "kubelet", Warning, "pid 7: its command line is checked here")
}

// Whose a port is decides whether it is a fault.
func TestWhoHasAPort(t *testing.T) {
	const line = "0: 00000000:2808 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 4711 1 0 100 0 0\n"
	files := map[string]string{"proc/net/tcp": line, "proc/9/comm": "nginx\n", "proc/9/fd/none": ""}
	for _, c := range []struct {
		name  string
		set   func(*Host)
		state State
		text  string
	}{
		{"a stranger", func(*Host) {}, Failed, `in use by "nginx", pid 9`},
		{"a stranger beside the agent", func(h *Host) { h.Running, h.Own = true, []int{8} }, Failed, `in use by "nginx", pid 9`},
		{"the agent", func(h *Host) { h.Running, h.Own = true, []int{8, 9} }, OK, "by the running agent"},
		{"the kubelet", func(h *Host) { h.Like = &Kubelet{PID: 9} }, OK, "by the kubelet, pid 9"},
	} {
		h, r := machine(t, files), &report{}
		if err := os.Symlink("socket:[4711]", h.path("proc/9/fd/3")); err != nil {
			t.Fatal(err)
		}
		c.set(&h)
		h.inUse(r, "0.0.0.0:10248", "healthzPort", 10248)
		t.Run(c.name, func(t *testing.T) { r.expect(t, "port", c.state, c.text) })
	}
}

func TestReservations(t *testing.T) {
	files := map[string]string{
		"proc/cpuinfo": "processor\t: 0\nmodel name\t: x\n\nprocessor\t: 1\n", "proc/meminfo": "MemTotal: 4194304 kB\n",
		"sys/fs/cgroup/system.slice/cgroup.procs": "", "sys/fs/cgroup/cpu/daemons/tasks": "",
	}
	k, r := config(t), &report{}
	k.Kubelet.SystemReserved = map[string]string{"cpu": "64000m", "memory": "900Gi"}
	k.Kubelet.EnforceNodeAllocatable = []string{"pods", "system-reserved", "kube-reserved-compressible"}
	k.Kubelet.SystemReservedCgroup, k.Kubelet.KubeReservedCgroup = "/nosuch", "/nosuch"
	machine(t, files).reservations(r, k)
	r.expect(t, "reservations", Failed, "keep 64 of cpu from pods, and the node has 2")
	r.expect(t, "reservations", Failed, "of memory from pods, and the node has 4Gi")
	r.expect(t, "cgroup", Failed, "systemReservedCgroup is /nosuch")
	r.expect(t, "cgroup", Failed, "kubeReservedCgroup is /nosuch")

	r, k = &report{}, config(t)
	k.Kubelet.SystemReserved = map[string]string{"cpu": "500m", "memory": "1Gi"}
	k.Kubelet.EnforceNodeAllocatable = []string{"pods", "system-reserved", "kube-reserved"}
	k.Kubelet.SystemReservedCgroup, k.Kubelet.KubeReservedCgroup = "/system.slice", "/daemons"
	machine(t, files).reservations(r, k)
	if len(r.findings) > 0 {
		t.Errorf("of what the machine has: %+v", r.findings)
	}
}

func TestWhatIsLost(t *testing.T) {
	k := config(t)
	k.Node.RootDir = "/var/lib/kubelet"
	state := map[string]string{
		"var/lib/kubelet/device-plugins/kubelet.sock": "", "var/lib/kubelet/device-plugins/nvidia-gpu.sock": "",
		"var/lib/kubelet/cpu_manager_state":    `{"policyName":"static","entries":{"u":{"c":"2-3"}}}`,
		"var/lib/kubelet/memory_manager_state": `{"policyName":"None"}`,
	}
	r := &report{}
	machine(t, state).lost(r, k)
	r.expect(t, "resource managers", Warning, "cpu_manager_state says that the kubelet had cpuManagerPolicy: static")
	if len(r.findings) != 1 { // device plugins register again
		t.Errorf("%+v", r.findings)
	}
	none := maps.Clone(state)
	none["var/lib/kubelet/cpu_manager_state"] = "{"
	r = &report{}
	if machine(t, none).lost(r, k); len(r.findings) > 0 {
		t.Errorf("of nothing: %+v", r.findings)
	}
}

func TestPodsOfTheNode(t *testing.T) {
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.URL.Query().Get("fieldSelector")+" "+r.URL.Query().Get("continue"))
		next, name := "more", "web"
		if len(asked) > 1 {
			next, name = "", "gpu"
		}
		fmt.Fprintf(w, `{"kind":"PodList","apiVersion":"v1","metadata":{"continue":%q},"items":[
			{"metadata":{"name":%q,"namespace":"shop"},"spec":{}}]}`, next, name)
	}))
	defer server.Close()
	h, r := machine(t, nil), &report{}
	h.Judge = func(manifest []byte) []string {
		if !strings.Contains(string(manifest), "gpu") {
			return nil
		}
		const gpu = ".resources.limits[nvidia.com/gpu]"
		return []string{"spec.containers[0]" + gpu, "spec.containers[1]" + gpu}
	}
	h.pods(t.Context(), r, server.Client(), server.URL, "edge")
	r.expect(t, "pods", Warning, "1 of the 2 pods of the node would be refused, because of "+
		"spec.containers.resources.limits[nvidia.com/gpu] (1): shop/gpu")
	if !slices.Equal(asked, []string{"spec.nodeName=edge ", "spec.nodeName=edge more"}) {
		t.Errorf("asked %q", asked)
	}
	for name, handler := range map[string]http.HandlerFunc{
		"403": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) },
		"{":   func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "{") },
	} {
		bad, r := httptest.NewServer(handler), &report{}
		h.pods(t.Context(), r, bad.Client(), bad.URL, "edge")
		bad.Close()
		t.Run(name, func(t *testing.T) { r.expect(t, "pods", Skipped, "cannot be read") })
	}
	r = &report{}
	asked = []string{"", ""}
	h.Judge = func([]byte) []string { return nil }
	h.pods(t.Context(), r, server.Client(), server.URL, "edge")
	r.expect(t, "pods", OK, "1 run on the node")
}

// A file of a machine that cannot be read never stops the check.
func TestUnreadableFiles(t *testing.T) {
	h := machine(t, map[string]string{"proc/5/comm/x": "", "proc/cpuinfo/x": "", "proc/net/tcp/x": ""})
	if err := os.MkdirAll(filepath.Join(h.Root, "var/lib/kubelet/cpu_manager_state"), 0o750); err != nil {
		t.Fatal(err)
	}
	k := config(t)
	k.Node.RootDir = "/var/lib/kubelet"
	if all := Run(t.Context(), h, k); len(all) < 5 {
		t.Errorf("%+v", all)
	}
}
