package deviceplugin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"google.golang.org/grpc/codes"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// Methods of a device plugin, as rules and lines name them.
const (
	GetOptions = "GetDevicePluginOptions"
	List       = "ListAndWatch"
	Preferred  = "GetPreferredAllocation"
	Allocate   = "Allocate"
	PreStart   = "PreStartContainer"
	// Register is the plugin's own call to the agent, or the agent's word that it has registered a plugin whose socket it
	// found.
	Register = "Register"
)

// Plan is what a plugin has and does.
type Plan struct {
	Devices []Device `json:"devices"`
	// PreStart and Preferred have the agent call PreStartContainer and GetPreferredAllocation.
	PreStart  bool `json:"preStart,omitempty"`
	Preferred bool `json:"preferred,omitempty"`
	// Version of the API that the plugin claims; "" is the true one.
	Version string `json:"version,omitempty"`
	// Rules are for calls. The first that fits a call applies to it.
	Rules []Rule `json:"rules,omitempty"`
}

// Device is a device of the plugin.
type Device struct {
	ID string `json:"id"`
	// Unhealthy is how it is reported.
	Unhealthy bool `json:"unhealthy,omitempty"`
	// NUMA are the NUMA nodes that it is near to; the plugin does not say if there are none.
	NUMA []int64 `json:"numa,omitempty"`
}

// Devices are healthy devices of these IDs.
func Devices(ids ...string) []Device {
	all := make([]Device, len(ids))
	for i, id := range ids {
		all[i].ID = id
	}
	return all
}

// Rule says what becomes of the calls that have its method and its number, of which each may be empty.
type Rule struct {
	Method string `json:"method,omitempty"`
	// Number is of the calls of all methods, from 1 on. It goes on where an earlier process has ended.
	Number int `json:"number,omitempty"`
	// After: it applies when the work is done, and not before. The work of ListAndWatch is its first list.
	After bool `json:"after,omitempty"`
	// Milliseconds is how late the call is, also if its caller has gone.
	Milliseconds int64 `json:"milliseconds,omitempty"`
	// Hold keeps the call until the rule is taken back, or its caller has gone.
	Hold bool `json:"hold,omitempty"`
	// Exit ends the plugin's process.
	Exit bool `json:"exit,omitempty"`
	// Code and Message are the error of the call.
	Code    codes.Code `json:"code,omitempty"`
	Message string     `json:"message,omitempty"`
	// Answer is the answer of Allocate for each container, in place of the true one.
	Answer *Answer `json:"answer,omitempty"`
	// Containers is for how many containers Allocate has answers; for as many as are asked for if it is nil.
	Containers *int `json:"containers,omitempty"`
	// Choice is the answer of GetPreferredAllocation for each container, in place of the true one.
	Choice []string `json:"choice,omitempty"`
}

// Answer is what Allocate answers for a container.
type Answer struct {
	Env         map[string]string       `json:"env,omitempty"`
	Mounts      []*pluginapi.Mount      `json:"mounts,omitempty"`
	Devices     []*pluginapi.DeviceSpec `json:"devices,omitempty"`
	Annotations map[string]string       `json:"annotations,omitempty"`
	CDI         []string                `json:"cdi,omitempty"`
}

// Write makes this the plan of the plugin that reads the file. The plugin sees the old one or the new one, never half
// of one.
func (p *Plan) Write(path string) error {
	text, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("write the plan of a device plugin: %w", err)
	}
	part := path + ".part"
	if err := os.WriteFile(part, text, 0o600); err != nil {
		return fmt.Errorf("write the plan of a device plugin: %w", err)
	}
	return os.Rename(part, path)
}

// readPlan reads a plan. Without its file there is an empty one.
func readPlan(path string) (*Plan, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return &Plan{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the plan: %w", err)
	}
	var p Plan
	if err := json.Unmarshal(text, &p); err != nil {
		return nil, fmt.Errorf("read the plan: %s: %w", path, err)
	}
	return &p, nil
}

// rule returns the first rule for a call.
func (p *Plan) rule(method string, number int, after bool) *Rule {
	for i := range p.Rules {
		if r := &p.Rules[i]; r.After == after && (r.Method == "" || r.Method == method) &&
			(r.Number == 0 || r.Number == number) {
			return r
		}
	}
	return nil
}

// list is what ListAndWatch sends.
func (p *Plan) list() *pluginapi.ListAndWatchResponse {
	answer := &pluginapi.ListAndWatchResponse{}
	for _, d := range p.Devices {
		one := &pluginapi.Device{ID: d.ID, Health: pluginapi.Healthy}
		if d.Unhealthy {
			one.Health = pluginapi.Unhealthy
		}
		for _, n := range d.NUMA {
			if one.Topology == nil {
				one.Topology = &pluginapi.TopologyInfo{}
			}
			one.Topology.Nodes = append(one.Topology.Nodes, &pluginapi.NUMANode{ID: n})
		}
		answer.Devices = append(answer.Devices, one)
	}
	return answer
}

func (p *Plan) options() *pluginapi.DevicePluginOptions {
	return &pluginapi.DevicePluginOptions{PreStartRequired: p.PreStart, GetPreferredAllocationAvailable: p.Preferred}
}
