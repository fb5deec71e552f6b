package volumes

import (
	"context"
	"sync"
	"time"

	mount "k8s.io/mount-utils"

	"github.com/microlet/microlet/services/podsync/internal/mounter"
	"github.com/microlet/microlet/services/podsync/internal/volumes/internal/blockdevice"
	"github.com/microlet/microlet/services/podsync/internal/volumes/internal/csivolume"
)

// The operations on paths that may lie on a foreign file system, or below which something foreign may be mounted.
var (
	checkHostPath  = mounter.Operation[hostPathCall, hostPathState]{Name: "check hostPath"}
	prepareSubPath = mounter.Operation[subPathCall, subPathState]{Name: "prepare subPath"}
	makeEmptyDir   = mounter.Operation[emptyDirCall, struct{}]{Name: "make emptyDir"}
	giveVolume     = mounter.Operation[giveCall, refusals]{
		Name: "give volume to fsGroup", Patience: 2 * time.Minute, Long: true,
	}
	measure   = mounter.Operation[usageCall, csivolume.Usage]{Name: "measure volume"}
	growLocal = mounter.Operation[growCall, struct{}]{
		Name: "grow local volume", Patience: 10 * time.Minute, Long: true,
	}
	// To make a file system on a device, or to repair one, takes long.
	mountLocal = mounter.Operation[localCall, localState]{
		Name: "mount local volume", Patience: 10 * time.Minute, Long: true,
	}
	unmountLocal    = mounter.Operation[localRelease, struct{}]{Name: "unmount local volume"}
	mapDevice       = mounter.Operation[mapCall, blockdevice.State]{Name: "map block device"}
	unmapDevice     = mounter.Operation[blockdevice.Mapping, struct{}]{Name: "unmap block device"}
	unmountSubPaths = mounter.Operation[removeCall, struct{}]{Name: "unmount subPaths", Patience: 2 * time.Minute}
	// Less than the deadline of a pod's mounting, so that the pod's Event names the server and not the deadline.
	mountNFS = mounter.Operation[nfsCall, struct{}]{Name: "mount NFS export", Patience: time.Minute}
	// Longer than it takes to give up a server that is away.
	unmountExport = mounter.Operation[exportCall, struct{}]{Name: "unmount NFS export", Patience: 2 * forceAfter}
	// To remove many files takes long without hanging. The deadline ends it, and the next removal goes on.
	removePod = mounter.Operation[removeCall, struct{}]{
		Name: "remove", Patience: 10 * time.Minute, Long: true, Deadline: defaultDeadline,
	}
)

// Operations are what a child does for volumes. See package mounter.
func Operations() mounter.Table {
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

func (k *kernel) operations() mounter.Table {
	t := mounter.Table{}
	mounter.Handle(t, checkHostPath, func(_ context.Context, c hostPathCall) (hostPathState, error) { return c.do() })
	mounter.Handle(t, prepareSubPath, func(_ context.Context, c subPathCall) (subPathState, error) { return c.do() })
	mounter.Handle(t, makeEmptyDir, func(_ context.Context, c emptyDirCall) (struct{}, error) {
		return struct{}{}, c.do(k.mounter())
	})
	mounter.Handle(t, growLocal, func(_ context.Context, c growCall) (struct{}, error) { return struct{}{}, c.do() })
	mounter.Handle(t, measure, func(_ context.Context, c usageCall) (csivolume.Usage, error) { return c.do() })
	mounter.Handle(t, mountLocal, func(ctx context.Context, c localCall) (localState, error) {
		return c.do(ctx, k.mounter())
	})
	mounter.Handle(t, unmountLocal, func(_ context.Context, c localRelease) (struct{}, error) {
		return struct{}{}, k.releaseLocal(&c)
	})
	mounter.Handle(t, mapDevice, func(_ context.Context, c mapCall) (blockdevice.State, error) { return c.do() })
	mounter.Handle(t, unmapDevice, func(_ context.Context, m blockdevice.Mapping) (struct{}, error) {
		return struct{}{}, m.Unmap()
	})
	mounter.Handle(t, mountNFS, func(ctx context.Context, c nfsCall) (struct{}, error) {
		return struct{}{}, k.mountNFS(ctx, &c)
	})
	mounter.Handle(t, unmountExport, func(ctx context.Context, c exportCall) (struct{}, error) {
		return struct{}{}, k.unmountNFS(ctx, c.Dir)
	})
	mounter.Handle(t, giveVolume, func(ctx context.Context, c giveCall) (refusals, error) { return c.do(ctx) })
	mounter.Handle(t, unmountSubPaths, func(ctx context.Context, c removeCall) (struct{}, error) {
		return struct{}{}, k.unmountSubPaths(ctx, c.Dir)
	})
	mounter.Handle(t, removePod, func(ctx context.Context, c removeCall) (struct{}, error) {
		return struct{}{}, k.remove(ctx, c.Dir)
	})
	return t
}
