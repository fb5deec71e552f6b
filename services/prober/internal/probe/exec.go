package probe

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/microlet/microlet/services/internal/expansion"
)

const (
	// execSlack is what the runtime may take beside the command itself: to start it, and to end it at
	// its timeout. A runtime that takes longer gives no result.
	execSlack = 15 * time.Second
	// execHold is how long a command keeps its place at most. Most of the work is in the start; one
	// that waits must not keep the others from theirs.
	execHold = 2 * time.Second
)

// exec runs the command in the container. The runtime enforces the timeout, which is a failure.
func (p *Prober) exec(ctx context.Context, t Target) (Result, error) {
	command, err := expansion.Command(t.Probe.Exec.Command, t.Container.Env)
	if err != nil {
		return Result{}, err
	}
	timeout := t.timeout()
	release, err := p.execs.take(ctx, t.Pod.GetNamespace(), execHold)
	if err != nil {
		return Result{}, err
	}
	defer release()
	outer := ctx
	ctx, cancel := context.WithTimeout(ctx, timeout+execSlack)
	defer cancel()
	answer, err := p.o.Runtime.ExecSync(ctx, &runtimeapi.ExecSyncRequest{
		ContainerId: t.ContainerID, Cmd: command, Timeout: int64(timeout / time.Second),
	})
	switch {
	case err == nil && answer.GetExitCode() == 0:
		return Result{Success, output(answer)}, nil
	case err == nil:
		return Result{Failure, output(answer)}, nil
	case outer.Err() != nil:
		return Result{}, outer.Err()
	case ctx.Err() != nil:
		return Result{}, fmt.Errorf("%w: the runtime did not answer within %v", ErrUnreachable, timeout+execSlack)
	}
	switch status.Code(err) {
	case codes.DeadlineExceeded:
		return failure("command timed out: %q timed out after %s", strings.Join(command, " "), timeout)
	case codes.Unavailable:
		return Result{}, fmt.Errorf("%w: %w", ErrUnreachable, err)
	default:
		return Result{}, err
	}
}

// output is what the command printed, both streams, up to the bound.
func output(a *runtimeapi.ExecSyncResponse) string {
	out := a.GetStdout()
	if len(out) < maxOutput {
		out = append(out[:len(out):len(out)], a.GetStderr()...)
	}
	return string(out[:min(len(out), maxOutput)])
}
