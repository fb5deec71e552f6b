package csivolume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/microlet/microlet/services/internal/logkey"
	csidriver "github.com/microlet/microlet/services/podsync/internal/volumes/internal/csi"
	"github.com/microlet/microlet/services/podsync/internal/volumes/internal/metrics"
)

const (
	// grace is how long after the start a volume that no pod has stays staged: the pods that want it may come yet, and
	// drivers have to register.
	grace = 10 * time.Second
	// registers is how long a call waits for a driver that is not registered.
	registers = 2 * time.Second
	// unstageTimeout bounds one attempt, its questions and the call.
	unstageTimeout = 3 * time.Minute
)

// backoff is the kubelet's delay between two attempts.
func backoff() wait.Backoff {
	return wait.Backoff{
		Duration: 500 * time.Millisecond, Factor: 2, Jitter: 0.1, Steps: 32, Cap: 2*time.Minute + 2*time.Second,
	}
}

// Run unstages the volumes that no pod has, also those that an earlier process or a kubelet has staged, until ctx ends.
// Then it waits for the calls that are under way, and abandons those that last for long.
func (vs *Volumes) Run(ctx context.Context) error {
	defer vs.locks.calls.end()
	var under underway
	defer under.all.Wait()
	select {
	case <-ctx.Done():
		return nil
	case <-time.After(grace):
	}
	delay := backoff()
	for {
		var again <-chan time.Time
		if err := vs.sweep(ctx, &under); err != nil {
			after := delay.Step()
			again = time.After(after)
			vs.o.Log.Warn("staged volumes were not listed", logkey.Err, err, logkey.Delay, after)
		} else {
			delay = backoff()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-vs.unused:
		case <-again:
		}
	}
}

// underway are the folders of the volumes that are being unstaged.
type underway struct {
	all sync.WaitGroup
	mu  sync.Mutex
	// dirs says of each whether it was found unused once more meanwhile.
	dirs map[string]bool
}

// begin runs do, unless it runs for this folder already: then it calls again when that has ended, which may have found
// the volume in use.
func (u *underway) begin(dir string, do, again func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if _, runs := u.dirs[dir]; runs {
		u.dirs[dir] = true
		return
	}
	if u.dirs == nil {
		u.dirs = map[string]bool{}
	}
	u.dirs[dir] = false
	u.all.Go(func() {
		do()
		u.mu.Lock()
		defer u.mu.Unlock()
		if u.dirs[dir] {
			again()
		}
		delete(u.dirs, dir)
	})
}

// stagedVolume is one that may be staged.
type stagedVolume struct {
	device
	// dir is its folder, path where it is staged.
	dir, path string
	// pv is the PersistentVolume's name if it is a block volume.
	pv string
	// err is why the volume is unknown: fs.ErrNotExist if there is no vol_data.json.
	err error
}

// sweep begins to unstage what no pod has.
func (vs *Volumes) sweep(ctx context.Context, under *underway) error {
	all, err := vs.mayBeStaged()
	if err != nil || len(all) == 0 {
		return err
	}
	used, err := vs.used()
	if err != nil {
		return err
	}
	for _, v := range all {
		switch {
		case errors.Is(v.err, fs.ErrNotExist):
			vs.removeEmpty(&v)
		case v.err != nil:
			vs.o.Log.Warn("a staged volume is unknown, and stays", logkey.Err, v.err)
		case !used[v.device]:
			under.begin(v.dir, func() { vs.unstageUntilDone(ctx, v) }, vs.lookForUnused)
		}
	}
	return nil
}

// mayBeStaged lists the volumes that this process, an earlier one or a kubelet has staged.
func (vs *Volumes) mayBeStaged() ([]stagedVolume, error) {
	dirs, err := vs.stagedDirs()
	if err != nil {
		return nil, err
	}
	var found []stagedVolume
	for _, dir := range dirs {
		data, err := load(dir)
		found = append(found, stagedVolume{
			device: data.device(), dir: dir, path: filepath.Join(dir, staging), err: err,
		})
	}
	blocks, err := vs.stagedBlocks()
	return append(found, blocks...), err
}

// removeEmpty removes a folder that belongs to no known volume. For a driver that stages nothing the kubelet has only
// a folder, and a process that was killed while it removed a volume leaves one. A folder that is not empty stays. So
// does that of a volume which a pod wants, since its vol_data.json may be about to come.
func (vs *Volumes) removeEmpty(v *stagedVolume) {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	for _, pods := range vs.holders {
		for _, dir := range pods {
			if dir == v.dir {
				return
			}
		}
	}
	inside := v.path
	if v.pv != "" {
		inside = vs.layout.blockData(v.pv)
	}
	_ = unix.Rmdir(inside)
	_ = unix.Rmdir(v.dir)
}

// stagedDirs lists the folders in which volumes with a file system are staged, or were.
func (vs *Volumes) stagedDirs() ([]string, error) {
	drivers, err := entries(vs.layout.devices())
	if err != nil {
		return nil, err
	}
	var dirs []string
	for _, driver := range drivers {
		if driver == blockDir {
			continue
		}
		at := filepath.Join(vs.layout.devices(), driver)
		names, err := entries(at)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			dir := filepath.Join(at, name)
			if isHash(name) || exists(filepath.Join(dir, staging)) || exists(filepath.Join(dir, dataFile)) {
				dirs = append(dirs, dir)
			}
		}
	}
	return dirs, nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// used are the volumes that pods have, or try to get.
