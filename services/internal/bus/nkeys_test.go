package bus

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/nats-io/nkeys"
	"golang.org/x/sys/unix"

	"github.com/microlet/microlet/proto/role"
	"github.com/microlet/microlet/services/internal/regularfile"
	"github.com/microlet/microlet/services/internal/testing/notregular"
)

func TestGenerateNKeys(t *testing.T) {
	dir := t.TempDir() + "/nkeys"
	uid := os.Getuid()
	other := uid
	if uid == 0 {
		other = 47102
	}
	ids := []role.Identity{{Role: role.Podsync, UID: uid, GID: os.Getgid()},
		{Role: role.PLEG, UID: other, GID: os.Getgid()}}
	if err := GenerateNKeys(dir, ids); err != nil {
		t.Fatal(err)
	}
	read := func(path string) string {
		t.Helper()
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	seeds := map[role.Role]string{}
	for _, id := range ids {
		info, err := os.Stat(SeedFile(dir, id.Role))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != 0o600 || int(info.Sys().(*syscall.Stat_t).Uid) != id.UID {
			t.Errorf("seed of %s is %v of UID %d", id.Role, info.Mode(), info.Sys().(*syscall.Stat_t).Uid)
		}
		if info, err := os.Stat(PublicFile(dir, id.Role)); err != nil || info.Mode() != fs.FileMode(0o644) {
			t.Errorf("public key of %s: %v %v", id.Role, info, err)
		}
		if pub := read(PublicFile(dir, id.Role)); !strings.HasPrefix(pub, "U") {
			t.Errorf("public key of %s is %q", id.Role, pub)
		}
		seeds[id.Role] = read(SeedFile(dir, id.Role))
	}
	if seeds[role.Podsync] == seeds[role.PLEG] {
		t.Error("two roles share a seed")
	}

	// Valid ones are kept, damaged ones are not.
	if err := os.WriteFile(SeedFile(dir, role.PLEG), []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := GenerateNKeys(dir, ids); err != nil {
		t.Fatal(err)
	}
	if read(SeedFile(dir, role.Podsync)) != seeds[role.Podsync] {
		t.Error("a valid seed was replaced")
	}
	if s := read(SeedFile(dir, role.PLEG)); !strings.HasPrefix(s, "SU") {
		t.Errorf("a damaged seed was kept: %q", s)
	}
}

// TestSeedThatItsServiceSpoiled: the file is the service's own, and root reads it at each start.
func TestSeedThatItsServiceSpoiled(t *testing.T) {
	dir := t.TempDir()
	ids := []role.Identity{{Role: role.PLEG, UID: os.Getuid(), GID: os.Getgid()}}
	seed := SeedFile(dir, role.PLEG)
	for name, spoil := range map[string]func() error{
		"an account's seed": func() error {
			pair, err := nkeys.CreateAccount()
			if err != nil {
				return err
			}
			text, err := pair.Seed()
			if err != nil {
				return err
			}
			return os.WriteFile(seed, text, 0o600)
		},
		"a large file": func() error { return os.Truncate(seed, 256<<20) },
		"a lease": func() error {
			f, err := os.OpenFile(seed, os.O_RDWR, 0)
			if err != nil {
				return err
			}
			t.Cleanup(func() { f.Close() })
			_, err = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			if err := GenerateNKeys(dir, ids); err != nil {
				t.Fatal(err)
			}
			if err := spoil(); err != nil {
				t.Fatal(err)
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			if err := GenerateNKeys(dir, ids); err != nil {
				t.Fatal(err)
			}
			runtime.ReadMemStats(&after)
			if took := after.TotalAlloc - before.TotalAlloc; took > 4<<20 {
				t.Errorf("reading the seed took %d bytes", took)
			}
			if _, err := readSeed(seed); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestSeedThatServicesShare: a service writes another's seed into its own file, and each has a key of its own again.
func TestSeedThatServicesShare(t *testing.T) {
	dir := t.TempDir()
	var ids []role.Identity
	for _, r := range []role.Role{role.PLEG, role.Prober, role.NodeAPI} {
		ids = append(ids, role.Identity{Role: r, UID: os.Getuid(), GID: os.Getgid()})
	}
	if err := GenerateNKeys(dir, ids); err != nil {
		t.Fatal(err)
	}
	public := func(path string) string {
		t.Helper()
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(text))
	}
	kept := public(PublicFile(dir, role.NodeAPI))
	known := public(PublicFile(dir, role.Prober))
	text, err := os.ReadFile(SeedFile(dir, role.Prober))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{SeedFile(dir, role.PLEG), ViewerSeedFile(dir)} {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := GenerateNKeys(dir, ids); err != nil {
		t.Fatal(err)
	}
	owners := map[string]string{known: "first owner"}
	for seed, file := range map[string]string{
		SeedFile(dir, role.PLEG): PublicFile(dir, role.PLEG), SeedFile(dir, role.Prober): PublicFile(dir, role.Prober),
		SeedFile(dir, role.NodeAPI): PublicFile(dir, role.NodeAPI), ViewerSeedFile(dir): ViewerPublicFile(dir),
	} {
		key := public(file)
		if other, taken := owners[key]; taken {
			t.Errorf("%s is the key of %s too", file, other)
		}
		owners[key] = file
		pair, err := readSeed(seed)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := pair.PublicKey(); err != nil || got != key {
			t.Errorf("the seed in %s is not of the key in %s: %v", seed, file, err)
		}
	}
	if got := public(PublicFile(dir, role.NodeAPI)); got != kept {
		t.Error("a key that was not shared was replaced")
	}
}

func TestNewSaysWhatIsWrong(t *testing.T) {
	dir := t.TempDir()
	if err := GenerateNKeys(dir, []role.Identity{{Role: role.PLEG, UID: os.Getuid(), GID: os.Getgid()}}); err != nil {
		t.Fatal(err)
	}
	good := Options{Socket: dir + "/nats.sock", SeedFile: SeedFile(dir, role.PLEG), Role: role.PLEG}
	if _, err := New(good); err != nil {
		t.Fatal(err)
	}
	for want, alter := range map[string]func(*Options){
		"absolute":     func(o *Options) { o.Socket = "nowhere" },
		"unknown role": func(o *Options) { o.Role = "unknown" },
		"replica":      func(o *Options) { o.Replica = "a.b" },
		"seed file":    func(o *Options) { o.SeedFile = "" },
		"no such file": func(o *Options) { o.SeedFile = dir + "/absent" },
	} {
		o := good
		alter(&o)
		if _, err := New(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error is %v, want one that contains %q", err, want)
		}
	}
}

func TestNothingButAFileIsTakenForASeed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "seed")
	notregular.Each(t, path, func(t *testing.T) {
		if _, err := readSeed(path); !errors.Is(err, regularfile.ErrNotRegular) {
			t.Error(err)
		}
	})
}
