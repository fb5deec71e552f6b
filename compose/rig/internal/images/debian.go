package images

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/microlet/microlet/compose/rig/internal/lock"
)

// The base system of the heavier images: the release, and what the suite calls
// in them beyond Debian's essential packages.
const (
	debianRelease  = "bookworm"
	debianMirror   = "http://deb.debian.org/debian"
	debianPackages = "bash-static,bind9-dnsutils,curl,iperf,iproute2,net-tools,netcat-openbsd,nginx-light,perl," +
		"procps,socat"
	// debianFormat is part of the cache key: raise it when the same packages
	// shall give another layer.
	debianFormat = "1"
)

// Not of use in a container: documentation, translations, package lists.
var debianUnused = []string{
	"boot", "debootstrap", "var/cache/apt", "var/cache/debconf", "var/cache/ldconfig", "var/lib/apt/lists", "var/log",
	"usr/share/doc", "usr/share/info", "usr/share/locale", "usr/share/man", "usr/share/i18n", "usr/lib/locale/C.utf8",
}

// debianBase is what is kept of a base system.
type debianBase struct {
	layer         string // a gzipped tar file
	bash          []byte // statically linked
	passwd, group []byte
}

// Mirror is where Debian's packages come from: $MICROLET_DEBIAN_MIRROR, or
// Debian's own.
func Mirror() string {
	if mirror := os.Getenv("MICROLET_DEBIAN_MIRROR"); mirror != "" {
		return mirror
	}
	return debianMirror
}

// makeDebian returns the base system, which it makes with debootstrap if the
// cache lacks it. It needs root.
func makeDebian(ctx context.Context, cache string, out io.Writer) (debianBase, error) {
	sum := sha256.Sum256([]byte(
		strings.Join([]string{debianFormat, debianRelease, debianPackages, strings.Join(debianUnused, " ")}, "\n"),
	))
	dir := filepath.Join(cache, "debian", debianRelease+"-"+hex.EncodeToString(sum[:])[:12])
	begin := time.Now()
	unlock, err := lock.File(ctx, dir+".lock", func() {
		_, _ = fmt.Fprintf(out, "rig: Debian %s: waiting for another rig that makes it, %s\n", debianRelease,
			time.Since(begin).Round(time.Second))
	})
	if err != nil {
		return debianBase{}, err
	}
	defer unlock()
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		err = bootstrap(ctx, dir, out)
		if err != nil {
			return debianBase{}, fmt.Errorf("make Debian base system: %w", err)
		}
	}
	base := debianBase{layer: filepath.Join(dir, "layer.tar.gz")}
	for name, to := range map[string]*[]byte{"bash-static": &base.bash, "passwd": &base.passwd, "group": &base.group} {
		if *to, err = os.ReadFile(filepath.Join(dir, name)); err != nil {
			return debianBase{}, fmt.Errorf("read Debian base system: %w: remove %s", err, dir)
		}
	}
	return base, nil
}

// bootstrap makes the folder dir: a layer, and the files that are used beside it.
func bootstrap(ctx context.Context, dir string, out io.Writer) error {
	half := dir + ".half"
	root := filepath.Join(half, "root")
	if err := os.RemoveAll(half); err != nil {
		return err
	}
	if err := os.MkdirAll(root, 0o755); err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(half) }()
	if err := debootstrap(ctx, root, out); err != nil {
		return err
	}
	for name, path := range map[string]string{
		"bash-static": "usr/bin/bash-static",
		"passwd":      "etc/passwd",
		"group":       "etc/group",
	} {
		text, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(half, name), text, 0o644); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(root, "etc/hostname"), nil, 0o644); err != nil {
		return err
	}
	for _, path := range debianUnused {
		if err := os.RemoveAll(filepath.Join(root, path)); err != nil {
			return err
		}
	}
	// Programs write their logs there, and do not make the folder.
	for _, path := range []string{"var/log/nginx", "boot"} {
		if err := os.MkdirAll(filepath.Join(root, path), 0o755); err != nil {
			return err
		}
	}
	if err := writeLayer(filepath.Join(half, "layer.tar.gz"), root); err != nil {
		return err
	}
	if err := os.RemoveAll(root); err != nil {
		return err
	}
	return os.Rename(half, dir)
}

func debootstrap(ctx context.Context, root string, out io.Writer) error {
	begin := time.Now()
	_, _ = fmt.Fprintf(out, "rig: Debian %s: making the base system of the suite's images from %s\n", debianRelease,
		Mirror())
	cmd := exec.CommandContext(ctx, "debootstrap", "--variant=minbase", "--include="+debianPackages, debianRelease,
		root, Mirror())
	cmd.WaitDelay = 5 * time.Second
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	tick := time.NewTicker(10 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			_, _ = fmt.Fprintf(out, "rig: Debian %s: %s\n", debianRelease, time.Since(begin).Round(time.Second))
		case err := <-done:
			if err != nil {
				lines := strings.Split(strings.TrimSpace(said.String()), "\n")
				return fmt.Errorf("debootstrap (is %s reachable? set MICROLET_DEBIAN_MIRROR): %w: %s", Mirror(), err,
					strings.Join(lines[max(0, len(lines)-5):], "; "))
			}
			_, _ = fmt.Fprintf(out, "rig: Debian %s: done in %s\n", debianRelease, time.Since(begin).Round(time.Second))
			return nil
		}
	}
}

// writeLayer writes the folder as a gzipped tar file with sorted names and no
// times. Devices and sockets are left out: a runtime makes its own.
func writeLayer(path, root string) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	zip, err := gzip.NewWriterLevel(f, gzip.BestSpeed)
	if err != nil {
		return err
	}
	w := tar.NewWriter(zip)
	first := map[uint64]string{} // of files with several names, by inode
	err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil || name == "." {
			return err
		}
		return addFile(w, path, name, entry, first)
	})
	if err != nil {
		return err
	}
	return errors.Join(w.Close(), zip.Close())
}

func addFile(w *tar.Writer, path, name string, entry fs.DirEntry, first map[uint64]string) error {
	info, err := entry.Info()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() && !info.IsDir() && info.Mode().Type() != fs.ModeSymlink {
		return nil
	}
	target := ""
	if info.Mode().Type() == fs.ModeSymlink {
		if target, err = os.Readlink(path); err != nil {
			return err
		}
	}
	h, err := tar.FileInfoHeader(info, target)
	if err != nil {
		return err
	}
	h.Name, h.Format = name, tar.FormatPAX
	if info.IsDir() {
		h.Name += "/"
	}
	h.Uname, h.Gname = "", ""
	h.ModTime, h.AccessTime, h.ChangeTime = time.Unix(0, 0), time.Time{}, time.Time{}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok && info.Mode().IsRegular() && stat.Nlink > 1 {
		if other, ok := first[stat.Ino]; ok {
			h.Typeflag, h.Linkname, h.Size = tar.TypeLink, other, 0
			return w.WriteHeader(h)
		}
		first[stat.Ino] = name
	}
	if err := w.WriteHeader(h); err != nil {
		return err
	}
	if h.Typeflag != tar.TypeReg {
		return nil
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	_, err = io.Copy(w, f)
	return err
}
