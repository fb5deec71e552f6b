package volumes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	mount "k8s.io/mount-utils"

	"github.com/microlet/microlet/services/internal/childpool"
	"github.com/microlet/microlet/services/internal/nfsexport"
	"github.com/microlet/microlet/services/podsync/internal/mountlist"
)

const (
	nfsName = "kubernetes.io~nfs"
	// forceAfter is how long an NFS server may take for an unmount, which writes what was not written yet.
	forceAfter = time.Minute
	// lookAfter is how often the list of mounts is read while an unmount is under way.
	lookAfter = time.Second
)

// nfs is a folder that a server exports, which a pod names itself.
type nfs struct {
	foreign childpool.Runner
	mounter string // ManagerOptions.NFSMounter
	notes   *notes
}

func (n *nfs) Name() string { return nfsName }

func (n *nfs) Handles(v *v1.Volume) bool { return v.NFS != nil }

func (n *nfs) Refreshes(*Spec) bool { return false }

func (n *nfs) Check(_ context.Context, s *Spec) error {
	_, err := nfsexport.Of(s.Volume.NFS)
	return err
}

func (n *nfs) Existing(s *Spec) (Mounted, bool) {
	if !isUsed(s) {
		return Mounted{}, true // as with the kubelet, a volume that no container uses is not set up
	}
	return n.notes.existing(s)
}

func (n *nfs) SetUp(ctx context.Context, s *Spec) (Mounted, error) {
	source := s.Volume.NFS
	mounted, err := setUpNFS(ctx, n.foreign, source, nfsCall{
		Dir: s.Dir, ReadOnly: source.ReadOnly, Mounter: n.mounter,
	})
	if err != nil {
		return Mounted{}, err
	}
	return mounted, n.notes.write(s, note{Mounted: mounted})
}

// setUpNFS mounts an export. One mount of an export is tried at a time, so that a server that is away costs one child,
// however many pods wait for it. The files' groups are the server's: no fsGroup changes them.
func setUpNFS(ctx context.Context, foreign childpool.Runner, source *v1.NFSVolumeSource, call nfsCall) (Mounted, error) {
	var err error
	if call.Export, err = nfsexport.Of(source); err != nil {
		return Mounted{}, err
	}
	_, err = mountNFS.Do(ctx, foreign, call.Export, call)
	return Mounted{HostPath: call.Dir, ReadOnly: call.ReadOnly}, err
}

// nfsCall asks for an export to be mounted.
type nfsCall struct {
	Export, Dir string
	ReadOnly    bool
	Options     []string
	Mounter     string
}

// options are in the kubelet's order.
func (c *nfsCall) options() []string {
	all := slices.DeleteFunc(slices.Clone(c.Options), func(o string) bool { return o == "" })
	if c.ReadOnly {
		all = append(all, "ro")
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// mount runs mount(8). It ends with this process.
func (c *nfsCall) mount(ctx context.Context, program string) error {
	args := []string{"-t", "nfs"}
	if options := c.options(); len(options) > 0 {
		args = append(args, "-o", strings.Join(options, ","))
	}
	args = append(args, "--", c.Export, c.Dir)
	if c.Mounter != "" {
		program, args = c.Mounter, append([]string{"mount"}, args...)
	}
	command := exec.CommandContext(context.WithoutCancel(ctx), program, args...)
	if output, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("mount failed: %w\nMounting command: %s\nMounting arguments: %s\nOutput: %s", err, program,
			strings.Join(args, " "), output)
	}
	return nil
}

// mountNFS mounts an export unless it is mounted. Only the kernel's list of mounts says that: the folder itself may be
// on a server that is away.
func (k *kernel) mountNFS(ctx context.Context, c *nfsCall) error {
	if err := checkWord("source", c.Export); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(c.Dir), 0o750); err != nil {
		return err
	}
	dir, err := withoutLinks(c.Dir)
	if err != nil {
		return err
	}
	mounted, err := k.hasExport(ctx, dir, c.Export)
	if err != nil || mounted {
		return err
	}
	if err := os.Mkdir(dir, 0o750); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	if err = c.mount(ctx, k.mount); err != nil {
		// mount(8) may have failed after the mount.
		err = errors.Join(err, k.unmountFrom(ctx, dir))
	} else if mounted, err = k.hasExport(ctx, dir, c.Export); err == nil && !mounted {
		err = fmt.Errorf("mount failed: nothing of %s is mounted", c.Export)
	}
	if err != nil {
		_ = os.Remove(dir) // as the kubelet does; the next attempt makes it again
	}
	return err
}

