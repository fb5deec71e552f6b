package build

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
)

// Program is one executable of the rig.
type Program struct {
	Name    string
	Module  string // the folder of the module that pins it, from compose/tools
	Package string
	// Test builds the package's tests into the executable, as go test -c does.
	Test bool
	CGO  bool
	Tags string
	// Stamp returns linker variables that give the program its version.
	Stamp func(version string) map[string]string
	// Groups name what the program is for; without any every rig needs it.
	Groups []string
	// Sources are what the program is built from, as patterns of files below the module's folder: of the rig's own.
	Sources []string
}

// Groups of programs that are built on demand only.
const (
	GroupKubelet         = "kubelet"          // the real kubelet, to compare with
	GroupConformance     = "conformance"      // upstream's end-to-end suite, and the images that it needs
	GroupNodeConformance = "node-conformance" // upstream's suite of the node, and the images that it needs
	GroupPrometheus      = "prometheus"       // the real Prometheus, which scrapes the node, and a page of its figures
	GroupMetricsServer   = "metrics-server"   // the real metrics-server, behind the API server's aggregation layer
	GroupMachine         = "machine"          // a machine of its own for the node, with its kernel and its disk
	GroupCompose         = "compose"          // the rig in containers, and Docker Compose
	GroupCharts          = "charts"           // Helm
	GroupKubeadm         = "kubeadm"          // kubeadm, and the images of the control plane and the addons that it starts
	GroupCSI             = "csi"              // a CSI driver, and the controllers beside it
	GroupCSIMock         = "csi-mock"         // the images by which upstream's suite starts its own CSI driver
	GroupTraces          = "traces"           // a collector of traces, to which node agent and runtime send
	GroupNFS             = "nfs"              // an NFS server, which is a package of Debian's and not built here
	GroupDevices         = "devices"          // a device plugin that does what a test asks for
)

// Groups of packages for the kinds of that machine. machine.Build needs them, and they are never named in a call.
const (
	GroupMachineUML  = "machine-uml"
	GroupMachineQEMU = "machine-qemu"
)

// Groups are the names of all groups.
var Groups = []string{GroupKubelet, GroupConformance, GroupNodeConformance, GroupPrometheus, GroupMetricsServer,
	GroupMachine, GroupCompose, GroupCharts, GroupKubeadm, GroupCSI, GroupCSIMock, GroupTraces, GroupNFS, GroupDevices}

// Modules of the project's own programs.
const (
	toolsModule = "."  // compose/tools
	rigModule   = ".." // compose, for the rig's own helpers
)

// Names that the rig starts or hands to another program.
const (
	APIServer         = "kube-apiserver"
	ControllerManager = "kube-controller-manager"
	Scheduler         = "kube-scheduler"
	Kubelet           = "kubelet"
	Kubectl           = "kubectl"
	Kubeadm           = "kubeadm"
	KubeProxy         = "kube-proxy"
	CoreDNS           = "coredns"
	Agnhost           = "agnhost"
	Etcd              = "etcd"
	Containerd        = "containerd"
	Shim              = "containerd-shim-runc-v2"
	Ctr               = "ctr"
	Runc              = "runc"
	Crane             = "crane"
	AgentLoop         = "rig-agent"
	NodeHelper        = "rig-node"
	Compose           = "docker-compose"
	Helm              = "helm"
	Suite             = "e2e.test"
	NodeSuite         = "e2e_node.test"
	Ginkgo            = "ginkgo"
	Prometheus        = "prometheus"
	Dashboard         = "dashboard"
	MetricsServer     = "metrics-server"
	CSIDriver         = "csidriver"
	CSIAttacher       = "csi-attacher"
	CSIProvisioner    = "csi-provisioner"
	CSIResizer        = "csi-resizer"
	CSIRegistrar      = "csi-registrar"
	CSILivenessProbe  = "csi-livenessprobe"
	CSISnapshotter    = "csi-snapshotter"
	Collector         = "otel-collector"
	TraceReceiver     = "trace-receiver"
	SamplePlugin      = "sample-device-plugin"
	DevicePlugin      = "device-plugin"
)

// CNIPlugins are the plugins that the rig's network uses.
var CNIPlugins = []string{"bridge", "host-local", "portmap", "loopback", "firewall"}

// NodePrograms are what a node runs, the registry of its images with it. They are built in a fraction of the time that
// a control plane takes.
var NodePrograms = slices.Concat([]string{Containerd, Shim, Runc, Crane, AgentLoop}, CNIPlugins)

