package rig

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/microlet/microlet/compose/rig/internal/build"
	"github.com/microlet/microlet/compose/rig/internal/lock"
	"github.com/microlet/microlet/compose/rig/internal/network"
	"github.com/microlet/microlet/compose/rig/internal/process"
)

// Places of all rigs of the machine. They are fixed, so that any process finds
// every instance.
const (
	home        = "/var/lib/microlet-rig" // folders, and the records below .instances
	runHome     = "/run/microlet-rig"     // sockets and state, a tmpfs for each instance
	cgroupHome  = "/microlet-rig"
	recordsDir  = home + "/.instances"
	machineLock = home + "/.lock"
)

// ports of an instance, on 127.0.0.1.
type ports struct {
	Registry, Etcd, EtcdPeer, EtcdHealth, ControllerManager, Scheduler, AgentHealth, MetricsServer,
	Traces, Spans int
}

// record is what the rig remembers of an instance, in a file.
type record struct {
	Name          string                    `json:"name"`
	Dir           string                    `json:"dir"`
	BootID        string                    `json:"bootID"`
	CreatedAt     time.Time                 `json:"createdAt"`
	Network       network.Plan              `json:"network"`
	Keep          []network.Chain           `json:"keepChains"` // were there before the first rig
	Ports         ports                     `json:"ports"`
	Agent         Agent                     `json:"agent"`
	AgentArgs     []string                  `json:"agentArgs,omitempty"`
	AgentEnv      []string                  `json:"agentEnv,omitempty"`
	Watchdog      time.Duration             `json:"watchdog"`
	DefaultPlaces bool                      `json:"defaultPlaces,omitempty"` // see Options
	Standalone    bool                      `json:"standalone,omitempty"`
	Open          bool                      `json:"open,omitempty"`
	Microlet      string                    `json:"microlet,omitempty"`
	Binaries      build.Binaries            `json:"binaries"`
	Processes     map[string]process.Record `json:"processes"`
	Machine       *machineRecord            `json:"machine,omitempty"` // nil: the node is this machine
}

func recordPath(name string) string { return filepath.Join(recordsDir, name+".json") }

func loadRecord(name string) (record, error) {
	text, err := os.ReadFile(recordPath(name))
	if err != nil {
		return record{}, fmt.Errorf("read record of instance %s: %w", name, err)
	}
	var r record
	if err := json.Unmarshal(text, &r); err != nil {
		return record{}, fmt.Errorf("read record of instance %s: %w: run rig clean %s", name, err, name)
	}
	if r.Name != name || r.Dir == "" {
		return record{}, fmt.Errorf("read record of instance %s: it is of %q in %q: run rig clean %s", name, r.Name,
			r.Dir, name)
	}
	return r, nil
}

func (r record) save() error {
	if err := os.MkdirAll(recordsDir, 0o755); err != nil {
		return fmt.Errorf("write record of instance %s: %w", r.Name, err)
	}
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("write record of instance %s: %w", r.Name, err)
	}
	half := recordPath(r.Name) + ".half"
	if err := os.WriteFile(half, append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("write record of instance %s: %w", r.Name, err)
	}
	if err := os.Rename(half, recordPath(r.Name)); err != nil {
		return fmt.Errorf("write record of instance %s: %w", r.Name, err)
	}
	return nil
}

// recorded returns the names of all instances that have a record.
func recorded() ([]string, error) {
	entries, err := os.ReadDir(recordsDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list instances: %w", err)
	}
	var names []string
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), ".json"); ok && checkName(name) == nil {
			names = append(names, name)
		}
	}
	return names, nil
}

// reserve writes the record of a new instance with a network of its own.
func reserve(ctx context.Context, r record) (record, error) {
	unlock, err := lock.File(ctx, machineLock, nil)
	if err != nil {
		return r, err
	}
	defer unlock()
	names, err := recorded()
	if err != nil {
		return r, err
	}
	if slices.Contains(names, r.Name) {
		return r, fmt.Errorf("instance %s exists: stop it with rig down %s, or choose another name", r.Name, r.Name)
	}
	if entries, err := os.ReadDir(r.Dir); err == nil && len(entries) > 0 {
		return r,
			fmt.Errorf("instance folder %s is not empty: remove what is left with rig clean %s, or choose another folder", r.Dir,
				r.Name)
	}
	taken := map[int]bool{}
	for _, name := range names {
		other, err := loadRecord(name)
		if err != nil {
			return r, err
		}
		taken[other.Network.Index] = true
		if other.Dir == r.Dir {
			return r, fmt.Errorf("instance folder %s is used by instance %s: choose another folder", r.Dir, name)
		}
		r.Keep = other.Keep
	}
	if len(names) == 0 {
		if r.Keep, err = network.SharedChains(); err != nil {
			return r, err
		}
	}
	if r.Network, err = network.Choose(taken); err != nil {
		return r, err
	}
	if r.Machine != nil {
		r.Network = r.Network.OnMachine()
	}
	p := &r.Ports
	wanted := []*int{&p.Registry, &p.Etcd, &p.EtcdPeer, &p.EtcdHealth, &p.ControllerManager, &p.Scheduler,
		&p.AgentHealth, &p.MetricsServer, &p.Traces, &p.Spans}
	picked, err := network.Ports(r.Network.Index, len(wanted))
	if err != nil {
		return r, err
	}
	for i, port := range wanted {
		*port = picked[i]
	}
	return r, r.save()
}
