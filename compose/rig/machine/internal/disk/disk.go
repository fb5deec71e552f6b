package disk

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/crypto/ssh"

	"github.com/microlet/microlet/compose/rig/internal/cached"
	"github.com/microlet/microlet/compose/rig/internal/images"
)

const (
	release = "bookworm"
	// What a node has, and no more: each package is time to start.
	packages = "systemd,systemd-sysv,dbus,libpam-systemd,openssh-server,iproute2,iptables,nftables,conntrack,ethtool," +
		"socat,kmod,procps,util-linux,mount,libseccomp2,ca-certificates,apparmor,nfs-common"
	// size of the filesystem; the image takes of this machine's disk only what is written.
	size = "16G"
	// format is part of the cache's key: raise it when the same input shall give another disk.
	format = "1"
)

// masked units have no purpose here: there is no console to log in at, no hardware that comes and goes, and the machine
// does not live long enough to need upkeep.
var masked = []string{
	"getty.target", "getty@.service", "getty@tty1.service", "serial-getty@.service", "apt-daily.timer",
	"apt-daily-upgrade.timer", "e2scrub_all.timer",
	"e2scrub_reap.service", "fstrim.timer", "dpkg-db-backup.timer", "systemd-random-seed.service",
	"systemd-update-utmp.service",
	"systemd-update-utmp-runlevel.service", "dev-hugepages.mount", "sys-kernel-debug.mount", "sys-kernel-tracing.mount",
	"systemd-udev-trigger.service", "systemd-udevd.service", "systemd-udevd-control.socket",
	"systemd-udevd-kernel.socket",
	"systemd-pstore.service", "modprobe@.service", "kmod-static-nodes.service",
}

// Units that start by themselves, and that do not: an empty set of rules would flush those of the node's agent, and
// mount.nfs needs no service for NFS 4.
var (
	enabled  = []string{"machine-net.service", "ssh.service"}
	disabled = []string{"nftables.service", "nfs-client.target", "rpcbind.service", "rpcbind.socket"}
)

// unused files have no reader here.
var unused = []string{"var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/info",
	"usr/share/locale", "usr/share/i18n"}

//go:embed files
var files embed.FS

// Input says what is on the disk and where it is kept.
type Input struct {
	Cache string
	Out   io.Writer // progress, a line at a time
	// Programs are executables of this machine, by the place where the disk has them. Their paths name their content.
	Programs map[string]string
}

// Disk is a made disk.
type Disk struct {
	Image   string // a raw filesystem, ext4
	Key     string // the private key of root's, in OpenSSH's format
	HostKey string // the machine's public key, in the format of authorized_keys
}

