package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"syscall"

	"k8s.io/mount-utils"
)

// store keeps the volumes: a folder each, with a record beside it.
type store struct{ dir string }

// record is what was asked for.
type record struct {
	Name     string `json:"name"`
	Capacity int64  `json:"capacity"`
	Kind     kind   `json:"kind,omitempty"`
	// Mutable are the parameters that may change later.
	Mutable map[string]string `json:"mutable,omitempty"`
}

// validID keeps an ID from being a path. That of an inline volume is its pod's node agent's.
var validID = regexp.MustCompile(`^(csi-)?[0-9a-f]{64}$`)

// idOf is the ID of the volume of a name, so that the same request gets the same volume.
func idOf(name string) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:])
}

// folder is the volume's own, unless that is a device. A file system of its own is mounted there.
func (s store) folder(id string) string { return filepath.Join(s.dir, id) }

// files is what the volume shows. It is below the folder: a node agent unstages nothing that is mounted elsewhere too,
// and the root of the volume's file system is.
func (s store) files(id string) string { return filepath.Join(s.folder(id), "files") }

// disk is where the volume is, unless it is a folder.
func (s store) disk(id string) disk { return disk{s.folder(id) + ".disk"} }

func (s store) record(id string) string { return s.folder(id) + ".json" }

// get returns a volume's record. It is fs.ErrNotExist if there is no such volume.
func (s store) get(id string) (record, error) {
	var r record
	if !validID.MatchString(id) {
		return r, fs.ErrNotExist
	}
	text, err := os.ReadFile(s.record(id))
	if err != nil {
		return r, err
	}
	return r, json.Unmarshal(text, &r)
}

// attach notes that the volume may be used on the node.
func (s store) attach(id string) error {
	return os.WriteFile(s.attachment(id), nil, 0o600)
}

// detach takes that back, and does nothing if there is no such volume.
func (s store) detach(id string) error {
	if !validID.MatchString(id) {
		return nil
	}
	if err := os.Remove(s.attachment(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (s store) isAttached(id string) bool {
	_, err := os.Stat(s.attachment(id))
	return err == nil
}

func (s store) attachment(id string) string { return s.folder(id) + ".attached" }

// create makes a volume. The record comes last: with it the volume is whole.
func (s store) create(id string, r record) error {
	if r.Kind == device {
		if err := s.disk(id).make(r.Capacity); err != nil {
			return err
		}
		return s.put(id, r)
	}
	if err := os.MkdirAll(s.folder(id), 0o777); err != nil {
		return err
	}
	if r.Kind == memory {
		if err := mountMemory(mount.New(""), s.folder(id), r.Capacity); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(s.files(id), 0o777); err != nil {
		return err
	}
	if r.Kind == memory {
		if err := os.Chmod(s.files(id), 0o777); err != nil {
			return err
		}
	}
	return s.put(id, r)
}

// put writes a volume's record.
func (s store) put(id string, r record) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	part := s.record(id) + ".part"
	if err := os.WriteFile(part, text, 0o600); err != nil {
		return err
	}
	return os.Rename(part, s.record(id))
}

// usedAt returns where the volume is staged or published: the mounts of its folder, or its loop device.
func (s store) usedAt(id string) ([]string, error) {
	is, err := s.get(id)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if is.Kind != device {
		return mount.New("").GetMountRefs(s.files(id))
	}
	name, err := s.disk(id).attached()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return []string{name}, err
}

// remove removes a volume, and does nothing if there is none.
func (s store) remove(id string) error {
	if !validID.MatchString(id) {
		return nil
	}
	if err := os.Remove(s.record(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := s.detach(id); err != nil {
		return err
	}
	if err := os.Remove(s.disk(id).path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if there, err := mount.New("").IsMountPoint(s.folder(id)); err == nil && there {
		if err := syscall.Unmount(s.folder(id), 0); err != nil {
			return err
		}
	}
	return os.RemoveAll(s.folder(id))
}
