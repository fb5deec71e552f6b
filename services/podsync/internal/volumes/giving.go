package volumes

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/childpool"
)

const (
	// givingPatience is how long it may take to give a volume to a group before the pod gets an Event. It gets another
	// one each givingPeriod after that. Both are the kubelet's.
	givingPatience = 30 * time.Second
	givingPeriod   = time.Minute
)

// giving is a context for an operation that gives a volume to its pod's fsGroup. From the operation's first report on
// the pod gets Events when that takes long, until done is called.
func (e events) giving(ctx context.Context, p *v1.Pod, dir string) (reported context.Context, done func()) {
	ctx, cancel := context.WithCancel(ctx)
	var begun sync.Once
	var files atomic.Int64
	return childpool.WithProgress(ctx, func(n int64) {
		files.Store(n)
		begun.Do(func() { go e.reportGiving(ctx, p, afterUID(p, dir), &files) }) // ends with done
	}), cancel
}

// reportGiving sends the Events, with the kubelet's texts.
func (e events) reportGiving(ctx context.Context, p *v1.Pod, dir string, files *atomic.Int64) {
	const reason = "VolumePermissionChangeInProgress"
	next := time.NewTimer(givingPatience)
	defer next.Stop()
	for first := true; ; first = false {
		select {
		case <-ctx.Done():
			return
		case <-next.C:
		}
		if first {
			e.send(p, v1.EventTypeWarning, reason, "Setting volume ownership for %s is taking longer than expected, "+
				"consider using OnRootMismatch - https://kubernetes.io/docs/tasks/configure-pod-container/security-context/"+
				"#configure-volume-permission-and-ownership-change-policy-for-pods", dir)
		} else {
			e.send(p, v1.EventTypeWarning, reason, "Setting volume ownership for %s, processed %d files.", dir, files.Load())
		}
		next.Reset(givingPeriod)
	}
}

// afterUID is a path from the pod's UID on.
func afterUID(p *v1.Pod, path string) string {
	if i := strings.Index(path, string(p.UID)); i >= 0 {
		return path[i:]
	}
	return path
}
