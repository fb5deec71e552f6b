package fields

import (
	"reflect"
	"strings"
)

// instead names replacements for the kinds of volumes that are not supported, by the API's names of the kinds, which are
// the same in pods and in PersistentVolumes.
var instead = map[string]string{
	"awsElasticBlockStore": driver("ebs.csi.aws.com"),
	"azureDisk":            driver("disk.csi.azure.com"),
	"azureFile":            driver("file.csi.azure.com"),
	"cephfs":               driver("cephfs.csi.ceph.com"),
	"cinder":               driver("cinder.csi.openstack.org"),
	"fc":                   driver("fc.csi.k8s.io"),
	"flexVolume":           "the CSI driver of its vendor",
	"gcePersistentDisk":    driver("pd.csi.storage.gke.io"),
	"gitRepo":              "an emptyDir that an init container clones into",
	"glusterfs":            "an nfs volume or another CSI driver",
	"iscsi":                driver("iscsi.csi.k8s.io"),
	"portworxVolume":       driver("pxd.portworx.com"),
	"rbd":                  driver("rbd.csi.ceph.com"),
	"vsphereVolume":        driver("csi.vsphere.vmware.com"),
}

func driver(name string) string { return "the CSI driver " + name }

// Instead returns what to use instead of a kind of volume; empty if there is nothing to name.
func Instead(kind string) string { return instead[kind] }

// VolumeKind returns the kind of a v1.PersistentVolumeSource or v1.VolumeSource; empty if none is set.
func VolumeKind(source any) string {
	v := reflect.ValueOf(source)
	for i := range v.NumField() {
		if !v.Field(i).IsNil() {
			name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
			return name
		}
	}
	return ""
}
