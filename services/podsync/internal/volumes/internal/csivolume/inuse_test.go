package csivolume

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/microlet/microlet/services/podsync/internal/volumes/internal/csi/csitest"
)

// inUse is a list whose volumes are attached as soon as they are on it. Without a changed it awaits nothing.
type inUse struct {
	mu      sync.Mutex
	names   map[string]bool
	changed chan struct{}
}

func (l *inUse) Set(names map[string]bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.names = maps.Clone(names)
	if l.changed != nil {
		close(l.changed)
		l.changed = make(chan struct{})
	}
}

func (l *inUse) Add(_ context.Context, names map[string]bool) error {
	l.mu.Lock()
	all := maps.Clone(names)
	maps.Copy(all, l.names)
	l.mu.Unlock()
	l.Set(all)
	return nil
}

func (l *inUse) has(name string) (bool, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.names[name], l.changed
}

func (l *inUse) Await(ctx context.Context, name string) error {
	if _, changed := l.has(name); changed == nil {
		return nil
	}
	return l.until(ctx, name, true)
}

// until waits until the volume is on the list, or is not. It fails when that takes much longer than it ever does.
func (l *inUse) until(ctx context.Context, name string, listed bool) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		is, changed := l.has(name)
		if is == listed {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("volume %s: in use is %t, not %t: %w", name, is, listed, ctx.Err())
		}
	}
}

const uniqueH = "kubernetes.io/csi/d.example^h"

