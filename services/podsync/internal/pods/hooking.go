package pods

import "github.com/microlet/microlet/services/podsync/internal/pods/internal/hook"

// HookOptions are what lifecycle hooks run with.
type HookOptions = hook.Options

// NewHooks returns what runs lifecycle hooks in and against containers.
func NewHooks(o HookOptions) (*hook.Runner, error) { return hook.New(o) }
