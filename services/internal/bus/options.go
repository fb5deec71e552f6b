package bus

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/internal/peer"
	"github.com/microlet/microlet/services/internal/regularfile"
)

// Options say who connects, and where to.
type Options struct {
	// Socket is the path of the bus's unix socket. Unused with InProcess.
	Socket string
	// Peers say which processes may be taken for the bus.
	Peers peer.Rules
	// SeedFile holds the service's nkey seed, as GenerateNKeys wrote it.
	SeedFile string
	// Role of the service.
	Role role.Role
	// Replica identifies a replica of the service; "0" when empty. It must be the same after a restart, or the entries of
	// the life before have no owner.
	Replica string
	// InProcess is the bus itself when it lives in this process; nil connects to Socket.
	InProcess nats.InProcessConnProvider
	// AuditPeriod is how often a watch compares what it heard with what its bucket holds. Default: 15 s.
	AuditPeriod time.Duration
	// Log is where denials, losses and restarts of watches go; slog.Default() when nil.
	Log *slog.Logger
	// Metrics is where the client's metrics are registered; none when nil.
	Metrics prometheus.Registerer
}

func (o *Options) complete() error {
	if o.Replica == "" {
		o.Replica = "0"
	}
	if o.AuditPeriod <= 0 {
		o.AuditPeriod = auditPeriod
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if _, err := role.Get(o.Role); err != nil {
		return fmt.Errorf("role: %w", err)
	}
	if err := subject.ValidToken(o.Replica); err != nil {
		return fmt.Errorf("replica: %w", err)
	}
	if o.InProcess == nil && !filepath.IsAbs(o.Socket) {
		return fmt.Errorf("socket of the bus is %q: give an absolute path", o.Socket)
	}
	if o.SeedFile == "" {
		return errors.New("seed file: it is empty; name the service's file below nkeys")
	}
	return nil
}

// maxSeed is several times what a seed has. The file is its service's, which may make it as large as it likes, and root
// reads it too.
const maxSeed = 512

// readSeed returns the key pair in a user's seed file. It never waits: a service may hold a lease of its file, and the
// kernel then blocks others for 45 s.
func readSeed(path string) (nkeys.KeyPair, error) {
	f, err := regularfile.Open(path)
	if err != nil {
		return nil, fmt.Errorf("nkey seed: %w", err)
	}
	defer f.Close() // only read
	seed, err := io.ReadAll(io.LimitReader(f, maxSeed))
	if err != nil {
		return nil, fmt.Errorf("nkey seed: %w", err)
	}
	defer clear(seed)
	kp, err := nkeys.ParseDecoratedNKey(seed)
	if err == nil {
		var public string
		if public, err = kp.PublicKey(); err == nil && !nkeys.IsValidPublicUserKey(public) {
			kp.Wipe()
			err = errors.New("it is not a user's")
		}
	}
	if err != nil {
		return nil, fmt.Errorf("nkey seed %s: %w; remove it and let \"microlet up\" write it again", path, err)
	}
	return kp, nil
}
