package csivolume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	csidriver "github.com/microlet/microlet/services/podsync/internal/volumes/internal/csi"
	"github.com/microlet/microlet/services/podsync/internal/volumes/internal/csi/csitest"
	"github.com/microlet/microlet/services/podsync/internal/volumes/internal/pluginregistration"
)

const (
	driverName = "d.example"
	stages     = csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME
)

// api is what the cluster says.
type api struct {
	driver      *storagev1.CSIDriver
	attachments map[string]*storagev1.VolumeAttachment
	secrets     map[string]*v1.Secret
	// err is that of the question for the driver.
	err error
}

func (a *api) CSIDriver(context.Context, string) (*storagev1.CSIDriver, error) {
	return a.driver, a.err
}

func (a *api) VolumeAttachment(_ context.Context, name string) (*storagev1.VolumeAttachment, error) {
	if found := a.attachments[name]; found != nil {
		return found, nil
	}
	return nil, apierrors.NewNotFound(storagev1.Resource("volumeattachments"), name)
}

func (a *api) Secret(_ context.Context, namespace, name string) (*v1.Secret, error) {
	if found := a.secrets[namespace+"/"+name]; found != nil {
		return found, nil
	}
	return nil, apierrors.NewNotFound(v1.Resource("secrets"), name)
}

func (a *api) Token(_ context.Context, namespace, account string, r *authenticationv1.TokenRequest) (
	*authenticationv1.TokenRequest, error) {
	r.Status.Token = fmt.Sprintf("%s/%s for %v", namespace, account, r.Spec.Audiences)
	return r, nil
}

type anyNode struct{}

func (anyNode) Registered(context.Context, string, *csi.NodeGetInfoResponse) error { return nil }

func (anyNode) Removed(context.Context, string) {}

// unattached is a driver whose volumes are not attached.
func unattached() *api {
	return &api{driver: &storagev1.CSIDriver{Spec: storagev1.CSIDriverSpec{
		AttachRequired: new(false),
		VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{
			storagev1.VolumeLifecyclePersistent, storagev1.VolumeLifecycleEphemeral,
		},
	}}}
}

// newVolumes is a process in a root folder, at which the driver has registered.
func newVolumes(t *testing.T, root string, d *csitest.Driver, a *api) *Volumes {
	t.Helper()
	drivers := csidriver.NewDrivers(filepath.Dir(d.Socket), anyNode{}, nil)
	p := pluginregistration.Plugin{Name: driverName, Endpoint: d.Socket, Versions: []string{"1.0.0"}}
	if err := drivers.Register(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	return New(Options{
		RootDir: root, Node: "n", Drivers: drivers, API: a, Tokens: a, InUse: &inUse{}, Devices: devices{},
	})
}

func pod(uid string) *v1.Pod {
	p := &v1.Pod{}
	p.Namespace, p.Name, p.UID, p.Spec.ServiceAccountName = "default", "p", types.UID(uid), "sa"
	return p
}

func claimed(pod *v1.Pod, handle string) *Volume {
	return &Volume{Pod: pod, PV: &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv-" + handle},
		Spec: v1.PersistentVolumeSpec{
			AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{
				Driver: driverName, VolumeHandle: handle, FSType: "ext4",
			}},
		},
	}}
}

// left lists the files and the empty folders of volumes below a root folder.
func left(t *testing.T, root string) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if inside := strings.Contains(path, Plugin+"/") || strings.Contains(path, driverName+"/") ||
			strings.Contains(path, "volumeDevices/pv-"); inside {
			found = append(found, path)
		}
		return nil
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return found
}

// unstageAll does what Run does once.
func unstageAll(t *testing.T, vs *Volumes) {
	t.Helper()
	var under underway
	if err := vs.sweep(t.Context(), &under); err != nil {
		t.Fatal(err)
	}
	under.all.Wait()
}
