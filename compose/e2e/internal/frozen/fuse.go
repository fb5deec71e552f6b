package frozen

import (
	"context"
	"sync"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// FUSE mounts a file system of this process at a folder until the test has ended. It shows a folder of the host. While
// it is frozen, a process that has called it cannot be killed: the kernel has given its request away, and waits for the
// answer.
func FUSE(t *testing.T, dir string) *FileSystem {
	t.Helper()
	shown, err := fs.NewLoopbackRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{open: make(chan struct{})}
	close(g.open)
	// Without time-outs of entries and attributes the kernel remembers none, and each call asks the file system.
	server, err := fs.Mount(dir, &node{shown.(*fs.LoopbackNode), g}, &fs.Options{
		MountOptions: fuse.MountOptions{Name: "frozen", DirectMountStrict: true, AllowOther: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	f := &FileSystem{
		Dir: dir, t: t,
		freeze:  func() error { g.shut(); return nil },
		thaw:    func(context.Context) error { g.release(); return nil },
		unmount: server.Unmount,
	}
	f.endsWith(t)
	return f
}

// gate lets calls pass unless it is shut.
type gate struct {
	mu   sync.Mutex
	open chan struct{} // closed while they pass
}

func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open = make(chan struct{})
}

func (g *gate) release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	close(g.open)
}

// pass waits, also for a caller that was killed meanwhile.
func (g *gate) pass() {
	g.mu.Lock()
	open := g.open
	g.mu.Unlock()
	<-open
}

// node is a file or folder at which calls pass the gate: the calls that lead to it, and the calls that query or change
// it.
type node struct {
	*fs.LoopbackNode
	gate *gate
}

var _ fs.NodeWrapChilder = (*node)(nil)

// WrapChild implements fs.NodeWrapChilder.
func (n *node) WrapChild(_ context.Context, ops fs.InodeEmbedder) fs.InodeEmbedder {
	return &node{ops.(*fs.LoopbackNode), n.gate}
}

func (n *node) Lookup(ctx context.Context, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	n.gate.pass()
	return n.LoopbackNode.Lookup(ctx, name, out)
}

func (n *node) Getattr(ctx context.Context, f fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	n.gate.pass()
	return n.LoopbackNode.Getattr(ctx, f, out)
}

func (n *node) Setattr(ctx context.Context, f fs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	n.gate.pass()
	return n.LoopbackNode.Setattr(ctx, f, in, out)
}

func (n *node) Statx(ctx context.Context, f fs.FileHandle, flags, mask uint32, out *fuse.StatxOut) syscall.Errno {
	n.gate.pass()
	return n.LoopbackNode.Statx(ctx, f, flags, mask, out)
}

func (n *node) Statfs(ctx context.Context, out *fuse.StatfsOut) syscall.Errno {
	n.gate.pass()
	return n.LoopbackNode.Statfs(ctx, out)
}

func (n *node) Mkdir(ctx context.Context, name string, mode uint32, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	n.gate.pass()
	return n.LoopbackNode.Mkdir(ctx, name, mode, out)
}

func (n *node) Open(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	n.gate.pass()
	return n.LoopbackNode.Open(ctx, flags)
}

func (n *node) OpendirHandle(ctx context.Context, flags uint32) (fs.FileHandle, uint32, syscall.Errno) {
	n.gate.pass()
	return n.LoopbackNode.OpendirHandle(ctx, flags)
}
