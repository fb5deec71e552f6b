package bus

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/bus/internal/accounts"
	client "github.com/microlet/microlet/services/internal/bus"
)

// identities are those that may sign in: the roles and the viewer, which hold their own seeds, and those of the server,
// which live only in the memory of this process.
type identities struct {
	public accounts.Keys
	owners map[string]role.Role // the role of each service's key
	admins map[role.Role]signer // who makes the streams of an account
	system signer
}

// signer is an identity of this process.
type signer struct {
	pair   nkeys.KeyPair
	public string
}

func newSigner() (signer, error) {
	pair, err := nkeys.CreateUser()
	if err != nil {
		return signer{}, fmt.Errorf("own identity: %w", err)
	}
	public, err := pair.PublicKey()
	if err != nil {
		return signer{}, fmt.Errorf("own identity: %w", err)
	}
	return signer{pair, public}, nil
}

// option signs a connection in.
func (s signer) option() nats.Option { return nats.Nkey(s.public, s.pair.Sign) }

// newIdentities reads the public keys of all roles, and makes the server's own identities.
func newIdentities(dir string, viewed bool) (*identities, error) {
	ids := &identities{
		public: accounts.Keys{Roles: map[role.Role]string{}, Admins: map[role.Role]string{}},
		owners: map[string]role.Role{}, admins: map[role.Role]signer{},
	}
	var err error
	if ids.system, err = newSigner(); err != nil {
		return nil, err
	}
	ids.public.System = ids.system.public
	for _, r := range role.All() {
		key, err := ids.read(client.PublicFile(dir, r), string(r))
		if err != nil {
			return nil, err
		}
		ids.public.Roles[r], ids.owners[key] = key, r
		if !accounts.Stores(r) {
			continue
		}
		admin, err := newSigner()
		if err != nil {
			return nil, err
		}
		ids.admins[r], ids.public.Admins[r] = admin, admin.public
	}
	if viewed {
		if ids.public.Viewer, err = ids.read(client.ViewerPublicFile(dir), accounts.Viewer); err != nil {
			return nil, err
		}
	}
	return ids, nil
}

// read reads a public key that no other identity has.
func (ids *identities) read(path, name string) (string, error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("nkey of %s: %w; \"microlet up\" writes it before it starts the bus", name, err)
	}
	if err != nil {
		return "", fmt.Errorf("nkey of %s: %w", name, err)
	}
	key := strings.TrimSpace(string(raw))
	if !nkeys.IsValidPublicUserKey(key) {
		return "",
			fmt.Errorf("nkey of %s: %s does not hold a user's public key; remove it and its seed, and let \"microlet up\" "+
				"write both again", name, path)
	}
	if other, taken := ids.owners[key]; taken {
		return "",
			fmt.Errorf("nkey of %s: %s holds the key of %s; remove it and its seed, and let \"microlet up\" write both again",
				name, path, other)
	}
	return key, nil
}

// wipe forgets the secrets that are no longer needed.
func (ids *identities) wipe() {
	ids.system.pair.Wipe()
	for _, admin := range ids.admins {
		admin.pair.Wipe()
	}
}
