package rig

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/microlet/microlet/compose/rig/internal/build"
	"github.com/microlet/microlet/compose/rig/internal/config"
	"github.com/microlet/microlet/compose/rig/internal/health"
	"github.com/microlet/microlet/compose/rig/internal/network"
	"github.com/microlet/microlet/compose/rig/internal/pki"
	"github.com/microlet/microlet/compose/rig/internal/process"
	"github.com/microlet/microlet/compose/rig/internal/supervise"
)

// APIPort is the port of the API server.
const APIPort = network.APIPort

// Programs of an instance, as Log and Status name them.
const (
	Etcd              = build.Etcd
	Registry          = "registry"
	Containerd        = build.Containerd
	APIServer         = build.APIServer
	ControllerManager = build.ControllerManager
	Scheduler         = build.Scheduler
	AgentProgram      = "agent"   // the loop around the node agent, and the agent's log
	Machine           = "machine" // the node's own machine
)

// Programs of upstream's end-to-end suites and for them, as Binary names them in an instance
// with GroupConformance or GroupNodeConformance.
const (
	Suite     = build.Suite
	NodeSuite = build.NodeSuite
	Ginkgo    = build.Ginkgo
	Ctr       = build.Ctr
)

// Prometheus, as Binary names it in an instance with GroupPrometheus.
const Prometheus = build.Prometheus

// programs in the order of their start, and last those that start on demand. Those of a node with a machine of its
// own are services there.
func (i *Instance) programs() []string {
	if i.onMachine() {
		return i.withOnDemand([]string{Etcd, Registry, Machine, APIServer, ControllerManager, Scheduler})
	}
	names := []string{Etcd, Registry, Containerd, APIServer, ControllerManager, Scheduler}
	if i.r.Agent != AgentNone {
		names = append(names, AgentProgram)
	}
	return i.withOnDemand(names)
}

// withOnDemand adds the programs that run on demand, where they were built.
func (i *Instance) withOnDemand(names []string) []string {
	if i.hasMetricsServer() {
		names = append(names, MetricsServer)
	}
	if i.hasCSI() {
		names = append(names, csiPrograms()...)
	}
	if i.hasTraces() {
		names = append(names, Collector, TraceReceiver)
	}
	if i.hasNFS() {
		names = append(names, NFSServer)
	}
	return names
}

