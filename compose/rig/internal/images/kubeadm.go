package images

import "context"

// The tags of the images that kubeadm asks for, whichever etcd and CoreDNS are in them.
const (
	etcdVersion    = "3.7.0-0"
	coreDNSVersion = "v1.14.6"
)

// kubeadmPrograms are the programs of which kubeadm makes a cluster, each in an image of its own: those of the control
// plane, and its addons.
var kubeadmPrograms = []string{
	"kube-apiserver", "kube-controller-manager", "kube-scheduler", "etcd", kubeProxy, coreDNS,
}

const (
	kubeProxy = "kube-proxy"
	coreDNS   = "coredns"
)

// kubeadmName is the name of a program's image, as kubeadm of that version of Kubernetes has it.
func kubeadmName(program, version string) string {
	switch program {
	case "etcd":
		version = etcdVersion
	case coreDNS:
		program, version = coreDNS+"/"+coreDNS, coreDNSVersion
	}
	return "registry.k8s.io/" + program + ":" + version
}

// BuildKubeadm returns the path of an OCI layout below cache that holds the images of the cluster that kubeadm of that
// version makes, and makes it if it is not there. The programs are paths of static executables, by name. The machine's
// iptables, with its libraries, is below kube-proxy, which calls it.
func BuildKubeadm(ctx context.Context, cache, version, iptablesPath string,
	programs map[string]string) (string, error) {
	entries, err := iptables(ctx, iptablesPath)
	if err != nil {
		return "", err
	}
	filter, err := entriesBase(entries)
	if err != nil {
		return "", err
	}
	named := map[string]programImage{}
	for _, program := range kubeadmPrograms {
		below := nothing
		if program == kubeProxy {
			below = filter
		}
		named[kubeadmName(program, version)] = programImage{path: programs[program], base: below}
	}
	return buildPrograms(cache, "kubeadm", named)
}
