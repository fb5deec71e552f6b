package run

import "context"

// Tasks take tasks that run until the service ends: a Group, or the service itself.
type Tasks interface {
	// Go runs a task under a name that logs and errors show.
	Go(name string, task func(ctx context.Context) error)
}
