package build

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/microlet/microlet/compose/rig/internal/lock"
)

// Builder builds programs into a cache.
type Builder struct {
	Tools string    // the folder compose/tools
	Cache string    // where the results are kept; see CacheDir
	Out   io.Writer // progress, a line at a time
}

// Binaries are the paths of built programs, by name.
type Binaries map[string]string

// CacheDir is where the rig keeps what it builds: $MICROLET_CACHE, or microlet
// in the user's cache folder.
func CacheDir() (string, error) {
	if dir := os.Getenv("MICROLET_CACHE"); dir != "" {
		if !filepath.IsAbs(dir) {
			return "", fmt.Errorf("MICROLET_CACHE is %q: it must be an absolute path", dir)
		}
		return dir, nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find cache folder (set MICROLET_CACHE): %w", err)
	}
	return filepath.Join(dir, "microlet"), nil
}

// Locate returns the folder compose/tools: below start or a parent of it, or
// beside the source of this package.
func Locate(start string) (string, error) {
	const marker = "compose/tools/kubernetes/go.mod"
	for dir := start; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, marker)); err == nil {
			return filepath.Join(dir, "compose/tools"), nil
		}
		if dir == filepath.Dir(dir) {
			break
		}
	}
	if _, file, _, ok := runtime.Caller(0); ok && filepath.IsAbs(file) {
		tools := filepath.Join(filepath.Dir(file), "../../../tools")
		if _, err := os.Stat(filepath.Join(tools, "kubernetes/go.mod")); err == nil {
			return filepath.Clean(tools), nil
		}
	}
	return "", fmt.Errorf("compose/tools is neither in %s nor in a folder above it: run this inside the repository",
		start)
}

// Build returns the paths of all programs of the base group and of the named
// groups, and builds those that the cache lacks.
func (b *Builder) Build(ctx context.Context, groups ...string) (Binaries, error) {
	var wanted []Program
	for _, p := range Programs() {
		if p.in(groups) {
			wanted = append(wanted, p)
		}
	}
	return b.build(ctx, wanted)
}

// BuildOnly is Build for the named programs.
func (b *Builder) BuildOnly(ctx context.Context, names ...string) (Binaries, error) {
	var wanted []Program
	for _, p := range Programs() {
		if slices.Contains(names, p.Name) {
			wanted = append(wanted, p)
		}
	}
	if len(wanted) != len(names) {
		return nil, fmt.Errorf("build %s: the rig does not know all of them", strings.Join(names, ", "))
	}
	return b.build(ctx, wanted)
}

func (b *Builder) build(ctx context.Context, wanted []Program) (Binaries, error) {
	goVersion, err := goVersion(ctx)
	if err != nil {
		return nil, err
	}
	binaries := Binaries{}
	begin := time.Now()
	built := 0
	for i, p := range wanted {
		version, err := p.version(b.Tools)
		if err != nil {
			return nil, err
		}
		key, err := b.key(p, version, goVersion)
		if err != nil {
			return nil, err
		}
		path := filepath.Join(b.Cache, "bin", p.Name+"-"+version+"-"+key, p.Name)
		binaries[p.Name] = path
		if exists(path) {
			continue
		}
		progress := fmt.Sprintf("[%d/%d] %s %s", i+1, len(wanted), p.Name, version)
		if err := b.buildLocked(ctx, p, version, path, progress); err != nil {
			return nil, err
		}
		built++
	}
	if built > 0 {
		b.printf("built %d of %d programs in %s", built, len(wanted), time.Since(begin).Round(time.Second))
	}
	return binaries, nil
}

func (b *Builder) buildLocked(ctx context.Context, p Program, version, path, progress string) error {
	dir := filepath.Dir(path)
	begin := time.Now()
	unlock, err := lock.File(ctx, dir+".lock", func() {
		b.printf("%s: waiting for another rig that builds it, %s", progress, time.Since(begin).Round(time.Second))
	})
	if err != nil {
		return err
	}
	defer unlock()
	if exists(path) {
		return nil
	}
	begin = time.Now()
	b.printf("%s: building", progress)
	half := dir + ".half"
	if err := os.MkdirAll(half, 0o755); err != nil {
		return fmt.Errorf("build %s: %w", p.Name, err)
	}
	defer func() { _ = os.RemoveAll(half) }()
	if err := b.compile(ctx, p, version, filepath.Join(half, p.Name), progress, begin); err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("build %s: %w", p.Name, err)
	}
	if err := os.Rename(half, dir); err != nil {
		return fmt.Errorf("build %s: %w", p.Name, err)
	}
	b.printf("%s: done in %s", progress, time.Since(begin).Round(time.Second))
	return nil
}

// args is the command that makes the executable.
func (p Program) args(version, out string) []string {
	verb := []string{"build", "-v"}
	if p.Test {
		// Upstream vets its own code.
		verb = []string{"test", "-c", "-vet=off"}
	}
	return slices.Concat(verb, compilation, []string{"-o", out}, p.settings(version))
}

// compilation is how every package is compiled: as those of microlet are (see the Makefile), so that what a program has
// in common with it is compiled once. All are linked without debug information, so none is made.
var compilation = []string{"-trimpath", "-buildvcs=false", "-gcflags=all=-dwarf=false"}

