package childpool

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// DefaultPatience is how long a child may take for a call of an Operation without a Patience.
const DefaultPatience = 30 * time.Second

// Runner runs operations. A Pool and a Session do it in children, a Table at once, for tests.
type Runner interface {
	// Run runs an operation and returns its result. The call ends with the context, too.
	Run(ctx context.Context, c Call) (json.RawMessage, error)
}

// Call is one call of an operation.
type Call struct {
	// Operation is its name.
	Operation string
	// Path is what the operation works on. Of the calls on one path one runs at a time.
	Path string
	// On names the file system that the path is on, such as a server. Default: that of the mount point that the path is
	// below.
	On string
	// Patience is how long a child may take.
	Patience time.Duration
	// Long and Deadline are the Operation's.
	Long     bool
	Deadline time.Duration
	// Args are the operation's, in JSON.
	Args json.RawMessage
}

// Operation is something that a child can do. It takes an A and returns an R, both of which JSON must keep.
type Operation[A, R any] struct {
	// Name is unique in a program. Errors contain it.
	Name string
	// Patience is how long a child may take. Default: DefaultPatience.
	Patience time.Duration
	// Long says that a call may take long although nothing hangs. Such calls have at most half of the children that calls
	// may have. They wait for each other, for as long as those before them go on. Calls of the namespace that has the
	// fewest come first, then the older ones.
	Long bool
	// Deadline of a call, from when it begins in a child: the wait for others does not count. Default: the context's
	// alone.
	Deadline time.Duration
}

// Do runs the operation in a child. The path is what it works on, as in Call. An error of the operation itself has the
// text and the errno of the one in the child, and the result may be there beside it.
func (o Operation[A, R]) Do(ctx context.Context, in Runner, path string, args A) (R, error) {
	return o.DoOn(ctx, in, "", path, args)
}

// DoOn is Do for a path on a file system that the caller knows, as in Call: an unmount may hang after the kernel has
// taken the mount off its list.
func (o Operation[A, R]) DoOn(ctx context.Context, in Runner, on, path string, args A) (R, error) {
	var result R
	data, err := json.Marshal(args)
	if err != nil {
		return result, fmt.Errorf("%s: %w", o.Name, err)
	}
	patience := o.Patience
	if patience == 0 {
		patience = DefaultPatience
	}
	answered, err := in.Run(ctx, Call{
		Operation: o.Name, Path: path, On: on, Patience: patience, Long: o.Long, Deadline: o.Deadline, Args: data,
	})
	if len(answered) > 0 {
		if e := json.Unmarshal(answered, &result); e != nil {
			return result, fmt.Errorf("%s %s: answer: %w", o.Name, path, e)
		}
	}
	return result, err
}

// Table has the functions of operations, by the names of the operations.
type Table map[string]func(ctx context.Context, args json.RawMessage) (json.RawMessage, error)

// Handle puts the function of an operation into the table.
func Handle[A, R any](t Table, o Operation[A, R], do func(ctx context.Context, args A) (R, error)) {
	t[o.Name] = func(ctx context.Context, data json.RawMessage) (json.RawMessage, error) {
		var args A
		if err := json.Unmarshal(data, &args); err != nil {
			return nil, fmt.Errorf("arguments: %w", err)
		}
		result, err := do(ctx, args)
		answer, e := json.Marshal(result)
		if e != nil {
			return nil, fmt.Errorf("answer: %w", e)
		}
		return answer, err
	}
}

// Run runs the operation in this process. With it a Table is a Runner for tests, whose operations do not hang.
func (t Table) Run(ctx context.Context, c Call) (json.RawMessage, error) {
	do := t[c.Operation]
	if do == nil {
		return nil, fmt.Errorf("no operation is called %q", c.Operation)
	}
	return do(ctx, c.Args)
}
