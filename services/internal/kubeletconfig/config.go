package kubeletconfig

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/cpuset"
)

// Config is the one validated configuration of the node agent.
type Config struct {
	// Kubelet has every default filled in.
	Kubelet kubeletv1beta1.KubeletConfiguration `json:"kubelet"`
	// Node are the flags that no field mirrors.
	Node NodeFlags `json:"node"`
	// Provenance says where each explicit setting comes from: by field path or --flag, "file /x.yaml",
	// "drop-in /d/10-a.conf" or "flag --max-pods", and "default (0s in file /x.yaml)" where a 0 takes the default back.
	// What is absent is a default.
	Provenance map[string]string `json:"provenance,omitempty"`
}

// Load merges defaults, the file of --config, the drop-ins of --config-dir and the flags, in this order, and validates
// the result, also against this machine (cgroup version, swap), as the kubelet does at its start.
//
// fs is the parsed flag set that f was added to. The error joins everything that is wrong, one Problem each, apart from
// files that cannot be read. Warnings are for the caller to log, each once.
func Load(fs *pflag.FlagSet, f *Flags) (*Config, []Warning, error) {
	c, warnings, err := Inspect(fs, f)
	if err != nil {
		return nil, nil, err
	}
	return c, warnings, nil
}

// Inspect is Load, but beside an error it returns what is right of the configuration, so that the caller can check the
// rest of its input too. It is nil if there is nothing to go by.
func Inspect(fs *pflag.FlagSet, f *Flags) (*Config, []Warning, error) {
	if fs.NArg() > 0 {
		return nil, nil, Problem{Field: "command line", Value: fs.Arg(0), Detail: "it is no flag", Remedy: "remove it"}
	}
	from := provenance{}
	flagGates := maps.Clone(f.shown.FeatureGates)
	merged, wrong := f.loadFiles(from, flagGates)
	known := merged != nil
	if !known {
		merged = baseWithoutFile(flagGates)
	}
	if err := f.replay(merged, from); err != nil {
		wrong = errors.Join(wrong, err)
	}
	for name := range f.given() {
		if _, mirrors := fieldOfFlag()[name]; !mirrors {
			from["--"+name] = "flag --" + name
		}
	}
	c := &Config{Kubelet: *merged, Node: f.NodeFlags, Provenance: from}
	c.Kubelet.APIVersion, c.Kubelet.Kind = apiVersion, kind
	// f stays the command line's, c the caller's.
	c.Node.NodeLabels = maps.Clone(f.NodeLabels)

	p := &problems{from: from}
	warnings := checkCredentials(p, c, f.credentials)
	if known {
		validate(p, c)
		warnings = append(checkSupport(p, c), warnings...)
		f.host.check(p, c)
	}
	if err := errors.Join(append(Flatten(wrong), Flatten(p.without(wrong).err())...)...); err != nil {
		return c, nil, err
	}
	if err := c.absolutePaths(); err != nil {
		return c, nil, err
	}
	return c, warnings, nil
}

// Validate reports everything in c that the kubelet would refuse, or nil. Load has done this already.
func Validate(c *Config) error {
	p := &problems{from: c.Provenance}
	validate(p, c)
	return p.err()
}

// absolutePaths resolves what is relative to this process's working directory, since services may have another.
// Paths in the file of --config are absolute already.
func (c *Config) absolutePaths() error {
	paths := []*string{
		&c.Node.ConfigFile, &c.Node.ConfigDir, &c.Node.Kubeconfig, &c.Node.BootstrapKubeconfig, &c.Node.CertDir,
		&c.Node.RootDir,
		&c.Node.LockFile, &c.Node.ImageCredentialProviderConfig, &c.Node.ImageCredentialProviderBinDir,
	}
	for _, path := range append(paths, pathFields(&c.Kubelet)...) {
		if *path == "" || filepath.IsAbs(*path) {
			continue
		}
		abs, err := filepath.Abs(*path)
		if err != nil {
			return fmt.Errorf("make path %q absolute: %w", *path, err)
		}
		*path = abs
	}
	c.Node.RootDir = filepath.Clean(c.Node.RootDir) // paths of pods are compared with it
	return nil
}

// pathFields are the fields that hold paths of files and folders.
func pathFields(c *kubeletv1beta1.KubeletConfiguration) []*string {
	return []*string{
		&c.StaticPodPath, &c.Authentication.X509.ClientCAFile, &c.TLSCertFile, &c.TLSPrivateKeyFile,
		c.ResolverConfig, &c.VolumePluginDir, &c.PodLogsDir,
	}
}

// NodeName is --hostname-override, or this host's name, trimmed and in lower case as the kubelet's.
// It fails if the host's name cannot be read or is empty.
func (c *Config) NodeName() (string, error) {
	return nodeName(c.Node.HostnameOverride)
}

// ExternalCloud is --cloud-provider=external: a cloud controller manager completes the Node.
func (c *Config) ExternalCloud() bool { return c.Node.CloudProvider == "external" }

