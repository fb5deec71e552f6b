package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-helpers/storage/ephemeral"
	"k8s.io/component-helpers/storage/volume"

	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/podsync/internal/cluster/objects"
)

const (
	// timeout bounds one read of the API.
	timeout = 10 * time.Second
	// protection is the finalizer that keeps a claim as long as a pod uses it.
	protection = "kubernetes.io/pvc-protection"
	// gidAnnotation of a PersistentVolume is a group for all processes that use it.
	gidAnnotation = "pv.beta.kubernetes.io/gid"
)

// ClaimedVolume is what a pod has claimed.
type ClaimedVolume struct {
	Claim *v1.PersistentVolumeClaim
	PV    *v1.PersistentVolume
	// ReadOnly is that of the pod's volume (persistentVolumeClaim.readOnly).
	ReadOnly bool
	// Group is the group that the PersistentVolume's annotation gives to all processes that use it; empty for none.
	Group string
}

// IsBlock reports whether pods get the volume as a device.
func (v *ClaimedVolume) IsBlock() bool { return v.mode() == v1.PersistentVolumeBlock }

func (v *ClaimedVolume) mode() v1.PersistentVolumeMode {
	if mode := v.PV.Spec.VolumeMode; mode != nil {
		return *mode
	}
	return v1.PersistentVolumeFilesystem
}

// suits says why the pod cannot have the volume as its containers want it.
func (v *ClaimedVolume) suits(p *v1.Pod, name string) error {
	mode := v.mode()
	switch mounted, mapped := podutil.UsesVolume(&p.Spec, name); {
	case mounted && mode != v1.PersistentVolumeFilesystem:
		return fmt.Errorf("volume %s has volumeMode %s, but is specified in volumeMounts", name, mode)
	case mapped && mode != v1.PersistentVolumeBlock:
		return fmt.Errorf("volume %s has volumeMode %s, but is specified in volumeDevices", name, mode)
	}
	return nil
}

// ClaimFinder reads claims and PersistentVolumes from the API. It keeps none: a node may read those of its pods one by
// one, but watch none.
type ClaimFinder struct {
	// Client is nil on a node without an API server.
	Client kubernetes.Interface
	// Labels are those of the Node, which a PersistentVolume may require.
	Labels func() map[string]string
}

// Find returns the PersistentVolume of a volume with a claim. Its errors are the kubelet's.
// Source: kubelet, volumemanager/populator.
func (f *ClaimFinder) Find(ctx context.Context, p *v1.Pod, v *v1.Volume) (*ClaimedVolume, error) {
	source := v.PersistentVolumeClaim
	if source == nil {
		source = &v1.PersistentVolumeClaimVolumeSource{ClaimName: ephemeral.VolumeClaimName(p, v)}
	}
	found, err := f.find(ctx, p, v, source)
	if err != nil {
		return nil, fmt.Errorf("error processing PVC %s/%s: %w", p.Namespace, source.ClaimName, err)
	}
	if err := found.suits(p, v.Name); err != nil {
		return nil, err
	}
	if err := volume.CheckNodeAffinity(found.PV, f.Labels()); err != nil {
		return nil, fmt.Errorf("node affinity of PersistentVolume %s: %w", found.PV.Name, err)
	}
	found.Group = found.PV.Annotations[gidAnnotation]
	return found, nil
}

func (f *ClaimFinder) find(ctx context.Context, p *v1.Pod, v *v1.Volume,
	source *v1.PersistentVolumeClaimVolumeSource) (*ClaimedVolume, error) {
	if f.Client == nil {
		return nil, errors.New("the node has no API server to read it from")
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	claim, err := objects.AskAgain(ctx, objects.Lags, func() (*v1.PersistentVolumeClaim, error) {
		return f.Client.CoreV1().PersistentVolumeClaims(p.Namespace).Get(ctx, source.ClaimName, metav1.GetOptions{})
	})
	if err != nil {
		return nil, fmt.Errorf("failed to fetch PVC from API server: %w", err)
	}
	if v.PersistentVolumeClaim == nil {
		if err := ephemeral.VolumeIsForPod(p, claim); err != nil {
			return nil, err
		}
	}
	switch {
	case claim.DeletionTimestamp != nil && !slices.Contains(claim.Finalizers, protection):
		return nil, errors.New("PVC is being deleted")
	case claim.Status.Phase != v1.ClaimBound:
		return nil, errors.New("PVC is not bound")
	case claim.Spec.VolumeName == "":
		return nil, errors.New("PVC has empty pvc.Spec.VolumeName")
	}
	name := claim.Spec.VolumeName
	pv, err := objects.AskAgain(ctx, objects.Lags, func() (*v1.PersistentVolume, error) {
		return f.Client.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
	})
	if err != nil {
		return nil, fmt.Errorf("failed to fetch PV %s from API server: %w", name, err)
	}
	if pv.Spec.ClaimRef == nil {
		return nil, fmt.Errorf(
			"found PV object %s but it has a nil pv.Spec.ClaimRef indicating it is not yet bound to the claim", name)
	}
	if pv.Spec.ClaimRef.UID != claim.UID {
		return nil, fmt.Errorf("found PV object %s but its pv.Spec.ClaimRef.UID %s does not point to claim.UID %s", name,
			pv.Spec.ClaimRef.UID, claim.UID)
	}
	return &ClaimedVolume{Claim: claim, PV: pv, ReadOnly: source.ReadOnly}, nil
}
