package cli

import (
	"bufio"
	"errors"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/microlet/microlet/compose/rig"
)

func newImages(out, progress io.Writer) *cobra.Command {
	o := rig.Options{Out: progress}
	cmd := &cobra.Command{
		Use:   "images",
		Short: `Write the images that compose.yaml runs to the standard output, for "docker load"`,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f, ok := out.(*os.File); ok {
				if info, err := f.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
					return errors.New(`images go to the standard output, which is a terminal: pipe it to "docker load"`)
				}
			}
			ctx, stop := interruptible(cmd.Context())
			defer stop()
			w := bufio.NewWriterSize(out, 1<<20)
			return errors.Join(rig.WriteImages(ctx, o, w), w.Flush())
		},
	}
	withFlag(cmd, &o.With)
	cmd.Flags().StringVar(&o.Microlet, "microlet", "", "the microlet executable (default bin/microlet of the repository)")
	return cmd
}
