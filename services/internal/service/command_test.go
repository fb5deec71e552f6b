package service

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/kubeletconfig"
)

// TestCommandLineIsNotKept while the service runs: it has hundreds of flags.
func TestCommandLineIsNotKept(t *testing.T) {
	gone, ran := make(chan struct{}), false
	d := Definition{Role: role.ImageGC, Run: func(context.Context, Config, *kubeletconfig.Config) error {
		ran = true
		runtime.GC()
		select {
		case <-gone:
		case <-time.After(10 * time.Second):
			t.Error("the command line is still in memory")
		}
		return nil
	}}
	line := func() *cobra.Command {
		root := &cobra.Command{Use: "microlet"}
		cmd := d.Command()
		root.AddCommand(cmd)
		runtime.AddCleanup(cmd.Flags(), func(c chan struct{}) { close(c) }, gone)
		return root
	}
	if err := execute(line(), []string{"imagegc", "--runtime-dir=" + t.TempDir(), "--node-name=n"}); err != nil || !ran {
		t.Fatal(err, ran)
	}
}
