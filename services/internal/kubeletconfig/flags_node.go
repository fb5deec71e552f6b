package kubeletconfig

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cliflag "k8s.io/component-base/cli/flag"
	kubeletapis "k8s.io/kubelet/pkg/apis"
)

func defaultNodeFlags() NodeFlags {
	return NodeFlags{
		CertDir:                       "/var/lib/kubelet/pki",
		RootDir:                       "/var/lib/kubelet",
		NodeLabels:                    map[string]string{},
		MaxDeadContainers:             -1,
		MaxDeadContainersPerContainer: 1,
		HousekeepingInterval:          metav1.Duration{Duration: 10 * time.Second},
	}
}

// addNodeFlags registers the flags that mirror no field.
func (f *Flags) addNodeFlags(fs *pflag.FlagSet) {
	f.bindNodeFlags(fs)
	fs.Lookup("version").NoOptDefVal = "true"
	fs.Lookup(podInfraFlag).Hidden = true
	for name, why := range deprecatedNodeFlags {
		fs.Lookup(name).Deprecated = why
	}
}

const evictionInstead = "use --eviction-hard or --eviction-soft instead; it will be removed"

var deprecatedNodeFlags = map[string]string{
	"minimum-container-ttl-duration":           evictionInstead,
	"maximum-dead-containers-per-container":    evictionInstead,
	"maximum-dead-containers":                  evictionInstead,
	"experimental-mounter-path":                "use CSI instead; it will be removed",
	"experimental-allocatable-ignore-eviction": "it will be removed",
	podInfraFlag: "it was removed from the kubelet; the container runtime's configuration names the sandbox image",
}

func (f *Flags) bindNodeFlags(fs *pflag.FlagSet) {
	fs.StringVar(&f.ConfigFile, "config", f.ConfigFile, "KubeletConfiguration file to start from, YAML or JSON. A "+
		"relative path starts at the working directory. Flags win over it.")
	fs.StringVar(&f.ConfigDir, "config-dir", f.ConfigDir, "Folder of drop-in files merged over --config in lexical "+
		"order. Only names that end in .conf are read, also in subfolders.")
	fs.StringVar(&f.Kubeconfig, "kubeconfig", f.Kubeconfig,
		"Kubeconfig file for the API server. Without it the node runs standalone.")
	fs.StringVar(&f.BootstrapKubeconfig, "bootstrap-kubeconfig", f.BootstrapKubeconfig,
		"Kubeconfig file with which to request a client certificate when the file of --kubeconfig does not exist yet.")
	fs.StringVar(&f.HostnameOverride, "hostname-override", f.HostnameOverride,
		"Name to use for the node instead of the host's name.")
	fs.StringVar(&f.NodeIP, "node-ip", f.NodeIP, "IP address of the node, or an IPv4 and an IPv6 address joined by a "+
		"comma. 0.0.0.0 or :: asks for the default address of that family.")
	fs.StringVar(&f.CertDir, "cert-dir", f.CertDir,
		"Folder of the TLS certificates. Not used if --tls-cert-file and --tls-private-key-file are given.")
	fs.StringVar(&f.CloudProvider, "cloud-provider", f.CloudProvider,
		"Cloud provider: empty, or 'external' where a cloud controller manager completes the node.")
	fs.StringVar(&f.RootDir, "root-dir", f.RootDir, "Folder for pods, volumes and plugins.")
	fs.BoolVar(&f.SeccompDefault, "seccomp-default", f.SeccompDefault,
		"Give the RuntimeDefault seccomp profile to every container that names none.")
	fs.Var((*cliflag.ConfigurationMap)(&f.NodeLabels), "node-labels",
		fmt.Sprintf("Labels for the node when it registers, as key=value joined by commas. Of the kubernetes.io and k8s.io "+
			"namespaces only %s with their subdomains, and %s are allowed.",
			strings.Join(kubeletapis.KubeletLabelNamespaces(), ", "), strings.Join(kubeletapis.KubeletLabels(), ", ")))
	fs.StringVar(&f.RuntimeCgroups, "runtime-cgroups", f.RuntimeCgroups,
		"Absolute name of the cgroup that the container runtime runs in.")
	fs.StringVar(&f.ImageCredentialProviderConfig, "image-credential-provider-config", f.ImageCredentialProviderConfig,
		"CredentialProviderConfig file, or a folder of such files merged in lexical order.")
	fs.StringVar(&f.ImageCredentialProviderBinDir, "image-credential-provider-bin-dir", f.ImageCredentialProviderBinDir,
		"Folder of the image credential provider plugins.")
	fs.StringVar(&f.LockFile, "lock-file", f.LockFile, "[Alpha] File to lock while running.")
	fs.BoolVar(&f.ExitOnLockContention, "exit-on-lock-contention", f.ExitOnLockContention,
		"Exit when another process opens the file of --lock-file.")
	fs.DurationVar(&f.HousekeepingInterval.Duration, "housekeeping-interval", f.HousekeepingInterval.Duration,
		"Period of container statistics.")

	fs.Var(&f.version, "version",
		"--version or --version=raw prints the version and exits; --version=vX.Y.Z changes the version that is reported.")

	fs.DurationVar(&f.MinimumContainerTTL.Duration, "minimum-container-ttl-duration", f.MinimumContainerTTL.Duration,
		"How long an exited container is kept at least, such as 10s or 2h45m.")
	fs.Int32Var(&f.MaxDeadContainersPerContainer, "maximum-dead-containers-per-container",
		f.MaxDeadContainersPerContainer, "How many exited instances of a container are kept.")
	fs.Int32Var(&f.MaxDeadContainers, "maximum-dead-containers", f.MaxDeadContainers,
		"How many exited containers the node keeps in all. Negative for no bound.")
	fs.StringVar(&f.ExperimentalMounterPath, "experimental-mounter-path", f.ExperimentalMounterPath,
		"[Experimental] Program to mount volumes with. Empty for the default.")
	fs.BoolVar(&f.AllocatableIgnoreEviction, "experimental-allocatable-ignore-eviction", f.AllocatableIgnoreEviction,
		"Leave the hard eviction thresholds out of the node's allocatable.")

	fs.StringVar(&f.podInfraContainerImage, podInfraFlag, f.podInfraContainerImage, "Accepted without effect.")
}

// podInfraFlag is the one accepted flag that kubelet 1.37 does not have.
const podInfraFlag = "pod-infra-container-image"
