package kubeletconfig

import (
	"maps"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cliflag "k8s.io/component-base/cli/flag"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
)

// NodeFlags are the settings that belong to one node and therefore have no field in KubeletConfiguration.
// Paths are absolute once Load has returned.
type NodeFlags struct {
	// ConfigFile is the KubeletConfiguration file (--config); empty means flags and defaults alone.
	ConfigFile string `json:"configFile,omitempty"`
	// ConfigDir is the folder of drop-in files (--config-dir, KEP-3983).
	ConfigDir string `json:"configDir,omitempty"`
	// Kubeconfig says how to reach the API server (--kubeconfig); empty means standalone, without one.
	Kubeconfig string `json:"kubeconfig,omitempty"`
	// BootstrapKubeconfig holds the credentials that would ask for a client certificate (--bootstrap-kubeconfig).
	BootstrapKubeconfig string `json:"bootstrapKubeconfig,omitempty"`
	// HostnameOverride replaces the host's name as the node's identity (--hostname-override).
	HostnameOverride string `json:"hostnameOverride,omitempty"`
	// NodeIP is the node's address, or two of different families joined by a comma (--node-ip). "0.0.0.0" and "::"
	// ask for the default address of that family.
	NodeIP string `json:"nodeIP,omitempty"`
	// NodeLabels are added when the node registers (--node-labels).
	NodeLabels map[string]string `json:"nodeLabels,omitempty"`
	// CertDir holds the node's TLS files (--cert-dir), /var/lib/kubelet/pki by default.
	CertDir string `json:"certDir,omitempty"`
	// RootDir is the kubelet's folder for pods and plugins (--root-dir), /var/lib/kubelet by default.
	RootDir string `json:"rootDir,omitempty"`
	// CloudProvider is empty, or "external" where a cloud controller manager completes the node (--cloud-provider).
	CloudProvider string `json:"cloudProvider,omitempty"`
	// RuntimeCgroups is the cgroup that the container runtime is expected in (--runtime-cgroups).
	RuntimeCgroups string `json:"runtimeCgroups,omitempty"`
	// ImageCredentialProviderConfig is a file or folder of CredentialProviderConfig
	// (--image-credential-provider-config).
	ImageCredentialProviderConfig string `json:"imageCredentialProviderConfig,omitempty"`
	// ImageCredentialProviderBinDir holds the credential plugins (--image-credential-provider-bin-dir).
	ImageCredentialProviderBinDir string `json:"imageCredentialProviderBinDir,omitempty"`
	// LockFile is locked while the process runs (--lock-file).
	LockFile string `json:"lockFile,omitempty"`
	// ExitOnLockContention ends the process when another one opens LockFile (--exit-on-lock-contention).
	ExitOnLockContention bool `json:"exitOnLockContention,omitempty"`
	// MinimumContainerTTL is how long an exited container is kept at least (--minimum-container-ttl-duration).
	MinimumContainerTTL metav1.Duration `json:"minimumContainerTTL"`
	// MaxDeadContainersPerContainer is how many exited instances of one container are kept, 1 by default
	// (--maximum-dead-containers-per-container).
	MaxDeadContainersPerContainer int32 `json:"maxDeadContainersPerContainer"`
	// MaxDeadContainers bounds the exited containers of the node; -1, the default, is no bound
	// (--maximum-dead-containers).
	MaxDeadContainers int32 `json:"maxDeadContainers"`
	// ExperimentalMounterPath is a program to mount with (--experimental-mounter-path).
	ExperimentalMounterPath string `json:"experimentalMounterPath,omitempty"`
	// AllocatableIgnoreEviction leaves evictionHard out of the node's allocatable
	// (--experimental-allocatable-ignore-eviction).
	AllocatableIgnoreEviction bool `json:"allocatableIgnoreEviction,omitempty"`
	// SeccompDefault gives RuntimeDefault to containers without a seccomp profile (--seccomp-default). The field
	// seccompDefault does the same; Config.SeccompDefault joins both.
	SeccompDefault bool `json:"seccompDefault,omitempty"`
	// HousekeepingInterval is cAdvisor's period, 10 s by default (--housekeeping-interval).
	HousekeepingInterval metav1.Duration `json:"housekeepingInterval"`
}

