package bus

import (
	"io/fs"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/microlet/microlet/proto/role"
)

func TestGenerateNKeys(t *testing.T) {
	dir := t.TempDir() + "/nkeys"
	uid := os.Getuid()
	other := uid
	if uid == 0 {
		other = 47102
	}
	ids := []role.Identity{{Role: role.Podsync, UID: uid, GID: os.Getgid()}, {Role: role.PLEG, UID: other, GID: os.Getgid()}}
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

func TestNewSaysWhatIsWrong(t *testing.T) {
	dir := t.TempDir()
	if err := GenerateNKeys(dir, []role.Identity{{Role: role.PLEG, UID: os.Getuid(), GID: os.Getgid()}}); err != nil {
		t.Fatal(err)
	}
	good := Options{Address: "127.0.0.1:4222", SeedFile: SeedFile(dir, role.PLEG), Role: role.PLEG}
	if _, err := New(good); err != nil {
		t.Fatal(err)
	}
	for want, alter := range map[string]func(*Options){
		"host:port":    func(o *Options) { o.Address = "nowhere" },
		"unknown role": func(o *Options) { o.Role = "nobody" },
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
