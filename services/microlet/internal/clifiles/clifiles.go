// Package clifiles writes the files by which man and the shells know a command line.
package clifiles

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// Write writes below dir a manual page for each command that is not hidden, and the completions of bash, zsh and fish,
// where a system has them below /usr/share. The pages have the date of SOURCE_DATE_EPOCH, so that a build gives the
// same files again.
func Write(root *cobra.Command, dir, version string) error {
	name := root.Name()
	man := filepath.Join(dir, "man", "man1")
	bash := filepath.Join(dir, "bash-completion", "completions", name)
	zsh := filepath.Join(dir, "zsh", "site-functions", "_"+name)
	fish := filepath.Join(dir, "fish", "vendor_completions.d", name+".fish")
	for _, folder := range []string{man, filepath.Dir(bash), filepath.Dir(zsh), filepath.Dir(fish)} {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return err
		}
	}
	disableTag(root)
	header := &doc.GenManHeader{Section: "1", Source: name + " " + version, Manual: name}
	if err := doc.GenManTree(root, header, man); err != nil {
		return fmt.Errorf("manual pages: %w", err)
	}
	if err := root.GenBashCompletionFileV2(bash, true); err != nil {
		return fmt.Errorf("completion of bash: %w", err)
	}
	if err := root.GenZshCompletionFile(zsh); err != nil {
		return fmt.Errorf("completion of zsh: %w", err)
	}
	if err := root.GenFishCompletionFile(fish, true); err != nil {
		return fmt.Errorf("completion of fish: %w", err)
	}
	return nil
}

// disableTag keeps the day of the build out of the pages.
func disableTag(cmd *cobra.Command) {
	cmd.DisableAutoGenTag = true
	for _, c := range cmd.Commands() {
		disableTag(c)
	}
}
