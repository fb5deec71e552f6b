package pods

import (
	"context"
	"errors"
	"sync"
)

// errWorkerEnds is why the tasks of a worker that ends are canceled.
var errWorkerEnds = errors.New("the pod's worker ends")

// tasks are a worker's goroutines that outlive the sync that starts them. They end with the worker.
type tasks struct {
	group sync.WaitGroup

	mu      sync.Mutex
	running map[*task]context.CancelCauseFunc
}

// task is one of them.
type task struct {
	cancel context.CancelFunc
	done   chan struct{} // closed when the task has ended
}

func newTasks() *tasks { return &tasks{running: map[*task]context.CancelCauseFunc{}} }

// begin starts a task with the values of ctx, but not with its end. It calls then, if that is not nil, when the task
// has ended.
func (t *tasks) begin(ctx context.Context, do func(context.Context), then func()) *task {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	began := &task{cancel: func() { cancel(nil) }, done: make(chan struct{})}
	t.mu.Lock()
	t.running[began] = cancel
	t.mu.Unlock()
	t.group.Go(func() {
		do(ctx)
		cancel(nil)
		t.drop(began)
		close(began.done)
		if then != nil {
			then()
		}
	})
	return began
}

func (t *tasks) drop(one *task) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.running, one)
}

// end cancels all tasks and waits for their ends.
func (t *tasks) end() {
	t.mu.Lock()
	for _, cancel := range t.running {
		cancel(errWorkerEnds)
	}
	t.mu.Unlock()
	t.group.Wait()
}

// cancelIfAny cancels the task, if it is not nil, and does not wait.
func (t *task) cancelIfAny() {
	if t != nil {
		t.cancel()
	}
}

// end cancels the task and waits for its end. A task that is nil has ended.
func (t *task) end() {
	if t != nil {
		t.cancel()
		<-t.done
	}
}

func (t *task) ended() bool {
	if t == nil {
		return true
	}
	select {
	case <-t.done:
		return true
	default:
		return false
	}
}