// Programs are all that the rig can build, in the order in which it does.
func Programs() []Program {
	kubernetes := func(name, pkg string, groups ...string) Program {
		return Program{
			Name: name, Module: "kubernetes", Package: pkg, Groups: groups,
			// As upstream's release builds.
			Tags: "selinux,notest,grpcnotrace", Stamp: kubernetesStamp,
		}
	}
	// A module of its own: what it needs besides changes no other program.
	ofKubeadm := func(name string) Program {
		p := kubernetes(name, "k8s.io/kubernetes/cmd/"+name, GroupKubeadm)
		p.Module = "kubeadm"
		return p
	}
	plain := func(name, module, pkg string) Program {
		return Program{Name: name, Module: module, Package: pkg}
	}
	containerd := func(name string) Program {
		return Program{
			Name: name, Module: "containerd", Package: "github.com/containerd/containerd/v2/cmd/" + name,
			// The rig uses overlayfs; these snapshotters need headers or tools. The last is microlet's own tag: gRPC, and
			// what uses it, is compiled once for both.
			Tags: "no_btrfs,no_devmapper,no_zfs,grpcnotrace",
			Stamp: func(version string) map[string]string {
				return map[string]string{"github.com/containerd/containerd/v2/version.Version": version}
			},
		}
	}
	cni := func(kind, name string) Program {
		return plain(name, "cni", "github.com/containernetworking/plugins/plugins/"+kind+"/"+name)
	}
	controller := func(name, module string, groups ...string) Program {
		return Program{
			Name: name, Module: "csicontrollers", Package: module + "/cmd/" + name, Groups: groups,
			Stamp: func(version string) map[string]string { return map[string]string{"main.version": version} },
		}
	}
	return []Program{
		plain(Etcd, "etcd", "go.etcd.io/etcd/server/v3"),
		// Without seccomp every pod with the profile RuntimeDefault fails.
		{Name: Runc, Module: "runc", Package: "github.com/opencontainers/runc", CGO: true, Tags: "seccomp"},
		containerd(Containerd),
		containerd(Shim),
		containerd(Ctr),
		cni("main", "bridge"),
		cni("main", "loopback"),
		cni("ipam", "host-local"),
		cni("meta", "portmap"),
		cni("meta", "firewall"),
		plain(Crane, "registry", "github.com/google/go-containerregistry/cmd/crane"),
		{
			// It uses the standard library and this one package.
			Name: AgentLoop, Module: rigModule, Package: "./rig/cmd/rig-agent",
			Sources: []string{"rig/cmd/rig-agent/*.go", "rig/internal/supervise/*.go"},
		},
		{
			Name: NodeHelper, Module: rigModule, Package: "./rig/cmd/rig-node", Groups: []string{GroupCompose},
			Sources: []string{"go.mod", "go.sum", "rig/cmd/rig-node/*.go", "rig/internal/*/*.go"},
		},
		{
			Name: Compose, Module: "compose", Package: "github.com/docker/compose/v2/cmd", Groups: []string{GroupCompose},
			Stamp: func(version string) map[string]string {
				return map[string]string{"github.com/docker/compose/v2/internal.Version": version}
			},
		},
		{Name: Helm, Module: "helm", Package: "helm.sh/helm/v4/cmd/helm", Groups: []string{GroupCharts}},
		kubernetes(APIServer, "k8s.io/kubernetes/cmd/kube-apiserver"),
		kubernetes(ControllerManager, "k8s.io/kubernetes/cmd/kube-controller-manager"),
		kubernetes(Scheduler, "k8s.io/kubernetes/cmd/kube-scheduler"),
		kubernetes(Kubectl, "k8s.io/kubernetes/cmd/kubectl"),
		kubernetes(Agnhost, "k8s.io/kubernetes/test/images/agnhost"),
		kubernetes(Kubelet, "k8s.io/kubernetes/cmd/kubelet", GroupKubelet),
		ofKubeadm(Kubeadm),
		ofKubeadm(KubeProxy),
		{
			Name: CoreDNS, Module: "coredns", Package: ".", Groups: []string{GroupKubeadm},
			Sources: []string{"go.mod", "go.sum", "*.go"},
		},
		{
			Name:    Suite,
			Module:  "conformance",
			Package: "k8s.io/kubernetes/test/e2e",
			Groups:  []string{GroupConformance},
			Test:    true,
			CGO:     true,
			Tags:    "selinux,notest,grpcnotrace",
			Stamp:   kubernetesStamp,
		},
		{
			Name:    NodeSuite,
			Module:  "conformance",
			Package: "k8s.io/kubernetes/test/e2e_node",
			Groups:  []string{GroupNodeConformance},
			Test:    true,
			Tags:    "selinux,notest,grpcnotrace",
			Stamp:   kubernetesStamp,
		},
		{
			Name: Ginkgo, Module: "conformance", Package: "github.com/onsi/ginkgo/v2/ginkgo",
			Groups: []string{GroupConformance, GroupNodeConformance},
		},
		{
			Name: SamplePlugin, Module: "conformance", Package: "k8s.io/kubernetes/test/images/sample-device-plugin",
			Groups: []string{GroupConformance, GroupNodeConformance},
			Tags:   "selinux,notest,grpcnotrace",
			Stamp:  kubernetesStamp,
		},
		{
			Name: DevicePlugin, Module: rigModule, Package: "./e2e/cmd/device-plugin", Groups: []string{GroupDevices},
			Sources: []string{"go.mod", "go.sum", "e2e/cmd/device-plugin/*.go", "e2e/internal/deviceplugin/*.go"},
		},
		{
			Name:    Prometheus,
			Module:  "prometheus",
			Package: "github.com/prometheus/prometheus/cmd/prometheus",
			Groups:  []string{GroupPrometheus},
			// Without this it contains the clients of some twenty clouds. The node's address comes from a file.
			Tags: "remove_all_sd",
		},
		{
			Name: Dashboard, Module: toolsModule, Package: "./dashboard", Groups: []string{GroupPrometheus},
			Sources: []string{"go.mod", "go.sum", "dashboard/*.go", "dashboard/*.html"},
		},
		{
			Name:    MetricsServer,
			Module:  "metricsserver",
			Package: "sigs.k8s.io/metrics-server/cmd/metrics-server",
			Groups:  []string{GroupMetricsServer},
			Stamp:   componentStamp,
		},
		{
			Name: CSIDriver, Module: toolsModule, Package: "./csidriver", Groups: []string{GroupCSI, GroupCSIMock},
			Sources: []string{"go.mod", "go.sum", "csidriver/*.go", "csidriver/proxy/*.go", "csidriver/registration/*.go"},
		},
		{
			Name: CSIRegistrar, Module: toolsModule, Package: "./csidriver/registrar", Groups: []string{GroupCSIMock},
			Sources: []string{"go.mod", "go.sum", "csidriver/registration/*.go", "csidriver/registrar/*.go"},
		},
		{
			Name: CSILivenessProbe, Module: toolsModule, Package: "./csidriver/livenessprobe", Groups: []string{GroupCSIMock},
			Sources: []string{"go.mod", "go.sum", "csidriver/livenessprobe/*.go"},
		},
		{
			Name: Collector, Module: "collector", Package: ".", Groups: []string{GroupTraces},
			Sources: []string{"go.mod", "go.sum", "*.go"},
		},
		{
			Name: TraceReceiver, Module: toolsModule, Package: "./traces/receiver", Groups: []string{GroupTraces},
			Sources: []string{"go.mod", "go.sum", "traces/receiver/*.go", "traces/span/*.go"},
		},
		controller(CSIAttacher, "github.com/kubernetes-csi/external-attacher/v4", GroupCSI, GroupCSIMock),
		controller(CSIProvisioner, "github.com/kubernetes-csi/external-provisioner/v6", GroupCSI, GroupCSIMock),
		controller(CSIResizer, "github.com/kubernetes-csi/external-resizer/v2", GroupCSI, GroupCSIMock),
		controller(CSISnapshotter, "github.com/kubernetes-csi/external-snapshotter/v8", GroupCSIMock),
	}
}

