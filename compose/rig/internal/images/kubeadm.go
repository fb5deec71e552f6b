package images

// etcdVersion is the tag of the image that kubeadm asks for, whichever etcd is in it.
const etcdVersion = "3.7.0-0"

// kubeadmPrograms are the programs of the control plane that kubeadm starts, each in an image of its own.
var kubeadmPrograms = []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler", "etcd"}

// kubeadmName is the name of a program's image, as kubeadm of that version of Kubernetes has it.
func kubeadmName(program, version string) string {
	if program == "etcd" {
		version = etcdVersion
	}
	return "registry.k8s.io/" + program + ":" + version
}

// BuildKubeadm returns the path of an OCI layout below cache that holds the images of the control plane that kubeadm
// of that version starts, and makes it if it is not there. The programs are paths of static executables, by name. What
// kubeadm calls addons, which are CoreDNS and kube-proxy, is not among the images.
func BuildKubeadm(cache, version string, programs map[string]string) (string, error) {
	named := map[string]string{}
	for _, program := range kubeadmPrograms {
		named[kubeadmName(program, version)] = programs[program]
	}
	return buildPrograms(cache, "kubeadm", "", named)
}
