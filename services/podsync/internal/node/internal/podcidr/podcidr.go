// Package podcidr passes the addresses of this node's pods on to the container runtime.
//
// The range is podCIDR of the configuration until the Node in the API has one. A runtime may make the configuration of
// its network plugin from it. As with the kubelet, the runtime gets them once, and again when the range changes.
package podcidr

import (
	"context"
	"log/slog"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/logkey"
)

// retry is how long to wait after the runtime has not taken the range; the kubelet tries with each status of the Node.
const retry = 10 * time.Second

// Runtime is the container runtime.
type Runtime interface {
	UpdatePodCIDR(ctx context.Context, cidr string) error
}

// Node is the Node in the API.
type Node interface {
	// Until waits until the Node is as wanted, or ctx ends.
	Until(ctx context.Context, wanted func(*v1.Node) bool) error
}

// Options of an Updater.
type Options struct {
	// Configured is podCIDR.
	Configured string
	Runtime    Runtime
	// Node is nil without an API server.
	Node Node
	Log  *slog.Logger
}

// Updater calls the runtime.
type Updater struct {
	Options
	wanted, sent string
}

// New returns an Updater.
func New(o Options) *Updater { return &Updater{Options: o, wanted: o.Configured} }

// Run passes to the runtime what it does not know yet, until ctx ends.
func (u *Updater) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		u.send(ctx)
		u.wait(ctx)
	}
	return nil
}

func (u *Updater) send(ctx context.Context) {
	if u.wanted == u.sent {
		return
	}
	if err := u.Runtime.UpdatePodCIDR(ctx, u.wanted); err != nil {
		u.Log.Error("Pod CIDR update failed", "podCIDR", u.wanted, logkey.Err, err)
		return
	}
	u.Log.Info("Updating Pod CIDR", "originalPodCIDR", u.sent, "newPodCIDR", u.wanted)
	u.sent = u.wanted
}

// wait returns when the Node has another range, or when it is time to try again.
func (u *Updater) wait(ctx context.Context) {
	if u.wanted != u.sent {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, retry)
		defer cancel()
	}
	if u.Node == nil {
		<-ctx.Done()
		return
	}
	_ = u.Node.Until(ctx, func(n *v1.Node) bool { // it fails when ctx ends
		is := strings.Join(n.Spec.PodCIDRs, ",")
		if is == "" || is == u.wanted {
			return false
		}
		u.wanted = is
		return true
	})
}
