package build

import (
	"context"
	"fmt"
	"io"
)

// Node installs the packages that the machine lacks, and builds NodePrograms and the named programs.
func (b *Builder) Node(ctx context.Context, others ...string) (Binaries, error) {
	if err := InstallPackages(ctx, b.Out); err != nil {
		return nil, err
	}
	return b.BuildOnly(ctx, append(others, NodePrograms...)...)
}

// NodeMain is the command that builds what a node runs. It needs none of the packages that make the rig slow to
// compile, so it works while the rig itself is still being built. It returns the exit code.
func NodeMain(out, complaints io.Writer) int {
	err := func() error {
		tools, err := Locate(".")
		if err != nil {
			return err
		}
		cache, err := CacheDir()
		if err != nil {
			return err
		}
		b := &Builder{Tools: tools, Cache: cache, Out: out}
		_, err = b.Node(context.Background())
		return err
	}()
	if err != nil {
		_, _ = fmt.Fprintf(complaints, "rig: %v\n", err)
		return 1
	}
	return 0
}