// hasExport reports whether an export is mounted at a path, which has no links. Anything else that is mounted there is
// unmounted and is an error: a container gets what its pod names.
func (k *kernel) hasExport(ctx context.Context, path, export string) (bool, error) {
	found, err := k.mountsAt(path)
	if err != nil || len(found) == 0 {
		return false, err
	}
	for i := range found {
		source := mountlist.Path(found[i].Device)
		if !isNFS(found[i].Type) || !nfsexport.Same(source, export) {
			err = fmt.Errorf("mount failed: %q of type %s is mounted instead of %s: name the export as its server does",
				source, found[i].Type, export)
			return false, errors.Join(err, k.unmountFrom(ctx, path))
		}
	}
	return true, nil
}

// mountsAt lists what the kernel has mounted at a path, which has no links.
func (k *kernel) mountsAt(path string) ([]mount.MountPoint, error) {
	found, err := k.mountsBelow(filepath.Dir(path))
	return slices.DeleteFunc(found, func(m mount.MountPoint) bool { return m.Path != path }), err
}

// isListed reports whether the kernel lists a mount at a path, which has no links.
func (k *kernel) isListed(path string) (bool, error) {
	found, err := k.mountsAt(path)
	return len(found) > 0, err
}

// unmountFrom unmounts all at a path, which has no links, and below it.
func (k *kernel) unmountFrom(ctx context.Context, path string) error {
	if err := k.unmountBelow(ctx, path); err != nil {
		return err
	}
	found, err := k.mountsAt(path)
	for i := range found {
		if e := k.unmountOne(ctx, &found[i]); e != nil {
			err = errors.Join(err, fmt.Errorf("unmount %s: %w", path, e))
		}
	}
	return err
}

func isNFS(fsType string) bool { return fsType == "nfs" || fsType == "nfs4" }

// exportCall asks for an export to be unmounted.
type exportCall struct{ Dir string }

// unmountExports unmounts what is mounted of servers below a pod's folder, each in a call on its own file system. In a
// call on the pod's folder, a server that is away would take a child from the file system on which all pods have
// theirs.
func (m *Manager) unmountExports(ctx context.Context, dir string) error {
	dir, err := withoutLinks(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	mounts, err := mount.ParseMountInfo(m.mountInfo)
	if err != nil {
		return fmt.Errorf("list mounts: %w", err)
	}
	var errs []error
	for _, at := range slices.Backward(mounts) { // what is mounted on another is listed after it
		path := mountlist.Path(at.MountPoint)
		if !isNFS(at.FsType) || !strings.HasPrefix(path, dir+"/") {
			continue
		}
		server, _, _ := strings.Cut(at.Source, ":/")
		if _, err := unmountExport.DoOn(ctx, m.opts.Foreign, server, path, exportCall{Dir: path}); err != nil {
			errs = append(errs, fmt.Errorf("unmount %s: %w", path, err))
		}
	}
	return errors.Join(errs...)
}

// unmountNFS unmounts an export. The kernel first takes it off its list. Then it writes what was not written yet, and
// ends its session if nothing else of the server is mounted. The call does not wait for that. If the export stays on
// the list, requests under way are given up, as with umount -f, and their data are lost. What is in use even then is
// taken out of sight, as with umount -l.
func (k *kernel) unmountNFS(ctx context.Context, path string) error {
	done := make(chan error, 1)
	go func() { done <- k.unmount(path, 0) }() // ends at the latest by force, or with the child
	timer, look := time.NewTimer(forceAfter), time.NewTicker(lookAfter)
	defer timer.Stop()
	defer look.Stop()
	for waits := true; waits; {
		select {
		case err := <-done:
			return err
		case <-look.C:
			if listed, err := k.isListed(path); err == nil && !listed {
				childpool.Leave(ctx)
				return nil
			}
		case <-timer.C:
			waits = false
		}
	}
	err := k.unmount(path, unix.MNT_FORCE)
	if err == nil || errors.Is(err, unix.EINVAL) { // the first one has unmounted it since
		return nil
	}
	if e := k.unmount(path, unix.MNT_DETACH); e != nil && !errors.Is(e, unix.EINVAL) {
		return fmt.Errorf("by force: %w, and out of sight: %w", err, e)
	}
	return nil
}
