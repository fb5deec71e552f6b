package credentialplugin

import (
	"context"
	"sync"

	"k8s.io/kubelet/pkg/apis/credentialprovider"
)

type response = credentialprovider.CredentialProviderResponse

// flights let those who ask the same at the same time share one answer.
type flights struct {
	mu sync.Mutex
	m  map[string]*flight
}

type flight struct {
	done     chan struct{}
	response *response
	err      error
	// abandoned says that who ran it has ended, which says nothing to the others.
	abandoned bool
}

// do runs run for the first who asks and hands its answer to those who came meanwhile. If the first one ends before,
// the next of them runs it.
func (f *flights) do(ctx context.Context, key string, run func(context.Context) (*response, error)) (*response, error) {
	for {
		f.mu.Lock()
		under, ok := f.m[key]
		if !ok {
			under = &flight{done: make(chan struct{})}
			f.m[key] = under
			f.mu.Unlock()
			return f.fly(ctx, key, under, run)
		}
		f.mu.Unlock()
		select {
		case <-under.done:
			if !under.abandoned {
				return under.response, under.err
			}
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (f *flights) fly(ctx context.Context, key string, own *flight,
	run func(context.Context) (*response, error)) (*response, error) {
	own.abandoned = true // if run panics
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.m, key)
		close(own.done)
	}()
	own.response, own.err = run(ctx)
	own.abandoned = own.err != nil && ctx.Err() != nil
	return own.response, own.err
}
