package run

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// stopSignals are what a supervisor and a terminal send to end a process.
var stopSignals = []os.Signal{syscall.SIGTERM, syscall.SIGINT}

// Signals returns a context that ends with the first SIGTERM or SIGINT; its cause names the signal.
// The second one exits the process at once with 128 plus its number, as a shell reports a death by
// signal: a user who asks twice does not want to wait.
//
// The handler stays for the process's life.
func Signals(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancelCause(ctx)
	received := make(chan os.Signal, 2)
	signal.Notify(received, stopSignals...)
	go func() {
		first := <-received
		cancel(fmt.Errorf("received %w", SignalError{first}))
		second := <-received
		code := 1
		if s, ok := second.(syscall.Signal); ok {
			code = 128 + int(s)
		}
		os.Exit(code)
	}()
	return ctx
}

// SignalError is the cause of a context that a signal ended.
type SignalError struct{ Signal os.Signal }

func (e SignalError) Error() string { return "signal " + e.Signal.String() }
