package csivolume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/microlet/microlet/services/internal/removal"
	"github.com/microlet/microlet/services/podsync/internal/mountlist"
	"github.com/microlet/microlet/services/podsync/internal/volumes/internal/blockdevice"
	csidriver "github.com/microlet/microlet/services/podsync/internal/volumes/internal/csi"
)

// The folders of all block volumes in blockDir.
const (
	blockStaging = "staging"
	blockPublish = "publish"
)

func (l layout) blocks() string { return filepath.Join(l.devices(), blockDir) }

// block is the folder of one of them, by the name of its PersistentVolume.
func (l layout) block(pv string) string { return filepath.Join(l.blocks(), pv) }

// blockData is the folder with what is known of it.
func (l layout) blockData(pv string) string { return filepath.Join(l.block(pv), "data") }

func (l layout) blockStaging(pv string) string { return filepath.Join(l.blocks(), blockStaging, pv) }

// blockPublished is the folder in which the driver has a file for each pod.
func (l layout) blockPublished(pv string) string { return filepath.Join(l.blocks(), blockPublish, pv) }

func (l layout) blockTarget(pod types.UID, pv string) string {
	return filepath.Join(l.blockPublished(pv), string(pod))
}

// blockLinks is the folder of a pod's links to its devices.
func (l layout) blockLinks(pod types.UID) string {
	return filepath.Join(l.pods(), string(pod), blockDir, Plugin)
}

// mapping is that of what the driver publishes for the pod.
func (l layout) mapping(pod types.UID, pv string) blockdevice.Mapping {
	return blockdevice.Mapping{
		Device: l.blockTarget(pod, pv), Volume: filepath.Join(l.block(pv), "dev"), Pod: pod,
		Link: filepath.Join(l.blockLinks(pod), pv),
	}
}

// GlobalMap is the folder of the mappings of a PersistentVolume that is a block volume.
func GlobalMap(root, pv string) string { return layout{root}.mapping("", pv).Volume }

// validBlock keeps a block volume's folder from being another's.
func validBlock(pv string) error {
	if pv == blockStaging || pv == blockPublish {
		return fmt.Errorf("PersistentVolume %q: its folder %s would be that of all block volumes: give it another name", pv,
			filepath.Join(blockDir, pv))
	}
	return nil
}

// announceBlock leaves the driver to make the file that it publishes at.
func (s *setup) announceBlock() error {
	m := s.vs.layout.mapping(s.Pod.UID, s.PV.Name)
	if err := s.data().save(s.vs.layout.blockData(s.PV.Name)); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(m.Device), 0o750); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(m.Link), 0o750); err != nil {
		return err
	}
	if err := os.Symlink(m.Device, m.Link); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// mapDevice maps what the driver has published.
func (s *setup) mapDevice(ctx context.Context) (Published, error) {
	m := s.vs.layout.mapping(s.Pod.UID, s.PV.Name)
	if state, err := s.vs.o.Devices.Map(ctx, m); err != nil {
		return Published{}, &Error{state.Step(), err}
	}
	return Published{Device: m.Link, Republish: s.republishes()}, nil
}

// blocksOf lists the block volumes that a pod has, or that something that was killed may have given to it.
func (l layout) blocksOf(pod types.UID) ([]string, error) {
	return blockdevice.Volumes(l.blockLinks(pod), l.blocks(), func(pv string) bool { return l.hasBlock(pod, pv) })
}

// hasBlock reports whether there is something of the volume for a pod, except for the pod's link.
func (l layout) hasBlock(pod types.UID, pv string) bool {
	m := l.mapping(pod, pv)
	_, err := os.Lstat(m.Device)
	return err == nil || m.Exists()
}

// unmap takes a block volume from a pod. The pod's link goes last: until then it shows that something is left to do.
func (vs *Volumes) unmap(ctx context.Context, pod types.UID, pv string) error {
	m := vs.layout.mapping(pod, pv)
	if err := vs.o.Devices.Unmap(ctx, m); err != nil {
		return fmt.Errorf("unmap the device: %w", err)
	}
	data, err := load(vs.layout.blockData(pv))
	if err != nil {
		// It belongs to no known volume. Without a mount there is nothing that a driver could undo.
		if removed := removeUnmounted(m.Device); removed != nil {
			return fmt.Errorf("%w, and %w", err, removed)
		}
		return m.Unlink()
	}
	locked, err := vs.locks.lock(ctx, data.device())
	if err != nil {
		return err
	}
	defer locked.release()
	driver, err := vs.driver(ctx, data.Driver)
	if err != nil {
		return err
	}
	if err := locked.unpublish(ctx, driver, data.Handle, m.Device); err != nil {
		return err
	}
	if err := removeUnmounted(m.Device); err != nil { // which the driver should have removed, and some don't
		return err
	}
	return m.Unlink()
}

// orphans are the pods that have something of a block volume, and are no more on the node: nothing else may
// show what a kubelet that was killed has published.
func (l layout) orphans(pv string) ([]types.UID, error) {
	found := map[types.UID]bool{}
	for _, dir := range []string{l.mapping("", pv).Volume, l.blockPublished(pv)} {
		files, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, f := range files {
			if _, err := os.Lstat(filepath.Join(l.pods(), f.Name())); errors.Is(err, fs.ErrNotExist) {
				found[types.UID(f.Name())] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(found)), nil
}

// stagedBlocks lists the block volumes of the node.
func (vs *Volumes) stagedBlocks() ([]stagedVolume, error) {
	names, err := entries(vs.layout.blocks())
	if err != nil {
		return nil, err
	}
	var found []stagedVolume
	for _, pv := range names {
		if validBlock(pv) != nil {
			continue
		}
		data, err := load(vs.layout.blockData(pv))
		found = append(found, stagedVolume{
			device: data.device(), dir: vs.layout.block(pv), path: vs.layout.blockStaging(pv), pv: pv, err: err,
		})
	}
	return found, nil
}

// releaseOrphans takes a volume from pods that are no more on the node.
func (vs *Volumes) releaseOrphans(ctx context.Context, locked *lockedVolume, v stagedVolume,
	driver *csidriver.Driver) error {
	orphans, err := vs.layout.orphans(v.pv)
	if err != nil {
		return err
	}
	for _, pod := range orphans {
		m := vs.layout.mapping(pod, v.pv)
		if err := vs.o.Devices.Unmap(ctx, m); err != nil {
			return err
		}
		if err := locked.unpublish(ctx, driver, v.handle, m.Device); err != nil {
			return err
		}
		if err := removeUnmounted(m.Device); err != nil {
			return err
		}
	}
	return nil
}

// removeBlock removes the folders of a block volume that no pod has. What is known of it goes last.
func (l layout) removeBlock(ctx context.Context, pv string) error {
	for _, dir := range []string{l.mapping("", pv).Volume, l.blockPublished(pv)} {
		if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("remove %s: %w", dir, err)
		}
	}
	path := l.blockStaging(pv)
	mounted, err := mountlist.HasBelow(path)
	if err != nil {
		return err
	}
	if mounted {
		return fmt.Errorf("%s is still mounted", path)
	}
	for _, dir := range []string{path, l.blockData(pv)} {
		if err := removal.Tree(ctx, dir); err != nil {
			return err
		}
	}
	return os.Remove(l.block(pv))
}
