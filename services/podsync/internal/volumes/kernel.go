package volumes

import (
	"context"
	"sync"
	"time"

	mount "k8s.io/mount-utils"

	"github.com/microlet/microlet/services/internal/childpool"
	"github.com/microlet/microlet/services/podsync/internal/volumes/internal/blockdevice"
	"github.com/microlet/microlet/services/podsync/internal/volumes/internal/csivolume"
)

// The operations on paths that may lie on a foreign file system, or below which something foreign may be mounted.
var (
	checkHostPath  = childpool.Operation[hostPathCall, hostPathState]{Name: "check hostPath"}
	prepareSubPath = childpool.Operation[subPathCall, subPathState]{Name: "prepare subPath"}
	makeEmptyDir   = childpool.Operation[emptyDirCall, struct{}]{Name: "make emptyDir"}
	giveVolume     = childpool.Operation[giveCall, refusals]{
		Name: "give volume to fsGroup", Patience: 2 * time.Minute, Long: true,
	}
	measure   = childpool.Operation[usageCall, csivolume.Usage]{Name: "measure volume"}
	growLocal = childpool.Operation[growCall, struct{}]{
		Name: "grow local volume", Patience: 10 * time.Minute, Long: true,
	}
	// To make a file system on a device, or to repair one, takes long.
	mountLocal = childpool.Operation[localCall, localState]{
		Name: "mount local volume", Patience: 10 * time.Minute, Long: true,
	}
	unmountLocal    = childpool.Operation[localRelease, struct{}]{Name: "unmount local volume"}
	mapDevice       = childpool.Operation[mapCall, blockdevice.State]{Name: "map block device"}
	unmapDevice     = childpool.Operation[blockdevice.Mapping, struct{}]{Name: "unmap block device"}
	unmountSubPaths = childpool.Operation[removeCall, struct{}]{Name: "unmount subPaths", Patience: 2 * time.Minute}
	// Less than the deadline of a pod's mounting, so that the pod's Event names the server and not the deadline.
	mountNFS = childpool.Operation[nfsCall, struct{}]{Name: "mount NFS export", Patience: time.Minute}
	// Longer than it takes to give up a server that is away.
	unmountExport = childpool.Operation[exportCall, struct{}]{Name: "unmount NFS export", Patience: 2 * forceAfter}
	// To remove many files takes long without hanging. The deadline ends it, and the next removal goes on.
	removePod = childpool.Operation[removeCall, struct{}]{
		Name: "remove", Patience: 10 * time.Minute, Long: true, Deadline: defaultDeadline,
	}
)

// Operations are what a child does for volumes. See package childpool.
func Operations() childpool.Table {
	// Made when it is needed: it tries what the node's umount can do.
	k := &kernel{
		mounter: sync.OnceValue(func() mount.Interface { return mount.New("") }), mount: "mount", unmount: unmount,
	}
	return k.operations()
}

// kernel makes the calls.
type kernel struct {
	mounter func() mount.Interface
	// mount is mount(8).
	mount string
	// unmount takes flags of umount2(2).
	unmount func(path string, flags int) error
}

func (k *kernel) operations() childpool.Table {
	t := childpool.Table{}
	childpool.Handle(t, checkHostPath, func(_ context.Context, c hostPathCall) (hostPathState, error) { return c.do() })
	childpool.Handle(t, prepareSubPath, func(_ context.Context, c subPathCall) (subPathState, error) { return c.do() })
	childpool.Handle(t, makeEmptyDir, func(_ context.Context, c emptyDirCall) (struct{}, error) {
		return struct{}{}, c.do(k.mounter())
	})
	childpool.Handle(t, growLocal, func(_ context.Context, c growCall) (struct{}, error) { return struct{}{}, c.do() })
	childpool.Handle(t, measure, func(_ context.Context, c usageCall) (csivolume.Usage, error) { return c.do() })
	childpool.Handle(t, mountLocal, func(ctx context.Context, c localCall) (localState, error) {
		return c.do(ctx, k.mounter())
	})
	childpool.Handle(t, unmountLocal, func(_ context.Context, c localRelease) (struct{}, error) {
		return struct{}{}, k.releaseLocal(&c)
	})
	childpool.Handle(t, mapDevice, func(_ context.Context, c mapCall) (blockdevice.State, error) { return c.do() })
	childpool.Handle(t, unmapDevice, func(_ context.Context, m blockdevice.Mapping) (struct{}, error) {
		return struct{}{}, m.Unmap()
	})
	childpool.Handle(t, mountNFS, func(ctx context.Context, c nfsCall) (struct{}, error) {
		return struct{}{}, k.mountNFS(ctx, &c)
	})
	childpool.Handle(t, unmountExport, func(ctx context.Context, c exportCall) (struct{}, error) {
		return struct{}{}, k.unmountNFS(ctx, c.Dir)
	})
	childpool.Handle(t, giveVolume, func(ctx context.Context, c giveCall) (refusals, error) { return c.do(ctx) })
	childpool.Handle(t, unmountSubPaths, func(ctx context.Context, c removeCall) (struct{}, error) {
		return struct{}{}, k.unmountSubPaths(ctx, c.Dir)
	})
	childpool.Handle(t, removePod, func(ctx context.Context, c removeCall) (struct{}, error) {
		return struct{}{}, k.remove(ctx, c.Dir)
	})
	return t
}
