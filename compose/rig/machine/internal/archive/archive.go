package archive

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/microlet/microlet/compose/rig/internal/cached"
	"github.com/microlet/microlet/compose/rig/internal/images"
)

// Archive is a release of Debian with its lists of packages.
type Archive struct {
	dir string
	env []string
	say func(string, ...any)
}

// Open fetches the release's lists. Dir is an absolute path, say gets progress.
func Open(ctx context.Context, dir, release string, say func(string, ...any)) (*Archive, error) {
	const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
	apt := filepath.Join(dir, "apt")
	for _, dir := range []string{"lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(apt, dir), 0o755); err != nil {
			return nil, err
		}
	}
	for name, text := range map[string]string{
		"sources.list": fmt.Sprintf("deb [signed-by=%s] %s %s main\n", keyring, images.Mirror(), release),
		"status":       "",
		"apt.conf": strings.Join([]string{
			`Dir::Etc::sourcelist "` + apt + `/sources.list";`, `Dir::Etc::sourceparts "/dev/null";`,
			`Dir::Etc::preferencesparts "/dev/null";`,
			// What this machine's own settings have apt fetch and start beside is of no use here. A proxy comes from
			// the environment, as debootstrap's does. A mirror may be one of the past: it is signed all the same.
			`Dir::Etc::parts "/dev/null";`, `Dir::Etc::main "/dev/null";`, `Acquire::Check-Valid-Until "false";`,
			`Dir::State::lists "` + apt + `/lists";`, `Dir::State::status "` + apt + `/status";`,
			`Dir::Cache "` + apt + `/cache";`,
			`Acquire::Languages "none";`, `APT::Sandbox::User "root";`, "",
		}, "\n"),
	} {
		if err := os.WriteFile(filepath.Join(apt, name), []byte(text), 0o644); err != nil {
			return nil, err
		}
	}
	a := &Archive{dir: dir, env: []string{"APT_CONFIG=" + filepath.Join(apt, "apt.conf")}, say: say}
	return a, a.apt(ctx, dir, "update")
}

func (a *Archive) apt(ctx context.Context, dir string, args ...string) error {
	cmd := cached.Command{Args: append([]string{"apt-get", "-q"}, args...), Dir: dir, Env: a.env}
	if err := cached.Run(ctx, cmd, a.say); err != nil {
		return fmt.Errorf("%w (is %s reachable? set MICROLET_DEBIAN_MIRROR)", err, images.Mirror())
	}
	return nil
}

// Download fetches a package and returns its file.
func (a *Archive) Download(ctx context.Context, name string) (string, error) {
	dir := filepath.Join(a.dir, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	if err := a.apt(ctx, dir, "download", name); err != nil {
		return "", err
	}
	found, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil || len(found) != 1 {
		return "", errors.Join(fmt.Errorf("download %s: %d packages came, want one", name, len(found)), err)
	}
	return found[0], nil
}
