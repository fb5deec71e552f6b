package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // registers the format
	"github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm" // registers the format
)

// input says what is packaged.
type input struct {
	tree, scripts, arch, version, out string
	date                              time.Time
}

func (in *input) validate() error {
	var errs []error
	for _, f := range []struct{ flag, value string }{
		{"tree", in.tree}, {"scripts", in.scripts}, {"version", in.version}, {"out", in.out},
	} {
		if f.value == "" {
			errs = append(errs, fmt.Errorf("-%s is empty", f.flag))
		}
	}
	if in.arch != "amd64" && in.arch != "arm64" {
		errs = append(errs, fmt.Errorf("-arch is %q: use amd64 or arm64", in.arch))
	}
	return errors.Join(errs...)
}

// format is what one kind of package has of its own.
type format struct {
	name string
	// depends are the packages without which the scripts and the units do nothing.
	depends []string
	// recommended are the packages with programs that services start.
	recommended []string
	// moved are folders that have another name there.
	moved map[string]string
}

var formats = []format{
	{
		name: "deb", depends: []string{"systemd", "passwd"}, recommended: []string{"iptables", "mount"},
		moved: map[string]string{"/usr/share/zsh/site-functions/": "/usr/share/zsh/vendor-completions/"},
	},
	{name: "rpm", depends: []string{"systemd", "shadow-utils"}, recommended: []string{"iptables", "util-linux"}},
}

// write writes a package of each format.
func write(in input) error {
	if err := in.validate(); err != nil {
		return err
	}
	for _, f := range formats {
		if err := writeOne(in, f); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	return nil
}

func writeOne(in input, f format) error {
	info, err := describe(in, f)
	if err != nil {
		return err
	}
	packager, err := nfpm.Get(f.name)
	if err != nil {
		return err
	}
	out, err := os.Create(filepath.Join(in.out, packager.ConventionalFileName(info)))
	if err != nil {
		return err
	}
	return errors.Join(packager.Package(info, out), out.Close())
}

// describe is the package: its name, its files and its scripts.
func describe(in input, f format) (*nfpm.Info, error) {
	contents, err := list(in, f)
	if err != nil {
		return nil, err
	}
	info := nfpm.WithDefaults(&nfpm.Info{
		Name: "microlet", Arch: in.arch, Platform: "linux", Version: packageVersion(in.version), VersionSchema: "none",
		Release: "1", Section: "admin", Priority: "optional", License: "Apache-2.0",
		Maintainer: "The microlet authors <microlet@users.noreply.github.com>",
		Homepage:   "https://github.com/microlet/microlet",
		Description: "Kubernetes node agent of small processes\n" +
			"It does the kubelet's work on a node, each part of it in a process with its own user.",
		MTime: in.date,
		Overridables: nfpm.Overridables{
			Depends: f.depends, Recommends: f.recommended, Contents: contents,
			Scripts: nfpm.Scripts{
				PostInstall: filepath.Join(in.scripts, "postinst"),
				PreRemove:   filepath.Join(in.scripts, "prerm"),
				PostRemove:  filepath.Join(in.scripts, "postrm"),
			},
			// The name of the machine that builds would differ.
			RPM: nfpm.RPM{BuildHost: "localhost", Group: "System Environment/Daemons", Summary: "Kubernetes node agent"},
		},
	})
	return info, nfpm.PrepareForPackager(info, f.name)
}

// list lists the files of the tree.
func list(in input, f format) (files.Contents, error) {
	var all files.Contents
	err := filepath.WalkDir(in.tree, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(in.tree, path)
		if err != nil {
			return err
		}
		status, err := d.Info()
		if err != nil {
			return err
		}
		if !status.Mode().IsRegular() {
			return fmt.Errorf("%s is no regular file", path)
		}
		name = "/" + name
		for from, to := range f.moved {
			if rest, ok := strings.CutPrefix(name, from); ok {
				name = to + rest
			}
		}
		all = append(all, &files.Content{Source: path, Destination: name, FileInfo: &files.ContentFileInfo{
			Owner: "root", Group: "root", Mode: status.Mode().Perm(), MTime: in.date,
		}})
		return nil
	})
	if err == nil && len(all) == 0 {
		err = fmt.Errorf("-tree is %s: it has no files", cmp.Or(in.tree, "empty"))
	}
	return all, err
}