// componentStamp sets what a program with the machinery of Kubernetes reports as its own version.
func componentStamp(version string) map[string]string {
	return map[string]string{"k8s.io/component-base/version.gitVersion": version}
}

// kubernetesStamp sets what the programs report as their version. Without it
// they say v0.0.0, and components that compare versions with each other
// refuse to work together.
func kubernetesStamp(version string) map[string]string {
	stamp := map[string]string{}
	major, minor, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	minor, _, _ = strings.Cut(minor, ".")
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		stamp[pkg+".gitVersion"] = version
		stamp[pkg+".gitMajor"] = major
		stamp[pkg+".gitMinor"] = minor
		stamp[pkg+".gitTreeState"] = "clean"
		stamp[pkg+".gitCommit"] = "unknown" // a module's archive does not contain it
	}
	return stamp
}

// in reports whether the program is needed for one of the groups.
func (p Program) in(groups []string) bool {
	return len(p.Groups) == 0 ||
		slices.ContainsFunc(p.Groups, func(group string) bool { return slices.Contains(groups, group) })
}

// Version returns the version to which the named program is pinned below the
// folder compose/tools.
func Version(tools, name string) (string, error) {
	for _, p := range Programs() {
		if p.Name == name {
			return p.version(tools)
		}
	}
	return "", fmt.Errorf("find version of %s: the rig has no such program", name)
}

// version returns the version of the module that provides the package, as the
// program's go.mod pins it.
func (p Program) version(tools string) (string, error) {
	if strings.HasPrefix(p.Package, ".") {
		return "own", nil
	}
	path := filepath.Join(tools, p.Module, "go.mod")
	text, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("find version of %s: %w", p.Name, err)
	}
	file, err := modfile.ParseLax(path, text, nil)
	if err != nil {
		return "", fmt.Errorf("find version of %s: %w", p.Name, err)
	}
	best, version := "", ""
	for _, r := range file.Require {
		if (p.Package == r.Mod.Path || strings.HasPrefix(p.Package, r.Mod.Path+"/")) && len(r.Mod.Path) > len(best) {
			best, version = r.Mod.Path, r.Mod.Version
		}
	}
	if best == "" {
		return "", fmt.Errorf("find version of %s: %s requires no module that provides %s", p.Name, path, p.Package)
	}
	return version, nil
}
