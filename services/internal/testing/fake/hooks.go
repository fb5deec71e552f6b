package fake

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
)

// Call is one call that the runtime was asked for.
type Call struct {
	// Method is the bare name, such as "ListContainers".
	Method string
	// Request as it came; do not change it.
	Request any
	// At is when it came in.
	At time.Time
}

// hooks decides, for each call, whether it is slow, fails or hangs.
type hooks struct {
	mu       sync.Mutex
	calls    []Call
	latency  map[string]time.Duration
	failures map[string]error
	hangs    map[string]chan struct{}
	running  map[string]int
	peak     map[string]int
}

// SetLatency makes every call of the method take at least d; 0 removes it. The method
// "" stands for every method that has no latency of its own.
func (h *hooks) SetLatency(method string, d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.latency == nil {
		h.latency = map[string]time.Duration{}
	}
	h.latency[method] = d
}

// Fail makes every call of the method return err, until it is called with nil.
func (h *hooks) Fail(method string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.failures == nil {
		h.failures = map[string]error{}
	}
	h.failures[method] = err
}

// Hang makes every call of the method wait until release is called or its context
// ends. Calls that hang when release is called go on as if nothing had been.
func (h *hooks) Hang(method string) (release func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.hangs == nil {
		h.hangs = map[string]chan struct{}{}
	}
	gate := make(chan struct{})
	h.hangs[method] = gate
	var once sync.Once
	return func() {
		once.Do(func() {
			h.mu.Lock()
			if h.hangs[method] == gate {
				delete(h.hangs, method)
			}
			h.mu.Unlock()
			close(gate)
		})
	}
}

// Calls returns the calls so far of the named methods, or of all when none is named.
func (h *hooks) Calls(methods ...string) []Call {
	h.mu.Lock()
	defer h.mu.Unlock()
	var found []Call
	for _, c := range h.calls {
		if len(methods) == 0 || slices.Contains(methods, c.Method) {
			found = append(found, c)
		}
	}
	return found
}

// ForgetCalls empties what Calls and Peak return.
func (h *hooks) ForgetCalls() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls, h.peak = nil, nil
}

// Peak returns how many calls of the method were in flight at most at one time.
func (h *hooks) Peak(method string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.peak[method]
}

// enter records a call and makes it wait or fail as the test wants. leave must be called when
// the call ends.
func (h *hooks) enter(ctx context.Context, fullMethod string, req any) (leave func(), err error) {
	method := fullMethod[strings.LastIndex(fullMethod, "/")+1:]
	h.mu.Lock()
	h.calls = append(h.calls, Call{Method: method, Request: req, At: time.Now()})
	if h.running == nil {
		h.running = map[string]int{}
	}
	if h.peak == nil {
		h.peak = map[string]int{}
	}
	h.running[method]++
	h.peak[method] = max(h.peak[method], h.running[method])
	gate := h.hangs[method]
	delay, own := h.latency[method]
	if !own {
		delay = h.latency[""]
	}
	h.mu.Unlock()
	leave = func() {
		h.mu.Lock()
		h.running[method]--
		h.mu.Unlock()
	}

	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return leave, ctx.Err()
		}
	}
	if err := wait(ctx, delay); err != nil {
		return leave, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return leave, h.failures[method]
}

func (h *hooks) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	leave, err := h.enter(ctx, info.FullMethod, req)
	defer leave()
	if err != nil {
		return nil, err
	}
	return next(ctx, req)
}

func (h *hooks) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	leave, err := h.enter(ss.Context(), info.FullMethod, nil)
	defer leave()
	if err != nil {
		return err
	}
	return next(srv, ss)
}

// wait returns after d, or the context's error if that ends first.
func wait(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// InFlight returns how many calls of the method are in flight now.
func (h *hooks) InFlight(method string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.running[method]
}