// spec says how the program is started.
func (i *Instance) spec(name string) process.Spec {
	s := process.Spec{
		Name: name, Path: i.r.Binaries[name], Log: i.Log(name),
		Cgroups: i.tree.ProcsFiles(i.programCgroup(name)),
	}
	certs := i.pkiDir()
	switch name {
	case Etcd:
		client := "https://" + loopback(i.r.Ports.Etcd)
		peer := "http://" + loopback(i.r.Ports.EtcdPeer)
		s.Args = []string{
			"--name=rig", "--data-dir=" + filepath.Join(i.r.Dir, "etcd"),
			"--listen-client-urls=" + client, "--advertise-client-urls=" + client,
			"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer, "--initial-cluster=rig=" + peer,
			"--listen-metrics-urls=http://" + loopback(i.r.Ports.EtcdHealth),
			"--client-cert-auth", "--trusted-ca-file=" + filepath.Join(certs, pki.CA),
			"--cert-file=" + pki.Cert(certs, pki.Etcd), "--key-file=" + pki.Key(certs, pki.Etcd),
			// The data is worth nothing after a crash of the machine.
			"--unsafe-no-fsync", "--logger=zap", "--log-level=warn",
		}
	case Registry:
		s.Path = i.r.Binaries[build.Crane]
		s.Args = []string{"registry", "serve", "--address=" + i.Registry(),
			"--disk=" + filepath.Join(i.r.Dir, "registry")}
		// It reads layers into memory, and would keep that for long.
		s.Env = []string{"GOMEMLIMIT=128MiB"}
	case Containerd:
		s.Args = []string{"--config=" + i.containerdConfig().ConfigFile(), "--log-level=info"}
		// With a proxy of the environment it would ask that for the registry.
		// The shim must be in PATH, not only in the configuration: a containerd
		// that was restarted looks there when it attaches to its containers,
		// and kills them if it finds none.
		s.Env = []string{"NO_PROXY=*", "no_proxy=*", "PATH=" + i.binDir() + ":" + os.Getenv("PATH")}
		s.Env = append(s.Env, i.containerdTraces()...)
	case APIServer:
		s.Args = i.apiServerArgs()
	case ControllerManager:
		kubeconfig := pki.Kubeconfig(certs, pki.ControllerManager)
		s.Args = []string{
			"--kubeconfig=" + kubeconfig, "--authentication-kubeconfig=" + kubeconfig,
			"--authorization-kubeconfig=" + kubeconfig,
			"--bind-address=127.0.0.1", "--secure-port=" + strconv.Itoa(i.r.Ports.ControllerManager),
			"--cert-dir=" + filepath.Join(i.r.Dir, "serving", name),
			"--leader-elect=false", "--use-service-account-credentials=true",
			// Each controller gets a token of its own at the start, one after the
			// other: with the default of 20 requests a second that takes 5 s.
			"--kube-api-qps=500", "--kube-api-burst=1000",
			// It decides on figures that are seconds old, not minutes, where a HorizontalPodAutoscaler lets it.
			"--horizontal-pod-autoscaler-sync-period=2s",
			"--horizontal-pod-autoscaler-initial-readiness-delay=1s",
			"--horizontal-pod-autoscaler-cpu-initialization-period=10s",
			"--root-ca-file=" + filepath.Join(certs, pki.CA),
			"--service-account-private-key-file=" + filepath.Join(certs, pki.ServiceAccountKey),
			"--cluster-signing-cert-file=" + filepath.Join(certs, pki.CA),
			"--cluster-signing-key-file=" + filepath.Join(certs, pki.CAKey),
			"--cluster-name=" + i.r.Name, "--flex-volume-plugin-dir=" + filepath.Join(i.r.Dir, "volume-plugins"),
		}
		if i.r.DefaultPlaces {
			s.Args = append(s.Args, "--controllers=*,-node-lifecycle-controller")
		}
	case Scheduler:
		kubeconfig := pki.Kubeconfig(certs, pki.Scheduler)
		s.Args = []string{
			"--kubeconfig=" + kubeconfig, "--authentication-kubeconfig=" + kubeconfig,
			"--authorization-kubeconfig=" + kubeconfig,
			"--bind-address=127.0.0.1", "--secure-port=" + strconv.Itoa(i.r.Ports.Scheduler),
			"--cert-dir=" + filepath.Join(i.r.Dir, "serving", name),
			"--leader-elect=false",
		}
	case MetricsServer:
		s.Args = i.metricsServerArgs()
	case CSIDriver, CSIAttacher, CSIProvisioner, CSIResizer:
		s.Args = i.csiArgs(name)
	case Collector:
		s.Args = []string{"--config=file:" + i.collectorConfig()}
	case TraceReceiver:
		s.Args = []string{"-listen=" + loopback(i.r.Ports.Spans), "-o=" + i.Spans()}
	case NFSServer:
		s.Args = i.nfsArgs()
	case AgentProgram:
		s.Path = i.r.Binaries[build.AgentLoop]
		s.Args = append([]string{"--status=" + i.agentStatusFile(), "--notify=" + filepath.Join(i.runDir(), "notify.sock")},
			i.agentArgs()...)
		s.Env = i.r.AgentEnv
	}
	return s
}

func (i *Instance) apiServerArgs() []string {
	certs := i.pkiDir()
	args := []string{
		"--bind-address=" + i.r.Network.Server.Addr().String(),
		"--advertise-address=" + i.r.Network.Server.Addr().String(), "--secure-port=" + strconv.Itoa(APIPort),
		"--service-cluster-ip-range=" + i.r.Network.Services.String(),
		"--etcd-servers=https://" + loopback(i.r.Ports.Etcd), "--etcd-cafile=" + filepath.Join(certs, pki.CA),
		"--etcd-certfile=" + pki.Cert(certs, pki.APIServerEtcd), "--etcd-keyfile=" + pki.Key(certs, pki.APIServerEtcd),
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		"--allow-privileged=true",
		"--client-ca-file=" + filepath.Join(certs, pki.CA),
		"--tls-cert-file=" + pki.Cert(certs, pki.APIServer), "--tls-private-key-file=" + pki.Key(certs, pki.APIServer),
		// The node's name is in no DNS.
		"--kubelet-preferred-address-types=InternalIP",
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + filepath.Join(certs, pki.ServiceAccountPub),
		"--service-account-signing-key-file=" + filepath.Join(certs, pki.ServiceAccountKey),
		"--requestheader-client-ca-file=" + filepath.Join(certs, pki.FrontProxyCA),
		"--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + pki.Cert(certs, pki.FrontProxy),
		"--proxy-client-key-file=" + pki.Key(certs, pki.FrontProxy),
		"--audit-policy-file=" + i.auditPolicyFile(), "--audit-log-path=" + i.auditLog(),
	}
	if !i.r.Open {
		args = append(args, "--kubelet-client-certificate="+pki.Cert(certs, pki.APIServerKubelet),
			"--kubelet-client-key="+pki.Key(certs, pki.APIServerKubelet))
	}
	if i.r.DefaultPlaces {
		args = append(args, "--disable-admission-plugins=TaintNodesByCondition")
	}
	return args
}

