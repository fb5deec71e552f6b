package worker

import (
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/microlet/microlet/services/internal/podutil"
	"github.com/microlet/microlet/services/podsync/internal/decide"
)

// pull is one container's image that is made present. It outlives the sync that began it:
// a sandbox or a volume that fails must not end a download, and the next sync must not
// announce it again.
type pull struct {
	image  string
	cancel context.CancelFunc
	done   chan struct{} // closed when result and err are set
	result *Image
	err    error
}

// ended reports whether result and err are set.
func (p *pull) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// pullAll begins to make the images of these containers present, each in its own time, and
// ends the pulls that nobody waits for any more.
func (w *worker) pullAll(p *v1.Pod, starts []decide.Start) {
	wanted := make(map[string]bool, len(starts))
	for i := range starts {
		c := starts[i].Spec
		wanted[c.Name] = true
		if under := w.pulls[c.Name]; under != nil {
			if under.image == c.Image && (!under.ended() || under.err == nil || starts[i].Ephemeral) {
				continue
			}
			under.cancel()
		}
		w.pulls[c.Name] = w.pull(p, c, nil)
	}
	for name, under := range w.pulls {
		if !wanted[name] && !podutil.IsEphemeral(&p.Spec, name) {
			under.cancel()
			delete(w.pulls, name)
		}
	}
}

// pull begins a pull; then, if it is not nil, is called when it has ended.
func (w *worker) pull(p *v1.Pod, c *v1.Container, then func()) *pull {
	ctx, cancel := context.WithCancel(w.life)
	under := &pull{image: c.Image, cancel: cancel, done: make(chan struct{})}
	began := time.Now()
	w.notePull(c.Name, began)
	w.goroutines.Go(func() {
		defer cancel()
		under.result, under.err = w.deps.Images.Ensure(ctx, p, c)
		w.notePulled(c.Name, began)
		close(under.done)
		if then != nil {
			then()
		}
	})
	return under
}

// pulled waits for a container's image. Its result is used once: the next start syncs at
// the pull policy again.
func (w *worker) pulled(ctx context.Context, name string) (*Image, error) {
	under := w.pulls[name]
	select {
	case <-under.done:
		delete(w.pulls, name)
		return under.result, under.err
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for the image: %w", context.Cause(ctx))
	}
}

// abandonPulls ends all pulls of a pod that will start nothing more.
func (w *worker) abandonPulls() {
	for name, under := range w.pulls {
		under.cancel()
		delete(w.pulls, name)
	}
}
