package service

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	tracingapi "k8s.io/component-base/tracing/api/v1"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/proto/subject"
	"github.com/microlet/microlet/services/internal/peer"
	"github.com/microlet/microlet/services/internal/telemetry"
)

// Defaults of Config.
const (
	DefaultRuntimeDir  = "/run/microlet"
	DefaultReplica     = "0"
	DefaultStopTimeout = 8 * time.Second
)

// MaxReplicas is far more than a node has use for.
const MaxReplicas = 16

// maxSocketFiles bounds what is read of a folder of sockets, which its service may fill.
const maxSocketFiles = 1024

const socketSuffix = ".sock"

// Config configures every service.
type Config struct {
	// RuntimeDir is the folder of sockets, keys and the bus's store. Default: /run/microlet.
	RuntimeDir string
	// NodeName is the name of the Node object. Not every service needs it; those that do say so.
	NodeName string
	// Replica identifies a replica of the service, and is the same after a restart. AutoReplica chooses. Default: 0.
	Replica string
	// StopTimeout bounds the stop, counted from the signal. Default: 8 s, less than the 10 s after
	// which the supervisor kills.
	StopTimeout time.Duration
	// PeerCgroups are the cgroups, beside this process's own, with processes of the node agent, such as
	// /system.slice/microlet-bus.service, or /microlet/* for all that are right below /microlet. Services that are units
	// or containers of their own need them. Default: none.
	PeerCgroups []string
	// Log says how the process logs.
	Log telemetry.LogOptions
	// Tracing is the tracing of the kubelet's configuration; nil traces nothing.
	Tracing *tracingapi.TracingConfiguration
	// Placement is the own network of a process that holds several services; nil for a process of its own.
	Placement *InProcess
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{
		RuntimeDir:  DefaultRuntimeDir,
		Replica:     DefaultReplica,
		StopTimeout: DefaultStopTimeout,
		Log:         telemetry.LogOptions{Format: telemetry.FormatText},
	}
}

// AddFlags adds the flags that all services share; empty fields get their defaults first.
func (c *Config) AddFlags(fs *pflag.FlagSet) {
	c.complete()
	fs.StringVar(&c.RuntimeDir, "runtime-dir", c.RuntimeDir, "folder of sockets, keys and the bus's store")
	fs.StringVar(&c.NodeName, "node-name", c.NodeName, "name of the Node object")
	fs.StringVar(&c.Replica, "replica", c.Replica,
		`identifies a replica of this service; the same after a restart; "auto" takes the lowest number that is free`)
	fs.StringSliceVar(&c.PeerCgroups, "peer-cgroups", c.PeerCgroups,
		"further cgroups with processes of the node agent, for services that are units or containers of their "+
			"own, such as /system.slice/microlet-bus.service, or /microlet/* for each one below /microlet")
	if fs.Lookup("v") == nil { // the kubelet's flags bring their own
		c.Log.AddFlags(fs)
	}
}

