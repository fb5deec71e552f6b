package kernel

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/microlet/microlet/compose/rig/internal/cached"
	"github.com/microlet/microlet/compose/rig/machine/internal/archive"
)

// series of the source: the first with kernels that run their programs without ptrace, which is two to three times
// faster, and that have several CPUs. Only Debian's development release has it.
const (
	series  = "7.2"
	release = "sid"
	// format is part of the cache's key: raise it when the same files shall give another kernel.
	format = "1"
)

//go:embed config patches
var files embed.FS

// Input says where a kernel is kept and where progress is printed.
type Input struct {
	Cache string
	Out   io.Writer // progress, a line at a time
}

// Path returns where the kernel of this source tree is or will be.
func Path(cache string) (string, error) {
	h := sha256.New()
	_, _ = fmt.Fprintln(h, format, series, runtime.GOARCH)
	err := fs.WalkDir(files, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := files.ReadFile(path)
		if err != nil {
			return err
		}
		_, _ = fmt.Fprintln(h, path, len(text))
		_, _ = h.Write(text)
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("make the kernel's cache key: %w", err)
	}
	return filepath.Join(cache, "machine", "kernel-"+series+"-"+hex.EncodeToString(h.Sum(nil))[:12], "linux"), nil
}

// Build returns the path of the kernel and builds it if the cache lacks it.
func Build(ctx context.Context, in Input) (string, error) {
	path, err := Path(in.Cache)
	if err != nil {
		return "", err
	}
	say := func(format string, args ...any) {
		_, _ = fmt.Fprintf(in.Out, "rig: kernel of the machine, Linux "+series+": "+format+"\n", args...)
	}
	dir := filepath.Dir(path)
	err = cached.Folder(ctx, dir, say, func(half string) error {
		say("building, which takes some twenty minutes of one core")
		// The tree stays until its kernel is there: make goes on with it after an interruption.
		work := dir + ".work"
		tree := filepath.Join(work, "linux")
		if err := unpack(ctx, work, tree, say); err != nil {
			return err
		}
		if err := configure(ctx, tree, say); err != nil {
			return err
		}
		build := cached.Command{
			Args: []string{"make", "ARCH=um", fmt.Sprintf("-j%d", runtime.GOMAXPROCS(0)), "linux"},
			Dir:  tree,
			Nice: 10,
		}
		if err := cached.Run(ctx, build, say); err != nil {
			return err
		}
		if err := cached.Run(ctx, cached.Command{Args: []string{"strip", "-o", filepath.Join(half, "linux"),
			filepath.Join(tree, "linux")}}, say); err != nil {
			return err
		}
		// The resulting options, which show why something is missing.
		text, err := os.ReadFile(filepath.Join(tree, ".config"))
		if err == nil {
			err = os.WriteFile(filepath.Join(half, "config"), text, 0o644)
		}
		if err != nil {
			return err
		}
		return os.RemoveAll(work)
	})
	if err != nil {
		return "", fmt.Errorf("build the machine's kernel: %w", err)
	}
	return path, nil
}

// unpack makes the corrected source tree.
func unpack(ctx context.Context, work, tree string, say func(string, ...any)) error {
	if _, err := os.Stat(tree); err == nil {
		return nil
	}
	if err := os.RemoveAll(work); err != nil {
		return err
	}
	debian, err := archive.Open(ctx, work, release, say)
	if err != nil {
		return fmt.Errorf("fetch the source: %w", err)
	}
	source, err := debian.Download(ctx, "linux-source-"+series)
	if err != nil {
		return fmt.Errorf("fetch the source: %w", err)
	}
	half := tree + ".half"
	if err := os.MkdirAll(half, 0o755); err != nil {
		return err
	}
	// The package is an archive that holds the source's archive.
	const both = `dpkg-deb --fsys-tarfile "$1" | tar -xO --wildcards '*/linux-source-*.tar.xz' | tar -C "$2" --strip-components=1 -xJ`
	if err := cached.Run(ctx, cached.Command{Args: []string{"bash", "-o", "pipefail", "-c", both, "unpack", source, half}},
		say); err != nil {
		return err
	}
	patches, err := files.ReadDir("patches")
	if err != nil {
		return err
	}
	for _, p := range patches {
		text, err := files.ReadFile("patches/" + p.Name())
		if err != nil {
			return err
		}
		cmd := exec.CommandContext(ctx, "patch", "-p1", "--fuzz=0", "-d", half)
		cmd.Stdin = strings.NewReader(string(text))
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("apply %s: %w: %s", p.Name(), err, out)
		}
	}
	return os.Rename(half, tree)
}

// configure writes the tree's options: the architecture's defaults with those of the file config.
func configure(ctx context.Context, tree string, say func(string, ...any)) error {
	text, err := files.ReadFile("config")
	if err != nil {
		return err
	}
	path := filepath.Join(tree, ".config")
	if check(path, string(text)) == nil {
		return nil // of the build that was cut off
	}
	if err := cached.Run(ctx, cached.Command{Args: []string{"make", "-s", "ARCH=um", "x86_64_defconfig"}, Dir: tree},
		say); err != nil {
		return err
	}
	defaults, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	// Of an option that is there twice, the last one counts.
	if err := os.WriteFile(path, append(defaults, text...), 0o644); err != nil {
		return err
	}
	if err := cached.Run(ctx, cached.Command{Args: []string{"make", "-s", "ARCH=um", "olddefconfig"}, Dir: tree},
		say); err != nil {
		return err
	}
	return check(path, string(text))
}

// check finds the options that the tree has dropped, as it does with an option if its conditions are not met.
func check(path, want string) error {
	have, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	got := "\n" + string(have)
	var missing []string
	for line := range strings.Lines(want) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "CONFIG_") && !strings.Contains(got, "\n"+line+"\n") {
			missing = append(missing, line)
		}
		if name, off := strings.CutSuffix(strings.TrimPrefix(line, "# "), " is not set"); off &&
			strings.Contains(got, "\n"+name+"=") {
			missing = append(missing, line)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("the kernel's options do not take: %s", strings.Join(missing, ", "))
	}
	return nil
}
