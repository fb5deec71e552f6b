package images

import (
	"bufio"
	"bytes"
	"context"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// xtablesFolders are where distributions have the extensions that iptables loads.
var xtablesFolders = []string{"/usr/lib/*/xtables", "/usr/lib/xtables", "/usr/lib64/xtables"}

// iptables is the machine's iptables under the names that programs call, with its extensions and libraries.
func iptables(ctx context.Context, path string) ([]entry, error) {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, fmt.Errorf("iptables: %w", err)
	}
	program := filepath.Base(real)
	entries, err := linked(ctx, real, "usr/sbin/"+program)
	if err != nil {
		return nil, err
	}
	for _, called := range []string{"iptables", "iptables-save", "iptables-restore", "ip6tables", "ip6tables-save",
		"ip6tables-restore"} {
		if called != program {
			entries = append(entries, link("usr/sbin/"+called, program))
		}
	}
	for _, folder := range xtablesFolders {
		extensions, err := filepath.Glob(filepath.Join(folder, "*.so"))
		if err != nil {
			return nil, fmt.Errorf("iptables: %w", err)
		}
		for _, extension := range extensions {
			text, err := os.ReadFile(extension)
			if err != nil {
				return nil, fmt.Errorf("iptables: %w", err)
			}
			entries = append(entries, file(strings.TrimPrefix(extension, "/"), 0o644, text))
		}
	}
	return entries, nil
}

// linked is a program of this machine at its place in an image, with its libraries.
func linked(ctx context.Context, program, place string) ([]entry, error) {
	text, err := os.ReadFile(program)
	if err != nil {
		return nil, err
	}
	entries, err := libraries(ctx, program)
	return append(entries, file(place, 0o755, text)), err
}

// libraries are the shared libraries that a program of this machine is linked with; none of a static one.
func libraries(ctx context.Context, program string) ([]entry, error) {
	f, err := elf.Open(program)
	if err != nil {
		return nil, fmt.Errorf("libraries of %s: %w", program, err)
	}
	needed, err := f.ImportedLibraries()
	_ = f.Close()
	if err != nil || len(needed) == 0 {
		return nil, err
	}
	out, err := exec.CommandContext(ctx, "ldd", program).Output()
	if err != nil {
		return nil, fmt.Errorf("libraries of %s: ldd: %w", program, err)
	}
	var entries []entry
	for _, path := range parseLdd(out) {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("libraries of %s: %w", program, err)
		}
		entries = append(entries, file(strings.TrimPrefix(path, "/"), 0o755, text))
	}
	return entries, nil
}

// parseLdd returns the paths in what ldd says: "name => path (address)", or "path (address)" of the loader.
func parseLdd(out []byte) []string {
	var paths []string
	lines := bufio.NewScanner(bytes.NewReader(out))
	for lines.Scan() {
		for _, word := range strings.Fields(lines.Text()) {
			if strings.HasPrefix(word, "/") {
				paths = append(paths, word)
				break
			}
		}
	}
	return paths
}
