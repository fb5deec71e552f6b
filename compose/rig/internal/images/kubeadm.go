package images

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

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

// kubeadmFormat is part of the cache key, as format is.
const kubeadmFormat = "1"

// BuildKubeadm returns the path of an OCI layout below cache that holds the images of the control plane that kubeadm
// of that version starts, and makes it if it is not there. The programs are paths of static executables, by name. What
// kubeadm calls addons, which are CoreDNS and kube-proxy, is not among the images.
func BuildKubeadm(cache, version string, programs map[string]string) (string, error) {
	h := sha256.New()
	_, _ = fmt.Fprintln(h, kubeadmFormat, version, etcdVersion)
	for _, program := range kubeadmPrograms {
		// The folder of a built program names its content.
		_, _ = fmt.Fprintln(h, program, filepath.Base(filepath.Dir(programs[program])))
	}
	return makeLayout(filepath.Join(cache, "images", "kubeadm-"+hex.EncodeToString(h.Sum(nil))[:16]),
		func() (map[string]v1.Image, error) {
			made := map[string]v1.Image{}
			for _, program := range kubeadmPrograms {
				text, err := os.ReadFile(programs[program])
				if err != nil {
					return nil, fmt.Errorf("make image %s: %w", program, err)
				}
				made[kubeadmName(program, version)], err = image(
					[]entry{file("usr/local/bin/"+program, 0o755, text), folder("tmp", 0o1777)},
					v1.Config{Entrypoint: []string{program}, Env: []string{pathVariable}})
				if err != nil {
					return nil, err
				}
			}
			return made, nil
		})
}
