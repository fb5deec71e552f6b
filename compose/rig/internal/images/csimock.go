package images

import (
	"context"
	"io"
)

// csiMockNames are the images by which upstream's suite of Kubernetes 1.37 starts its CSI drivers, and the rig's
// programs in them: the rig's own driver is its csi-hostpath. Where the driver itself is in the suite, hostpathplugin
// is called as a proxy to it.
var csiMockNames = map[string]string{
	"registry.k8s.io/sig-storage/csi-provisioner:v6.3.0":            "csi-provisioner",
	"registry.k8s.io/sig-storage/csi-attacher:v4.12.0":              "csi-attacher",
	"registry.k8s.io/sig-storage/csi-resizer:v2.2.0":                "csi-resizer",
	"registry.k8s.io/sig-storage/csi-node-driver-registrar:v2.17.0": "csi-registrar",
	"registry.k8s.io/sig-storage/hostpathplugin:v1.17.1":            "csidriver",
	"registry.k8s.io/sig-storage/livenessprobe:v2.19.0":             "csi-livenessprobe",
	"registry.k8s.io/sig-storage/csi-snapshotter:v8.6.0":            "csi-snapshotter",
}

// BuildCSIMock returns the path of an OCI layout below cache that holds these images, and makes it if it is not there.
// The programs are paths of static executables, by name. Debian is below them, since a driver calls mount.
func BuildCSIMock(ctx context.Context, cache string, programs map[string]string, out io.Writer) (string, error) {
	debian, err := makeDebian(ctx, cache, out)
	if err != nil {
		return "", err
	}
	named := map[string]programImage{}
	for name, program := range csiMockNames {
		named[name] = programImage{path: programs[program], base: fileBase(debian.layer)}
	}
	return buildPrograms(cache, "csi-mock", named)
}
