package csivolume

import (
	"context"
	"errors"
	"sync"
	"time"
)

// lastWait is how long calls that are under way may go on when the process ends.
const lastWait = time.Second

var errEnds = errors.New("no call of a CSI driver begins any more: the process ends")

// calls are those under way that change volumes. As with the kubelet, a call goes on when its caller has given up: the
// driver works on all the same, and the next call on the volume has to wait for it.
type calls struct {
	// life ends when the calls are abandoned.
	life    context.Context
	abandon context.CancelFunc

	mu       sync.Mutex
	ended    bool
	underWay sync.WaitGroup
}

func newCalls() *calls {
	life, abandon := context.WithCancel(context.Background())
	return &calls{life: life, abandon: abandon}
}

// begin calls do in a goroutine, with the values of ctx but not with its end.
func (c *calls) begin(ctx context.Context, do func(context.Context)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return errEnds
	}
	c.underWay.Go(func() {
		ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
		defer cancel()
		defer context.AfterFunc(c.life, cancel)()
		do(ctx)
	})
	return nil
}

// end waits for the calls, and abandons those that last for long: a driver that hangs does not keep the process from
// its end, and the next process repeats the call, as after a kill.
func (c *calls) end() {
	defer c.abandon()
	c.mu.Lock()
	c.ended = true
	c.mu.Unlock()
	patience := time.AfterFunc(lastWait, c.abandon)
	defer patience.Stop()
	c.underWay.Wait()
}