// tellInUse runs TellInUse until the test ends.
func tellInUse(t *testing.T, vs *Volumes) *inUse {
	t.Helper()
	list := &inUse{changed: make(chan struct{})}
	vs.o.InUse = list
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- vs.TellInUse(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return list
}

func attachable() *api {
	a := unattached()
	a.driver.Spec.AttachRequired = nil
	a.attachments = map[string]*storagev1.VolumeAttachment{
		attachmentName(device{driverName, "h"}, "n"): {Status: storagev1.VolumeAttachmentStatus{Attached: true}},
	}
	return a
}

// The driver is called for no volume that may be detached.
func TestAVolumeIsInUseFromBeforeItsStagingToAfterItsUnstaging(t *testing.T) {
	for name, c := range map[string]struct {
		can []csi.NodeServiceCapability_RPC_Type
		v   *Volume
	}{
		"driver that stages":               {[]csi.NodeServiceCapability_RPC_Type{stages}, claimed(pod("u1"), "h")},
		"driver that does not":             {nil, claimed(pod("u1"), "h")},
		"block, of a driver that stages":   {[]csi.NodeServiceCapability_RPC_Type{stages}, block(pod("u1"), "h")},
		"block, of a driver that does not": {nil, block(pod("u1"), "h")},
	} {
		t.Run(name, func(t *testing.T) {
			d := csitest.Start(t, c.can...)
			vs := newVolumes(t, t.TempDir(), d, attachable())
			list := tellInUse(t, vs)
			d.Before(func(_ context.Context, method string) error {
				if is, _ := list.has(uniqueH); !is && method != "NodeGetCapabilities" {
					return fmt.Errorf("%s of a volume that is not in use", method)
				}
				return nil
			})
			for range 3 {
				if err := give(t.Context(), vs, c.v); err != nil {
					t.Fatal(err)
				}
				release(t, vs, "u1")
				if err := list.until(t.Context(), uniqueH, false); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

func TestWhatAnEarlierProcessHasStagedIsInUse(t *testing.T) {
	for name, v := range map[string]*Volume{"files": claimed(pod("u1"), "h"), "block": block(pod("u1"), "h")} {
		t.Run(name, func(t *testing.T) { stagedIsInUse(t, v) })
	}
}

func stagedIsInUse(t *testing.T, v *Volume) {
	d := csitest.Start(t, stages)
	root := t.TempDir()
	a := attachable()
	if err := give(t.Context(), newVolumes(t, root, d, a), v); err != nil {
		t.Fatal(err)
	}
	// The pod's folder is gone with the pod; what was staged is not.
	if err := os.RemoveAll(filepath.Join(root, "pods")); err != nil {
		t.Fatal(err)
	}
	for _, known := range []error{nil, errors.New("the API server is away")} {
		a.err = known
		if err := tellInUse(t, newVolumes(t, root, d, a)).until(t.Context(), uniqueH, true); err != nil {
			t.Fatal(err)
		}
	}
	a.err, a.driver.Spec.AttachRequired = nil, new(false)
	vs := newVolumes(t, root, d, a)
	vs.o.InUse = &inUse{}
	if err := vs.tellInUse(t.Context()); err != nil {
		t.Fatal(err)
	}
	if is, _ := vs.o.InUse.(*inUse).has(uniqueH); is {
		t.Error("a volume that no controller attaches is listed")
	}
}

// A crash leaves half of a file. What is staged there then has no name: it stays in use, and holds up no other.
func TestAVolumeWhoseFileIsBroken(t *testing.T) {
	for name, mounted := range map[string]bool{"mounted": true, "not mounted": false} {
		t.Run(name, func(t *testing.T) {
			d := csitest.Start(t, stages)
			root := t.TempDir()
			vs := newVolumes(t, root, d, attachable())
			list := &inUse{}
			vs.o.InUse = list
			broken := vs.layout.device(device{driverName, "h"})
			if err := (volumeData{Driver: driverName, Handle: "h"}).save(broken); err != nil {
				t.Fatal(err)
			}
			if err := vs.tellInUse(t.Context()); err != nil {
				t.Fatal(err)
			}
			if mounted {
				mountAt(t, "tmpfs", filepath.Join(broken, staging), "tmpfs", 0)
			}
			if err := os.WriteFile(filepath.Join(broken, dataFile), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			other := volumeData{Driver: driverName, Handle: "other"}
			if err := other.save(vs.layout.device(other.device())); err != nil {
				t.Fatal(err)
			}
			if err := vs.tellInUse(t.Context()); err != nil {
				t.Fatal(err)
			}
			if is, _ := list.has("kubernetes.io/csi/d.example^other"); !is {
				t.Error("another volume is not in use")
			}
			if is, _ := list.has(uniqueH); is != mounted {
				t.Errorf("the volume is in use: %t", is)
			}
		})
	}
}

// mountAt mounts until the test ends.
func mountAt(t *testing.T, source, path, kind string, flags uintptr) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("needs root: it mounts")
	}
	if err := os.MkdirAll(path, 0o750); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(source, path, kind, flags, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) })
}

func TestAVolumeThatIsNotAttachedIsNotStaged(t *testing.T) {
	d := csitest.Start(t, stages)
	vs := newVolumes(t, t.TempDir(), d, attachable())
	vs.o.InUse = detached{errDetached}
	_, err := vs.Publish(t.Context(), claimed(pod("u1"), "h"))
	var waits *NotAttached
	if !errors.As(err, &waits) || !errors.Is(err, errDetached) {
		t.Errorf("%v", err)
	}
	if calls := d.Calls(); len(calls) > 0 {
		t.Errorf("calls: %q", calls)
	}
}

var errDetached = errors.New("it is not attached")

// detached is a list of which nothing is ever attached.
type detached struct{ err error }

func (detached) Set(map[string]bool) {}

func (detached) Add(context.Context, map[string]bool) error { return nil }

func (d detached) Await(context.Context, string) error { return d.err }

// TestANodeWithoutRoomForAVolume: the wait for an attachment becomes another error only if the controller says that the
// node is full, and the limit of the driver may change.
func TestANodeWithoutRoomForAVolume(t *testing.T) {
	for name, c := range map[string]struct {
		period *int64
		code   *int32
		want   bool
	}{
		"full":             {new(int64(10)), new(int32(codes.ResourceExhausted)), true},
		"another error":    {new(int64(10)), new(int32(codes.Internal)), false},
		"no code":          {new(int64(10)), nil, false},
		"a driver without": {nil, new(int32(codes.ResourceExhausted)), false},
	} {
		t.Run(name, func(t *testing.T) {
			d := csitest.Start(t, stages)
			a := attachable()
			a.driver.Spec.NodeAllocatableUpdatePeriodSeconds = c.period
			for _, attachment := range a.attachments {
				attachment.Status = storagev1.VolumeAttachmentStatus{
					AttachError: &storagev1.VolumeError{Message: "no room", ErrorCode: c.code},
				}
			}
			vs := newVolumes(t, t.TempDir(), d, a)
			vs.o.InUse = detached{context.DeadlineExceeded}
			asked := false
			d.Before(func(_ context.Context, method string) error {
				asked = asked || method == "NodeGetInfo"
				return nil
			})
			_, err := vs.Publish(t.Context(), claimed(pod("u1"), "h"))
			var limit *LimitExceeded
			if is := errors.As(err, &limit); is != c.want {
				t.Errorf("%v", err)
			}
			if asked != c.want {
				t.Errorf("the driver was asked for its limits: %t", asked)
			}
		})
	}
}
