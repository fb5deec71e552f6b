package bus

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/nats-io/nkeys"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/atomicfile"
)

// SeedFile is the path of a role's seed below the folder of nkeys.
func SeedFile(dir string, r role.Role) string { return filepath.Join(dir, string(r)+".seed") }

// PublicFile is the path of a role's public key below the folder of nkeys.
func PublicFile(dir string, r role.Role) string { return filepath.Join(dir, string(r)+".pub") }

// viewer is the name of who looks at the bus and writes nothing.
const viewer = "viewer"

// ViewerSeedFile is the path of the viewer's seed below the folder of nkeys.
func ViewerSeedFile(dir string) string { return filepath.Join(dir, viewer+".seed") }

// ViewerPublicFile is the path of the viewer's public key below the folder of nkeys.
func ViewerPublicFile(dir string) string { return filepath.Join(dir, viewer+".pub") }

// GenerateNKeys writes a key pair for each identity below dir: the seed, which only the identity's UID may read, and
// the public key, which the bus reads. The viewer's pair is with them. Its seed is the caller's own. A pair that is
// there and valid is kept, with its owner put right, so that a restart of the supervisor does not lock its children
// out. A key that several identities have is invalid: it is unknown which of them wrote the seed of another into its
// own file, so each of them gets a new pair.
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
	all := make([]owner, 0, len(ids)+1)
	for _, id := range ids {
		all = append(all, owner{string(id.Role), SeedFile(dir, id.Role), PublicFile(dir, id.Role), id.UID, id.GID})
	}
	all = append(all, owner{"the " + viewer, ViewerSeedFile(dir), ViewerPublicFile(dir), os.Getuid(), os.Getgid()})
	keys, err := ownKeys(all)
	if err != nil {
		return err
	}
	for i, o := range all {
		if err := o.generate(keys[i]); err != nil {
			return fmt.Errorf("nkeys of %s: %w", o.name, err)
		}
	}
	return nil
}

// owner is who has a pair: the seed is its own file, which it may write, and the public key is the caller's.
type owner struct {
	name         string
	seed, public string
	uid, gid     int
}

// ownKeys returns the owners' public keys by their seeds; none of a seed that is spoiled or that several of them have.
func ownKeys(all []owner) ([]string, error) {
	keys, owners := make([]string, len(all)), map[string]int{}
	for i, o := range all {
		kp, err := readSeed(o.seed)
		if err != nil {
			continue
		}
		keys[i], err = kp.PublicKey()
		kp.Wipe()
		if err != nil {
			return nil, fmt.Errorf("nkeys of %s: %w", o.name, err)
		}
		owners[keys[i]]++
	}
	for i, key := range keys {
		if owners[key] > 1 {
			keys[i] = ""
		}
	}
	return keys, nil
}

// generate writes the public key; without one it makes a new pair.
func (o owner) generate(public string) error {
	if public == "" {
		kp, err := nkeys.CreateUser()
		if err != nil {
			return err
		}
		defer kp.Wipe()
		seed, err := kp.Seed()
		if err != nil {
			return err
		}
		defer clear(seed)
		if err := write(o.seed, seed, 0o600, o.uid, o.gid); err != nil {
			return err
		}
		if public, err = kp.PublicKey(); err != nil {
			return err
		}
	}
	if err := own(o.seed, 0o600, o.uid, o.gid); err != nil {
		return err
	}
	return write(o.public, []byte(public+"\n"), 0o644, os.Getuid(), -1)
}

// write replaces a file at once. None sees it before it is owned.
func write(path string, data []byte, mode fs.FileMode, uid, gid int) error {
	if os.Geteuid() != 0 {
		uid, gid = -1, -1 // only root gives files away
	}
	return atomicfile.Write(path, data, atomicfile.Attributes{Mode: mode, UID: uid, GID: gid})
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
