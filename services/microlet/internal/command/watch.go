package command

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/term"

	"github.com/microlet/microlet/services/internal/run"
)

// watchPeriod is how often --watch looks.
const watchPeriod = 2 * time.Second

// watch shows something again and again, until it is interrupted. What fails is shown, and may work the next time.
func watch(ctx context.Context, out io.Writer, show func(context.Context, io.Writer) error) error {
	ctx = run.Signals(ctx)
	t := time.NewTicker(watchPeriod)
	defer t.Stop()
	for {
		var b bytes.Buffer
		err := show(ctx, &b)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			fmt.Fprintln(&b, err)
		}
		if isTerminal(out) {
			fmt.Fprint(out, "\x1b[H\x1b[2J") // to the first line of an empty screen
		}
		if _, err := b.WriteTo(out); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
	}
}

// isTerminal reports whether a stream of a command is a person's.
func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