// NodeIPs are the addresses of --node-ip, in its order; none if it is not given. An unspecified address (0.0.0.0, ::)
// asks for the default address of its family.
func (c *Config) NodeIPs() []netip.Addr {
	ips, _, _ := parseNodeIPs(c.Node.NodeIP) // validated by Load
	return ips
}

// Standalone says that the node has no API server: there is no --kubeconfig.
func (c *Config) Standalone() bool { return c.Node.Kubeconfig == "" }

// ServingPairName begins the names of the certificates that the node requests for its HTTPS port, in --cert-dir.
const ServingPairName = "kubelet-server"

// ServingPair is the link to the certificate that the node requested last for its HTTPS port, with its key.
// Source: client-go, util/certificate, NewFileStore.
func (c *Config) ServingPair() string {
	return filepath.Join(c.Node.CertDir, ServingPairName+"-current.pem")
}

// RequestsServingCertificate says that the API server's signer is asked for the HTTPS port's certificate
// (serverTLSBootstrap).
func (c *Config) RequestsServingCertificate() bool {
	return c.Kubelet.ServerTLSBootstrap && *c.Kubelet.EnableServer && !c.Standalone()
}

// RuntimeEndpoint is the container runtime's socket, as a URL (containerRuntimeEndpoint).
func (c *Config) RuntimeEndpoint() string { return c.Kubelet.ContainerRuntimeEndpoint }

// ImageEndpoint is the image service's socket (imageServiceEndpoint), the runtime's unless set.
func (c *Config) ImageEndpoint() string {
	if c.Kubelet.ImageServiceEndpoint != "" {
		return c.Kubelet.ImageServiceEndpoint
	}
	return c.RuntimeEndpoint()
}

// SeccompDefault reports whether containers that name no seccomp profile get RuntimeDefault: either the field or
// --seccomp-default asks for it.
func (c *Config) SeccompDefault() bool {
	return c.Node.SeccompDefault || *c.Kubelet.SeccompDefault
}

// ReservesMemory reports whether the memory that pods request is protected from others (memoryReservationPolicy). It is
// with cgroup v2 alone.
func (c *Config) ReservesMemory() bool {
	return c.FeatureEnabled(gateMemoryQoS) &&
		c.Kubelet.MemoryReservationPolicy == kubeletv1beta1.TieredReservationMemoryReservationPolicy
}

// Reserved are systemReserved and kubeReserved as they count: with reservedSystemCPUs, CPU is reserved by that list.
func (c *Config) Reserved() (system, kube map[string]string) {
	cpus, err := cpuset.Parse(c.Kubelet.ReservedSystemCPUs)
	if err != nil || cpus.IsEmpty() { // validated by Load
		return c.Kubelet.SystemReserved, c.Kubelet.KubeReserved
	}
	system, kube = map[string]string{}, maps.Clone(c.Kubelet.KubeReserved)
	maps.Copy(system, c.Kubelet.SystemReserved)
	system[string(corev1.ResourceCPU)] = strconv.Itoa(cpus.Size())
	delete(kube, string(corev1.ResourceCPU))
	return system, kube
}

// QOSReserved is how many percent of the memory that pods request is kept from pods of lower classes (qosReserved); nil
// is none.
func (c *Config) QOSReserved() *int64 {
	share, set := c.Kubelet.QOSReserved[string(corev1.ResourceMemory)]
	if !set || !c.FeatureEnabled(gateQOSReserved) {
		return nil
	}
	percent, err := strconv.ParseInt(strings.TrimSuffix(share, "%"), 10, 64)
	if err != nil {
		return nil // validated by Load
	}
	return &percent
}

// DeclaredFeatures are the features that this node has, of those that nodes declare one by one (KEP-5328), by the names
// of their gates and in the order of these. podsync admits by them. nodestatus reports them, for the scheduler and the
// API server.
func (c *Config) DeclaredFeatures() []string {
	var declared []string
	for _, built := range []string{
		gateWebSockets, gateResizeOfPodLevel, gateResizeOfInitContainers, gateRestartAllContainers,
	} {
		if c.FeatureEnabled(built) {
			declared = append(declared, built)
		}
	}
	return declared
}

// DelaysShutdown reports whether the pods get time to end when the machine shuts down (KEP-2000).
func (c *Config) DelaysShutdown() bool {
	return c.FeatureEnabled(gateGracefulNodeShutdown) &&
		(c.Kubelet.ShutdownGracePeriod.Duration > 0 || len(c.Kubelet.ShutdownGracePeriodByPodPriority) > 0)
}

// FeatureEnabled reports whether a feature gate of kubelet 1.37 is on. It panics at a name that the kubelet does not
// have, or that readGates lacks, which is the caller's mistake.
func (c *Config) FeatureEnabled(gate string) bool {
	if !readGates[gate] {
		panic("kubeletconfig: feature gate " + gate + " is asked for and not in readGates")
	}
	return gateEnabled(c.Kubelet.FeatureGates, gate)
}