func (vs *Volumes) used() (map[device]bool, error) {
	used := map[device]bool{}
	vs.mu.Lock()
	for d := range vs.holders {
		used[d] = true
	}
	vs.mu.Unlock()
	pods, err := entries(vs.layout.pods())
	if err != nil {
		return nil, err
	}
	for _, pod := range pods {
		dir := vs.layout.volumes(types.UID(pod))
		names, err := entries(dir)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			data, err := load(filepath.Join(dir, name))
			if err == nil && !data.inline() {
				used[data.device()] = true
			}
		}
		blocks, err := vs.layout.blocksOf(types.UID(pod))
		if err != nil {
			return nil, err
		}
		for _, pv := range blocks {
			if data, err := load(vs.layout.blockData(pv)); err == nil {
				used[data.device()] = true
			}
		}
	}
	return used, nil
}

// unstageUntilDone tries until the volume is unstaged, a pod has it again, or ctx ends.
func (vs *Volumes) unstageUntilDone(ctx context.Context, v stagedVolume) {
	delay := backoff()
	for {
		err := vs.unstage(ctx, v)
		if err == nil || ctx.Err() != nil {
			vs.changeInUse()
			return
		}
		after := delay.Step()
		vs.o.Log.Warn("volume is not unstaged", "driver", v.driver, "volume", v.handle, logkey.Err, err, logkey.Delay,
			after)
		select {
		case <-ctx.Done():
			return
		case <-vs.o.Drivers.Changed():
		case <-time.After(after):
		}
	}
}

func (vs *Volumes) unstage(ctx context.Context, v stagedVolume) error {
	ctx, cancel := context.WithTimeout(ctx, unstageTimeout)
	defer cancel()
	locked, err := vs.locks.lock(ctx, v.device)
	if err != nil {
		return err
	}
	defer locked.release()
	used, err := vs.used()
	if err != nil {
		return err
	}
	if used[v.device] {
		return nil
	}
	driver, err := vs.driver(ctx, v.device.driver)
	if err != nil {
		return err
	}
	return vs.unstageBy(ctx, locked, v, driver)
}

// unstageBy has the driver unstage a volume that no pod has, and measures it.
func (vs *Volumes) unstageBy(ctx context.Context, locked *lockedVolume, v stagedVolume,
	driver *csidriver.Driver) (err error) {
	began, operation := time.Now(), metrics.UnmountDevice
	if v.pv != "" {
		operation = metrics.UnmapDevice
	}
	defer func() { vs.o.Metrics.Operation(vs.o.Metrics.CSI(v.driver), operation, began, err) }()
	if v.pv != "" {
		if err := vs.releaseOrphans(ctx, locked, v, driver); err != nil {
			return err
		}
	}
	if err := vs.mountedByOthers(&v); err != nil {
		return err
	}
	vs.noteStaged(v.path, false) // whatever comes of it, the next pod has it staged again
	can, err := driver.Capabilities(ctx)
	if err != nil {
		return err
	}
	if can.Stages() {
		err := locked.call(ctx, func(ctx context.Context) error { return driver.Unstage(ctx, v.handle, v.path) })
		if err != nil {
			return err
		}
	}
	if v.pv != "" {
		return vs.layout.removeBlock(ctx, v.pv)
	}
	return remove(ctx, v.dir, staging)
}

// mountedByOthers is an error if what is staged is mounted at a place that is no known volume of a pod: by a pod whose
// vol_data.json cannot be read, or by hand. As under the kubelet, it is not pulled away from there. The error is
// the kubelet's. Volumes of one share may be one file system: a pod that is known to have another one does not count.
func (vs *Volumes) mountedByOthers(v *stagedVolume) error {
	places, err := mountedElsewhere(v.path)
	if err != nil {
		return err
	}
	devices, err := filepath.EvalSymlinks(vs.layout.devices())
	if err != nil {
		return err
	}
	places = slices.DeleteFunc(places, func(at string) bool {
		if strings.HasPrefix(at, devices+"/") {
			return true
		}
		_, err := load(filepath.Dir(at))
		return err == nil && filepath.Base(at) == target
	})
	if len(places) > 0 {
		return fmt.Errorf("GetDeviceMountRefs check failed: the device mount path %q is still mounted by other references %v",
			v.path, places)
	}
	return nil
}

// driver returns the driver of a name, and waits a moment for it: after a start, drivers have to register.
func (vs *Volumes) driver(ctx context.Context, name string) (*csidriver.Driver, error) {
	timer := time.NewTimer(registers)
	defer timer.Stop()
	for {
		changed := vs.o.Drivers.Changed()
		driver, err := vs.o.Drivers.Driver(name)
		if err == nil {
			return driver, nil
		}
		select {
		case <-changed:
		case <-timer.C:
			return nil, err
		case <-ctx.Done():
			return nil, errors.Join(err, context.Cause(ctx))
		}
	}
}

// makeMountPoint makes a folder to mount on. One that is a mount point already, whose file system may hang, it leaves
// alone.
func makeMountPoint(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return err
	}
	if err := os.Mkdir(path, 0o750); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make the mount point: %w", err)
	}
	return nil
}