// Path returns the folder in which the disk of this input is or will be.
func Path(in Input) (string, error) {
	h := sha256.New()
	for _, part := range slices.Concat([]string{format, release, packages, size}, masked, enabled, disabled, unused) {
		_, _ = fmt.Fprintln(h, part)
	}
	err := walk(func(path string, mode fs.FileMode, text []byte) error {
		_, _ = fmt.Fprintln(h, path, mode, len(text))
		_, _ = h.Write(text)
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("make the disk's cache key: %w", err)
	}
	for _, to := range slices.Sorted(maps.Keys(in.Programs)) {
		_, _ = fmt.Fprintln(h, to, filepath.Base(filepath.Dir(in.Programs[to])))
	}
	return filepath.Join(in.Cache, "machine", "disk-"+release+"-"+hex.EncodeToString(h.Sum(nil))[:12]), nil
}

// Build returns the disk and makes it if the cache lacks it. It needs root.
func Build(ctx context.Context, in Input) (Disk, error) {
	dir, err := Path(in)
	if err != nil {
		return Disk{}, err
	}
	say := func(format string, args ...any) {
		_, _ = fmt.Fprintf(in.Out, "rig: disk of the machine, Debian "+release+": "+format+"\n", args...)
	}
	if err := cached.Folder(ctx, dir, say, func(half string) error { return build(ctx, half, in, say) }); err != nil {
		return Disk{}, fmt.Errorf("make the machine's disk: %w", err)
	}
	return Disk{Image: filepath.Join(dir, imageFile), Key: filepath.Join(dir, keyFile),
		HostKey: filepath.Join(dir, hostKeyFile)}, nil
}

const (
	imageFile   = "disk.img"
	keyFile     = "root-key"
	hostKeyFile = "host-key.pub"
)

func build(ctx context.Context, half string, in Input, say func(string, ...any)) error {
	root := filepath.Join(half, "root")
	say("making it from %s", images.Mirror())
	bootstrap := []string{"debootstrap", "--variant=minbase", "--include=" + packages, release, root, images.Mirror()}
	if err := cached.Run(ctx, cached.Command{Args: bootstrap, Nice: 10}, say); err != nil {
		return fmt.Errorf("%w (is %s reachable? set MICROLET_DEBIAN_MIRROR)", err, images.Mirror())
	}
	for _, path := range unused {
		if err := os.RemoveAll(filepath.Join(root, path)); err != nil {
			return err
		}
	}
	if err := walk(func(path string, mode fs.FileMode, text []byte) error {
		return put(filepath.Join(root, path), mode, text)
	}); err != nil {
		return err
	}
	for _, unit := range masked {
		if err := os.Symlink("/dev/null", filepath.Join(root, "etc/systemd/system", unit)); err != nil {
			return err
		}
	}
	for to, from := range in.Programs {
		text, err := os.ReadFile(from)
		if err == nil {
			err = put(filepath.Join(root, to), 0o755, text)
		}
		if err != nil {
			return err
		}
	}
	if err := keys(half, root); err != nil {
		return err
	}
	for verb, units := range map[string][]string{"enable": enabled, "disable": disabled} {
		if err := cached.Run(ctx, cached.Command{Args: append([]string{"chroot", root, "systemctl", "--quiet", verb},
			units...)}, say); err != nil {
			return err
		}
	}
	image := filepath.Join(half, imageFile)
	if err := cached.Run(ctx, cached.Command{Args: []string{"truncate", "-s", size, image}}, say); err != nil {
		return err
	}
	// No block is set aside for root, and the tables of inodes are written now: the first start shall not do it.
	mkfs := []string{"mkfs.ext4", "-q", "-F", "-m0", "-E", "lazy_itable_init=0,lazy_journal_init=0", "-N", "500000",
		"-J", "size=32", "-d", root, image}
	if err := cached.Run(ctx, cached.Command{Args: mkfs, Nice: 10}, say); err != nil {
		return err
	}
	return os.RemoveAll(root)
}

// keys makes root's key and the machine's own, and puts them where sshd looks.
func keys(dir, root string) error {
	private, public, err := newKey()
	if err != nil {
		return err
	}
	hostPrivate, hostPublic, err := newKey()
	if err != nil {
		return err
	}
	stale, err := filepath.Glob(filepath.Join(root, "etc/ssh/ssh_host_*"))
	if err != nil {
		return err
	}
	for _, path := range stale {
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	for path, f := range map[string]struct {
		mode fs.FileMode
		text []byte
	}{
		filepath.Join(dir, keyFile):                             {0o600, private},
		filepath.Join(dir, hostKeyFile):                         {0o644, hostPublic},
		filepath.Join(root, "root/.ssh/authorized_keys"):        {0o600, public},
		filepath.Join(root, "etc/ssh/ssh_host_ed25519_key"):     {0o600, hostPrivate},
		filepath.Join(root, "etc/ssh/ssh_host_ed25519_key.pub"): {0o644, hostPublic},
	} {
		if err := put(path, f.mode, f.text); err != nil {
			return err
		}
	}
	return os.Chmod(filepath.Join(root, "root/.ssh"), 0o700)
}

func newKey() (private, public []byte, err error) {
	pub, priv, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	block, err := ssh.MarshalPrivateKey(priv, "")
	if err != nil {
		return nil, nil, err
	}
	sshPub, err := ssh.NewPublicKey(pub)
	if err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(block), ssh.MarshalAuthorizedKey(sshPub), nil
}

// walk calls visit for each file that the disk has beyond Debian's.
func walk(visit func(path string, mode fs.FileMode, text []byte) error) error {
	return fs.WalkDir(files, "files", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := files.ReadFile(path)
		if err != nil {
			return err
		}
		// Embedded files have lost their modes.
		mode := fs.FileMode(0o644)
		if strings.HasPrefix(string(text), "#!") {
			mode = 0o755
		}
		return visit(strings.TrimPrefix(path, "files/"), mode, text)
	})
}

func put(path string, mode fs.FileMode, text []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(path, text, mode); err != nil {
		return err
	}
	return os.Chmod(path, mode)
}