// settings are what the packages are built with, and the package.
func (p Program) settings(version string) []string {
	var args []string
	if p.Tags != "" {
		args = append(args, "-tags", p.Tags)
	}
	flags := "-s -w"
	if p.Stamp != nil {
		stamp := p.Stamp(version)
		for _, name := range slices.Sorted(maps.Keys(stamp)) {
			flags += " -X " + name + "=" + stamp[name]
		}
	}
	return append(args, "-ldflags", flags, p.Package)
}

func (p Program) env() []string {
	cgo := "0"
	if p.CGO {
		cgo = "1"
	}
	// The workspace would replace the pinned dependencies by our own.
	return []string{"CGO_ENABLED=" + cgo, "GOWORK=off"}
}

func (b *Builder) compile(ctx context.Context, p Program, version, out, progress string, begin time.Time) error {
	if p.Test {
		// go test -c does not print what it compiles, so most is compiled before.
		args := slices.Concat([]string{"build", "-v"}, compilation, p.settings(version))
		if err := b.run(ctx, p, args, version, progress, begin); err != nil {
			return err
		}
	}
	return b.run(ctx, p, p.args(version, out), version, progress, begin)
}

// run runs go and reports what it compiles.
func (b *Builder) run(ctx context.Context, p Program, args []string, version, progress string, begin time.Time) error {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = filepath.Join(b.Tools, p.Module)
	// The compiler collects its garbage less often, which saves a twentieth of the time.
	cmd.Env = append(append(os.Environ(), "GOGC=800"), p.env()...)
	cmd.WaitDelay = 5 * time.Second
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return fmt.Errorf("build %s: %w", p.Name, err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("build %s: %w", p.Name, err)
	}

	// go build -v names each package that it compiles; what else it says is
	// an error's explanation, or a module that is being downloaded.
	var mu sync.Mutex
	compiled, last := 0, ""
	var complaints []string
	done := make(chan struct{})
	go func() {
		defer close(done)
		lines := bufio.NewScanner(stderr)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			line := lines.Text()
			mu.Lock()
			if strings.ContainsAny(line, " \t:") {
				if !strings.HasPrefix(line, "go: downloading") {
					complaints = append(complaints, line)
				}
			} else {
				compiled++
			}
			last = line
			mu.Unlock()
		}
		_, _ = io.Copy(io.Discard, stderr) // a line that is too long
	}()

	const every = 10 * time.Second
	tick := time.NewTicker(every)
	defer tick.Stop()
wait:
	for {
		select {
		case <-done:
			break wait
		case <-tick.C:
			mu.Lock()
			n, at := compiled, last
			mu.Unlock()
			if n == 0 {
				at = "all packages are in Go's cache, linking"
			}
			b.printf("%s: %s, %d packages compiled, last: %s", progress, time.Since(begin).Round(time.Second), n, at)
		}
	}
	if err := cmd.Wait(); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		const most = 20
		if len(complaints) > most {
			complaints = complaints[len(complaints)-most:]
		}
		return fmt.Errorf("build %s %s: %w\n%s", p.Name, version, err, strings.Join(complaints, "\n"))
	}
	return nil
}

// ModuleDir returns the folder of a dependency's source, as the named module of
// Tools pins it.
func (b *Builder) ModuleDir(ctx context.Context, module, dependency string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", dependency)
	cmd.Dir = filepath.Join(b.Tools, module)
	cmd.Env = append(os.Environ(), "GOWORK=off")
	out, err := cmd.Output()
	dir := strings.TrimSpace(string(out))
	if err == nil && dir == "" {
		err = errors.New("it is not downloaded: go mod download")
	}
	if err != nil {
		return "", fmt.Errorf("find source of %s: %w", dependency, err)
	}
	return dir, nil
}

// key is a digest of all that a build depends on.
func (b *Builder) key(p Program, version, goVersion string) (string, error) {
	h := sha256.New()
	for _, part := range slices.Concat([]string{goVersion, runtime.GOOS, runtime.GOARCH}, p.args(version, ""),
		p.env()) {
		_, _ = fmt.Fprintln(h, part)
	}
	files := []string{"go.mod", "go.sum"}
	if len(p.Sources) > 0 {
		var err error
		if files, err = b.sources(p); err != nil {
			return "", err
		}
	}
	for _, file := range files {
		text, err := os.ReadFile(filepath.Join(b.Tools, p.Module, file))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("make cache key of %s: %w", p.Name, err)
		}
		_, _ = fmt.Fprintln(h, file, len(text))
		_, _ = h.Write(text)
	}
	return hex.EncodeToString(h.Sum(nil))[:12], nil
}

// sources are the files that the program's patterns name, below its module's folder.
func (b *Builder) sources(p Program) ([]string, error) {
	var files []string
	for _, pattern := range p.Sources {
		matches, err := filepath.Glob(filepath.Join(b.Tools, p.Module, pattern))
		if err != nil {
			return nil, fmt.Errorf("find source of %s: %w", p.Name, err)
		}
		for _, m := range matches {
			rel, err := filepath.Rel(filepath.Join(b.Tools, p.Module), m)
			if err != nil {
				return nil, fmt.Errorf("find source of %s: %w", p.Name, err)
			}
			files = append(files, rel)
		}
	}
	return files, nil
}

func (b *Builder) printf(format string, args ...any) {
	if b.Out != nil {
		_, _ = fmt.Fprintf(b.Out, "rig: "+format+"\n", args...)
	}
}

func goVersion(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOVERSION").Output()
	if err != nil {
		return "", fmt.Errorf("ask go for its version (is Go installed and in PATH?): %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
