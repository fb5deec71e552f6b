package service

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/unixgrpc"
)

// AutoReplica is the Replica of a process that takes the lowest number that no other process of its service has. One
// that comes back takes the number that it left, unless another has come first.
const AutoReplica = "auto"

// claimReplica gives the process a number of its own until release is called or the process ends. A socket that answers
// is the claim: it ends with its process, as a file would not.
func (c *Config) claimReplica(r role.Role) (release func() error, err error) {
	if c.Replica != AutoReplica {
		return func() error { return nil }, nil
	}
	for n := range MaxReplicas {
		replica := strconv.Itoa(n)
		l, err := unixgrpc.Listen(filepath.Join(c.SocketDir(r), "replica."+replica+socketSuffix), 0o600, -1)
		if errors.Is(err, unixgrpc.ErrInUse) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("claim a replica's number: %w", err)
		}
		c.Replica = replica
		go answer(l)
		return l.Close, nil
	}
	return nil, fmt.Errorf("%d replicas of %s run already: stop one, or name --replica", MaxReplicas, r)
}

// IsReplica reports whether a name is a number that AutoReplica or "microlet up" can give.
func IsReplica(name string) bool {
	n, err := strconv.Atoi(name)
	return err == nil && n >= 0 && n < MaxReplicas && strconv.Itoa(n) == name
}

// answer accepts until the listener is closed. Only the fact that a process accepts matters.
func answer(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		_ = conn.Close()
	}
}
