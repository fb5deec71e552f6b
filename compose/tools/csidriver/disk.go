package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"k8s.io/mount-utils"
	"k8s.io/utils/exec"
)

// kind is what a volume is.
type kind string

const (
	// folder has no size.
	folder kind = ""
	// device is a file that is attached to a loop device.
	device kind = "device"
	// memory is a folder on a file system of its own, in memory, which has a size and is there until the volume is
	// deleted. To grow one that is mounted needs no right but that to mount.
	memory kind = "memory"
)

// leastSize is that of a volume of which no size is asked for.
const leastSize = 8 << 20

// mountMemory mounts a file system of a size, or makes the one that is mounted larger.
func mountMemory(m mount.Interface, path string, size int64) error {
	options := []string{fmt.Sprintf("size=%d", size)}
	there, err := m.IsMountPoint(path)
	if err != nil {
		return err
	}
	if there {
		options = append(options, "remount")
	}
	return m.MountSensitiveWithoutSystemd("csidriver", path, "tmpfs", options, nil)
}

// disk is the file of a volume that is a device.
type disk struct{ path string }

// make makes the file, or makes it larger.
func (d disk) make(size int64) error {
	f, err := os.OpenFile(d.path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil || info.Size() >= size {
		return err
	}
	return f.Truncate(size)
}

// attached is the loop device of the file. It is fs.ErrNotExist if there is none.
func (d disk) attached() (string, error) {
	out, err := losetup("--associated", d.path, "--noheadings", "--output", "NAME")
	if err != nil {
		return "", err
	}
	name, _, _ := strings.Cut(out, "\n")
	if name = strings.TrimSpace(name); name == "" {
		return "", fs.ErrNotExist
	}
	return name, nil
}

// attach gives the file a loop device, unless it has one.
func (d disk) attach() (string, error) {
	name, err := d.attached()
	if !errors.Is(err, fs.ErrNotExist) {
		return name, err
	}
	out, err := losetup("--find", "--show", d.path)
	return strings.TrimSpace(out), err
}

// refresh has the loop device be as large as the file.
func (d disk) refresh() error {
	name, err := d.attached()
	if err == nil {
		_, err = losetup("--set-capacity", name)
	}
	return err
}

// detach takes the loop device back, and does nothing if there is none.
func (d disk) detach() error {
	name, err := d.attached()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		_, err = losetup("--detach", name)
	}
	return err
}

func losetup(args ...string) (string, error) {
	out, err := exec.New().Command("losetup", args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("losetup %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return string(out), nil
}
