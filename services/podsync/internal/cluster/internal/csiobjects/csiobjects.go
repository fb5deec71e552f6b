// Package csiobjects reads what the cluster says of CSI drivers and of the volumes that they attach.
package csiobjects

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	storagelisters "k8s.io/client-go/listers/storage/v1"

	"github.com/microlet/microlet/services/internal/absence"
	"github.com/microlet/microlet/services/podsync/internal/cluster/objects"
)

// timeout bounds one question to the API server.
const timeout = 10 * time.Second

// errStandalone is the error of a node that gets no data about drivers.
var errStandalone = errors.New("the node has no API server to read it from")

// Reader reads the objects. CSIDrivers are watched. A VolumeAttachment is read each time: a node may read those of its
// own volumes one by one, but watch none.
type Reader struct {
	// Client is nil on a node without an API server.
	Client kubernetes.Interface
	Lister storagelisters.CSIDriverLister
	// Secrets returns a Secret.
	Secrets func(ctx context.Context, namespace, name string) (*v1.Secret, error)

	mu      sync.Mutex
	changed chan struct{} // nil, or closed by Notify
}

// Changed is closed when the watch next sends a CSIDriver.
func (r *Reader) Changed() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.changed == nil {
		r.changed = make(chan struct{})
	}
	return r.changed
}

// Notify is called when the watch has sent a CSIDriver.
func (r *Reader) Notify() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.changed != nil {
		close(r.changed)
		r.changed = nil
	}
}

// Watched returns the object of a driver that the watch knows, or nil.
func (r *Reader) Watched(name string) *storagev1.CSIDriver {
	found, err := r.Lister.Get(name)
	if err != nil {
		return nil
	}
	return found
}

// CSIDriver returns the object of a driver, or nil if there is none. It asks the API server for one that the watch does
// not know: a driver and its first pod may have come at once.
func (r *Reader) CSIDriver(ctx context.Context, name string) (*storagev1.CSIDriver, error) {
	if r.Client == nil {
		return nil, fmt.Errorf("CSIDriver %s: %w", name, errStandalone)
	}
	if found, err := r.Lister.Get(name); err == nil {
		return found, nil
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	found, err := r.Client.StorageV1().CSIDrivers().Get(ctx, name, metav1.GetOptions{})
	if absence.Of(err, "csidrivers", name) {
		return nil, nil
	}
	return found, err
}

// VolumeAttachment returns the attachment of a name.
func (r *Reader) VolumeAttachment(ctx context.Context, name string) (*storagev1.VolumeAttachment, error) {
	if r.Client == nil {
		return nil, errStandalone
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return objects.AskAgain(ctx, objects.Lags, func() (*storagev1.VolumeAttachment, error) {
		return r.Client.StorageV1().VolumeAttachments().Get(ctx, name, metav1.GetOptions{})
	})
}

// Secret returns a Secret that a volume names.
func (r *Reader) Secret(ctx context.Context, namespace, name string) (*v1.Secret, error) {
	return r.Secrets(ctx, namespace, name)
}
