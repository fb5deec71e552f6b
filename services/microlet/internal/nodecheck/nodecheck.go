// Package nodecheck finds out whether a machine has what the node agent needs.
//
// It reads and asks, and changes nothing. Each finding says what to do about it.
package nodecheck

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/microlet/microlet/services/internal/kubeletconfig"
)

// State is how a checked thing is.
type State string

// The states. A failure keeps the agent or pods from running; a warning may.
const (
	OK      State = "ok"
	Warning State = "warning"
	Failed  State = "failed"
	// Skipped is what could not be checked because something else failed or is not there.
	Skipped State = "skipped"
)

// Finding is one line of the report.
type Finding struct {
	// Check is what was looked at, as "cgroup" or "certificate".
	Check string `json:"check"`
	State State  `json:"state"`
	// Detail is what was found, and Remedy what to do; there is none for what is ok.
	Detail string `json:"detail"`
	Remedy string `json:"remedy,omitempty"`
}

// Host is the machine.
type Host struct {
	// Root is the folder that /proc, /sys and /etc are under; "/" but for tests.
	Root string
	// RuntimeDir is the agent's folder, and Running says that an agent uses it: ports in use are then its own.
	RuntimeDir string
	Running    bool
	// Own are the processes of the agent.
	Own []int
	// Like is the kubelet whose command line is checked; nil if it is another one.
	Like *Kubelet
	// Judge returns the fields of a pod that the agent refuses; nil if pods are not looked at.
	Judge func(manifest []byte) []string
	// Refused are the settings that the configuration is refused for. What they are about is said there.
	Refused []string
	// UID is the one that the checks run as.
	UID int
	Now time.Time
}

// timeout bounds each question to another process or machine.
const timeout = 5 * time.Second

// Run checks the machine against a configuration. It is nil if there is nothing to go by; then only the machine is
// checked.
func Run(ctx context.Context, h Host, k *kubeletconfig.Config) []Finding {
	r := &report{}
	h.identity(r)
	h.cgroup(r)
	h.kernel(r)
	h.swap(r, k)
	h.programs(r)
	h.kubelet(r)
	if k == nil {
		r.add("runtime", Skipped, "the configuration names no runtime: correct it first", "")
		return r.findings
	}
	h.runtime(ctx, r, k)
	h.ports(ctx, r, k)
	h.reservations(r, k)
	h.lost(r, k)
	h.disks(r, k)
	h.kubeconfig(ctx, r, k)
	return r.findings
}

// refuses reports whether the configuration is refused for one of the settings.
func (h Host) refuses(settings ...string) bool {
	return slices.ContainsFunc(settings, func(s string) bool { return slices.Contains(h.Refused, s) })
}

// report collects findings.
type report struct{ findings []Finding }

func (r *report) add(check string, state State, detail, remedy string) {
	r.findings = append(r.findings, Finding{Check: check, State: state, Detail: oneLine(detail), Remedy: remedy})
}

func (r *report) ok(check, format string, args ...any) {
	r.add(check, OK, fmt.Sprintf(format, args...), "")
}

// failed adds what is wrong. remedy is a command or a sentence.
func (r *report) failed(check, detail, remedy string) { r.add(check, Failed, detail, remedy) }

func (r *report) warn(check, detail, remedy string) { r.add(check, Warning, detail, remedy) }

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