// agentArgs is the agent's command line, the same for both but for what only
// microlet has.
func (i *Instance) agentArgs() []string {
	common := []string{
		"--config=" + i.KubeletConfig(), "--root-dir=" + i.RootDir(),
		"--hostname-override=" + i.NodeName(), "--node-ip=" + i.NodeIP(),
		"--cert-dir=" + filepath.Join(i.RootDir(), "pki"),
	}
	if !i.r.Standalone {
		common = append(common, "--kubeconfig="+i.NodeKubeconfig())
	}
	var args []string
	if b := i.ownDevicePlugins(); b != (supervise.Bind{}) {
		args = append(args, "--bind="+b.String())
	}
	if i.r.Watchdog > 0 {
		args = append(args, "--watchdog="+i.r.Watchdog.String())
	}
	args = append(args, "--")
	if i.r.Agent == AgentKubelet {
		args = append(append(args, i.r.Binaries[build.Kubelet]), common...)
	} else {
		args = append(append(args, i.r.Microlet, "up"), common...)
		args = append(args, "--runtime-dir="+i.RuntimeDir(), "--imagegc-state-dir="+i.ImageGCStateDir(),
			"--device-plugins-dir="+filepath.Join(i.RootDir(), "device-plugins"))
	}
	return append(args, i.r.AgentArgs...)
}

func (i *Instance) containerdConfig() config.Containerd {
	if i.onMachine() {
		return i.machineContainerdConfig()
	}
	return config.Containerd{
		Dir:        filepath.Join(i.r.Dir, "etc/containerd"),
		Root:       i.RuntimeRoot(),
		State:      filepath.Join(i.runDir(), "containerd"),
		Socket:     i.RuntimeSocket(),
		ShimSocket: filepath.Join(i.runDir(), "s"),
		RuncRoot:   filepath.Join(i.runDir(), "runc"),
		Runc:       i.r.Binaries[build.Runc],
		PluginDir:  filepath.Join(i.r.Dir, "cni"),
		// On a disk, as the plugin has it by default: what is reserved outlives a restart of the runtime.
		Reservations: filepath.Join(i.r.Dir, "etc/containerd/ipam"),
		Pause:        PauseImage,
		Registry:     i.Registry(),
		Bridge:       i.r.Network.Bridge,
		PodCIDR:      i.r.Network.PodCIDR,
		Gateway:      i.r.Network.Gateway,
		// Not only where it must be: pods shall have the same scores on every
		// machine.
		RestrictOOM: true,
		Traces:      i.hasTraces(),
	}
}

// check asks the program whether it works.
func (i *Instance) check(name string) func(context.Context) error {
	switch name {
	case Etcd:
		return httpOK("http://" + loopback(i.r.Ports.EtcdHealth) + "/health")
	case Registry:
		return httpOK("http://" + i.Registry() + "/v2/")
	case Containerd:
		return i.checkRuntime
	case APIServer:
		return i.checkAPI
	case ControllerManager:
		return httpOK("https://" + loopback(i.r.Ports.ControllerManager) + "/healthz")
	case Scheduler:
		return httpOK("https://" + loopback(i.r.Ports.Scheduler) + "/healthz")
	case Collector:
		return listens(i.traceEndpoint())
	case TraceReceiver:
		return listens(loopback(i.r.Ports.Spans))
	case NFSServer:
		return listens(i.nfsAddress())
	case MetricsServer:
		return httpOK("https://" + loopback(i.r.Ports.MetricsServer) + "/livez")
	}
	return func(context.Context) error { return nil }
}

// httpOK checks that a URL of our own on the loopback address answers with 200.
func httpOK(url string) func(context.Context) error {
	return func(ctx context.Context) error { return health.HTTP(ctx, url) }
}

func (i *Instance) checkAPI(ctx context.Context) error {
	client, err := i.Client()
	if err != nil {
		return err
	}
	return client.Discovery().RESTClient().Get().AbsPath("/readyz").Timeout(2 * time.Second).Do(ctx).Error()
}

// DialRuntime returns a connection to the runtime's CRI, wherever the node is. The caller closes it.
func (i *Instance) DialRuntime() (*grpc.ClientConn, error) {
	options := []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy()}
	if !i.onMachine() {
		return grpc.NewClient(i.RuntimeEndpoint(), options...)
	}
	return grpc.NewClient("passthrough:///runtime",
		append(options, grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			m, err := i.Machine()
			if err != nil {
				return nil, err
			}
			return m.Dial(ctx, "unix", i.RuntimeSocket())
		}))...)
}

func (i *Instance) checkRuntime(ctx context.Context) error {
	conn, err := i.DialRuntime()
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	return health.Runtime(ctx, conn)
}
