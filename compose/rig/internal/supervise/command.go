package supervise

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"
)

const insideFlag = "inside"

// Main is the program rig-agent: it parses the command line and runs until
// SIGTERM or SIGINT. It returns the exit status.
func Main(args []string, out io.Writer) int {
	flags := flag.NewFlagSet("rig-agent", flag.ContinueOnError)
	flags.SetOutput(out)
	flags.Usage = func() {
		_, _ = fmt.Fprintln(out,
			"rig-agent keeps a node agent running, as systemd would.\n\nUsage: rig-agent [flags] -- program [arguments]")
		flags.PrintDefaults()
	}
	var c Config
	flags.StringVar(&c.Status, "status", "", "`file` that always says which process the program is (required)")
	flags.StringVar(&c.Notify, "notify", "", "`path` of the notification socket that the program is given (required)")
	flags.DurationVar(&c.Watchdog, "watchdog", 0,
		"kill the program when its watchdog messages stop for this long; 0: never")
	flags.DurationVar(&c.Grace, "grace", 10*time.Second, "time between SIGTERM and SIGKILL at the end")
	bind := func(to *Bind) func(string) error {
		return func(text string) (err error) {
			*to, err = ParseBind(text)
			return err
		}
	}
	flags.Func("bind", "show one folder in the place of another to the program alone (`from:to`)", bind(&c.Bind))
	var inside Bind
	flags.Func(insideFlag, "bind `from:to` in the namespace of this process and become the program: rig-agent calls itself",
		bind(&inside))
	if err := flags.Parse(args); err != nil {
		return 2
	}
	c.Command = flags.Args()
	c.Log = slog.New(slog.NewTextHandler(out, nil)).With("from", "rig-agent")
	if inside != (Bind{}) && len(c.Command) > 0 {
		c.Log.Error("cannot start the program", "err", become(inside, c.Command))
		return 1
	}
	if c.Status == "" || c.Notify == "" || len(c.Command) == 0 {
		flags.Usage()
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := Run(ctx, c); err != nil {
		c.Log.Error("cannot go on", "err", err)
		return 1
	}
	return 0
}
