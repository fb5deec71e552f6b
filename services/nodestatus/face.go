package nodestatus

import (
	"context"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"github.com/microlet/microlet/services/internal/service"
	"github.com/microlet/microlet/services/nodestatus/internal/api"
	"github.com/microlet/microlet/services/nodestatus/internal/lease"
	"github.com/microlet/microlet/services/nodestatus/internal/node"
	"github.com/microlet/microlet/services/nodestatus/internal/observe"
	"github.com/microlet/microlet/services/nodestatus/internal/report"
	"github.com/microlet/microlet/services/nodestatus/internal/schedule"
)

// face is what happens around the reports: what a Node from before tells, and who is told of what
// the apiserver accepted.
type face struct {
	service    *service.Service
	board      *board
	events     record.EventRecorder
	collector  *observe.Collector
	ready      *observe.Ready
	registered func()
	once       sync.Once
}

// found takes over from an earlier life: a node that was ready then, in the same boot, still is
// until the opposite is known.
func (f *face) found(n *v1.Node) {
	machine, _ := f.collector.Source.Machine() // a boot id that cannot be read assumes nothing
	if node.IsReady(n) && machine.BootID != "" && machine.BootID == n.Status.NodeInfo.BootID {
		f.ready.Assume()
	}
}

func (f *face) accepted(n *v1.Node) {
	f.board.reported(n)
	f.once.Do(func() {
		f.record(n, node.Event{Type: v1.EventTypeNormal, Reason: "Starting", Message: "Starting kubelet."})
		f.registered()
	})
}

func (f *face) record(n *v1.Node, e node.Event) {
	ref := &v1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: n.Name, UID: n.UID}
	f.events.Event(ref, e.Type, e.Reason, e.Message)
}

// uid is the Node's, from whoever saw it last.
func (f *face) uid(reporter *report.Reporter, watched *api.Watched) types.UID {
	if n := watched.Node(); n != nil {
		return n.UID
	}
	if n := reporter.Last(); n != nil {
		return n.UID
	}
	return ""
}

// The jobs.
const (
	jobPodsync = "podsync"
	jobBoard   = "board"
	jobLease   = "lease"
	jobStatus  = "status"
)

// jobs makes the loop of all that nodestatus does again and again.
func jobs(s *service.Service, podsync *observe.Podsync, ready *observe.Ready, b *board, renewer *lease.Renewer, reporter *report.Reporter) (*schedule.Loop, error) {
	return schedule.New(s.Pulse.Turn,
		schedule.Job{Name: jobPodsync, Deadline: 5 * time.Second, Run: func(ctx context.Context) time.Duration {
			podsync.Look(ctx)
			return 2 * time.Second
		}},
		schedule.Job{Name: jobBoard, Deadline: time.Second, Run: func(context.Context) time.Duration {
			b.judge(ready)
			if ready.Settled() {
				return time.Second
			}
			return 100 * time.Millisecond
		}},
		schedule.Job{Name: jobLease, Deadline: 20 * time.Second, Run: renewer.Renew},
		schedule.Job{Name: jobStatus, Deadline: time.Minute, Run: reporter.Report},
	)
}
