package bus

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/nats-io/nkeys"

	"github.com/microlet/microlet/proto/role"
)

// SeedFile is the path of a role's seed below the folder of nkeys.
func SeedFile(dir string, r role.Role) string { return filepath.Join(dir, string(r)+".seed") }

// PublicFile is the path of a role's public key below the folder of nkeys.
func PublicFile(dir string, r role.Role) string { return filepath.Join(dir, string(r)+".pub") }

// GenerateNKeys writes a key pair for each identity below dir: the seed, which only the identity's UID
// may read, and the public key, which the bus reads. A pair that is there and valid is kept, with its
// owner put right, so that a restart of the supervisor does not lock its children out.
//
// As another user than root it cannot give files away: it then writes them as its own, and fails only
// if an identity of another UID is asked for while it is root.
func GenerateNKeys(dir string, ids []role.Identity) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("nkeys: %w", err)
	}
	// A umask must not take away what the services need to reach their own seed.
	if err := os.Chmod(dir, 0o755); err != nil {
		return fmt.Errorf("nkeys: %w", err)
	}
	for _, id := range ids {
		if err := generate(dir, id); err != nil {
			return fmt.Errorf("nkeys of %s: %w", id.Role, err)
		}
	}
	return nil
}

func generate(dir string, id role.Identity) error {
	path := SeedFile(dir, id.Role)
	kp, err := readSeed(path)
	if err != nil {
		if kp, err = nkeys.CreateUser(); err != nil {
			return err
		}
		seed, err := kp.Seed()
		if err != nil {
			return err
		}
		defer clear(seed)
		if err := write(path, seed, 0o600, id.UID, id.GID); err != nil {
			return err
		}
	}
	defer kp.Wipe()
	if err := own(path, 0o600, id.UID, id.GID); err != nil {
		return err
	}
	pub, err := kp.PublicKey()
	if err != nil {
		return err
	}
	if !nkeys.IsValidPublicUserKey(pub) {
		return fmt.Errorf("%s is not a user's key; remove it", path)
	}
	return write(PublicFile(dir, id.Role), []byte(pub+"\n"), 0o644, os.Getuid(), -1)
}

// write replaces a file at once, so that no reader sees half of it and none sees it before it is owned.
func write(path string, data []byte, mode fs.FileMode, uid, gid int) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Close())
	if err == nil {
		err = own(f.Name(), mode, uid, gid)
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

func own(path string, mode fs.FileMode, uid, gid int) error {
	if err := os.Chmod(path, mode); err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return nil
	}
	return os.Chown(path, uid, gid)
}