// Flags is the kubelet's command line. The zero value is not usable: call NewFlags.
type Flags struct {
	NodeFlags

	version versionValue
	// podInfraContainerImage was removed from the kubelet in 1.35, and stands in the environment files that an older
	// kubeadm left behind.
	podInfraContainerImage string
	// shown is what flags that mirror a field parse into, so that they are checked and shown as they are parsed. Load
	// starts from the files instead and replays settings over them.
	shown    *kubeletv1beta1.KubeletConfiguration
	settings []setting
	// host is where the state of this machine is read.
	host host
	// credentials checks the kubeconfigs; nil leaves out what they contain.
	credentials Credentials
}

// setting is one flag as it was given.
type setting struct{ flag, value string }

// NewFlags returns the kubelet's command line with the kubelet's defaults.
func NewFlags() *Flags {
	return &Flags{NodeFlags: defaultNodeFlags(), shown: baseWithoutFile(nil), host: thisHost}
}

// CheckCredentials has Load check what the kubeconfigs contain. Without it, Load checks that they are there: a program
// that does not call the API server has no use for their content.
func (f *Flags) CheckCredentials(c Credentials) { f.credentials = c }

// AddTo registers every flag of kubelet 1.37 but --help on fs, under the kubelet's names and with its types, defaults
// and deprecations. It sets the kubelet's name normalisation on fs, by which --node_ip means --node-ip.
// Register your own flags on the same fs, parse it once, and hand both to Load.
func (f *Flags) AddTo(fs *pflag.FlagSet) {
	fs.SetNormalizeFunc(cliflag.WordSepNormalizeFunc)
	local := pflag.NewFlagSet("kubelet", pflag.ContinueOnError)
	f.addNodeFlags(local)
	addConfigFlags(local, f.shown)
	local.VisitAll(func(fl *pflag.Flag) {
		fl.Value = &recorder{Value: fl.Value, flag: fl.Name, settings: &f.settings}
		fs.AddFlag(fl)
	})
}

// Version is what --version asked for: "" if it was not given, "true", "raw", or a version to show. The caller prints
// it and exits.
func (f *Flags) Version() string { return string(f.version) }

// recorder notes each accepted setting. The kubelet parses its command line twice instead, once to find --config and
// once over the file; replaying what was noted has the same result and cannot disagree with the first parse.
type recorder struct {
	pflag.Value

	flag     string
	settings *[]setting
}

func (r *recorder) Set(value string) error {
	if err := r.Value.Set(value); err != nil {
		return err
	}
	*r.settings = append(*r.settings, setting{r.flag, value})
	return nil
}

// replay applies the recorded settings of flags that mirror a field onto c, and notes them in p.
func (f *Flags) replay(c *kubeletv1beta1.KubeletConfiguration, p provenance) error {
	fromFiles := maps.Clone(c.FeatureGates)
	fs := pflag.NewFlagSet("replay", pflag.ContinueOnError)
	fields := addConfigFlags(fs, c)
	for _, s := range f.settings {
		field, mirrors := fields[s.flag]
		if !mirrors {
			continue
		}
		fl := fs.Lookup(s.flag)
		if err := fl.Value.Set(s.value); err != nil {
			return Problem{Field: "--" + s.flag, Value: s.value, Detail: err.Error(), Remedy: "correct the flag"}
		}
		p.replace(field, "flag --"+s.flag)
	}
	// The flag's map replaces the files' map at its first use; the kubelet puts back what the flag does not name.
	for gate, on := range fromFiles {
		if _, named := c.FeatureGates[gate]; !named {
			c.FeatureGates[gate] = on
		}
	}
	return nil
}

// given returns the names of the flags that were set.
func (f *Flags) given() map[string]bool {
	names := map[string]bool{}
	for _, s := range f.settings {
		names[s.flag] = true
	}
	return names
}