// Validate says what is wrong with the config: field, value, remedy.
func (c *Config) Validate() error {
	var errs []error
	if !filepath.IsAbs(c.RuntimeDir) {
		errs = append(errs, fmt.Errorf("runtime-dir is %q: give an absolute path", c.RuntimeDir))
	}
	if err := subject.ValidToken(c.Replica); err != nil {
		errs = append(errs, fmt.Errorf("replica: %w", err))
	}
	for _, at := range c.PeerCgroups {
		// "/*" would be the cgroup of every program that an administrator starts.
		if at == "/*" || !path.IsAbs(at) || path.Clean(at) != at || at == "/" ||
			strings.Contains(strings.TrimSuffix(at, "/*"), "*") {
			errs = append(errs,
				fmt.Errorf("peer-cgroups has %q: give the path of a unit's cgroup, such as /system.slice/microlet-bus.service, "+
					"or a path that ends in /* for each cgroup below it", at))
		}
	}
	if c.StopTimeout <= 0 {
		errs = append(errs, fmt.Errorf("stop timeout is %v: give a positive one", c.StopTimeout))
	}
	if err := c.Log.Validate(); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// ValidateOnNode is Validate for a service that must know the name of its Node.
func (c *Config) ValidateOnNode() error {
	err := c.Validate()
	if c.NodeName == "" {
		err = errors.Join(err, errors.New("node-name is empty: give the name of the Node"))
	}
	return err
}

func (c *Config) complete() {
	d := DefaultConfig()
	if c.RuntimeDir == "" {
		c.RuntimeDir = d.RuntimeDir
	}
	if c.Replica == "" {
		c.Replica = d.Replica
	}
	if c.StopTimeout == 0 {
		c.StopTimeout = d.StopTimeout
	}
	if c.Log.Format == "" {
		c.Log.Format = d.Log.Format
	}
}

// SocketDir is the folder of a role's sockets. The role's own user owns it, and only that user may create anything in
// it, so that no service can take the name of another's socket.
func (c *Config) SocketDir(r role.Role) string { return filepath.Join(c.RuntimeDir, "sock", string(r)) }

// Socket is where a role serves its gRPC API.
func (c *Config) Socket(r role.Role) string {
	return filepath.Join(c.SocketDir(r), "grpc"+socketSuffix)
}

// MetricsSocket is where a role serves /metrics and /healthz.
func (c *Config) MetricsSocket(r role.Role) string {
	return filepath.Join(c.SocketDir(r), "metrics"+socketSuffix)
}

// ReplicaSocket is where a replica serves what the first one serves at path.
func ReplicaSocket(path, replica string) string {
	if replica == DefaultReplica {
		return path
	}
	return strings.TrimSuffix(path, socketSuffix) + "." + replica + socketSuffix
}

// ProcessName is the name of a replica's process, as "microlet status" and the log have it: the first replica's is
// the service's.
func ProcessName(r role.Role, replica string) string {
	if replica == DefaultReplica {
		return string(r)
	}
	return string(r) + "." + replica
}

// Replicas returns the replicas that have a socket where ReplicaSocket puts it, the first one first; none if the folder
// is not there. One that was killed leaves its socket until it comes back or "microlet up" starts. Of more than
// MaxReplicas it returns as many, with an error: a service may put into its folder what it likes.
func Replicas(path string) ([]string, error) {
	folder, first := filepath.Split(path)
	dir, err := os.Open(filepath.Clean(folder))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list sockets: %w", err)
	}
	defer dir.Close()
	files, err := dir.Readdirnames(maxSocketFiles)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("list sockets: %w", err)
	}
	slices.Sort(files)
	var names []string
	for _, file := range files {
		if file == first {
			names = slices.Insert(names, 0, DefaultReplica)
		} else if rest, ok := strings.CutPrefix(file, strings.TrimSuffix(first, socketSuffix)+"."); ok {
			if replica, ok := strings.CutSuffix(rest, socketSuffix); ok && subject.ValidToken(replica) == nil {
				names = append(names, replica)
			}
		}
	}
	if len(names) > MaxReplicas {
		return names[:MaxReplicas], fmt.Errorf("list sockets: there are more than %d replicas in %s", MaxReplicas,
			folder)
	}
	return names, nil
}

// CRISocket is where podsync serves a role's share of the CRI.
func (c *Config) CRISocket(r role.Role) string {
	return filepath.Join(c.RuntimeDir, "cri", string(r)+socketSuffix)
}

// LogsSocket is where podsync opens container logs for nodeapi (see package openlog).
func (c *Config) LogsSocket() string {
	return filepath.Join(c.SocketDir(role.Podsync), "logs"+socketSuffix)
}

// PodsAPISocket is where podsync passes the socket of the Pods API to nodeapi (see package podssocket).
func (c *Config) PodsAPISocket() string {
	return filepath.Join(c.SocketDir(role.Podsync), "pods-api"+socketSuffix)
}

// Peers say which processes are this node's services, for servers and clients beside those that a Service makes.
func (c *Config) Peers() peer.Rules {
	return peer.Rules{Cgroups: c.PeerCgroups, Helpers: c.HelpersDir(), Placement: c.PlacementFile()}
}

// PlacementFile is where "microlet up" says which roles the users of processes with several services have.
func (c *Config) PlacementFile() string { return filepath.Join(c.RuntimeDir, "placement") }

// HelpersDir is the folder in which podsync records the helper pods.
func (c *Config) HelpersDir() string { return filepath.Join(c.RuntimeDir, "helpers") }

// BusSocket is where the bus takes the services' connections.
func (c *Config) BusSocket() string {
	return filepath.Join(c.RuntimeDir, "sock", string(role.Bus), "nats"+socketSuffix)
}

// NKeys is the folder of the services' bus keys.
func (c *Config) NKeys() string { return filepath.Join(c.RuntimeDir, "nkeys") }
